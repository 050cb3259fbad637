"""How every change of an existing thread begins, unless it is a save."""

from __future__ import annotations

from dataclasses import dataclass

import lmdb

from stateward.v1.signal_service_pb2 import SendSignalRequest
from stateward.v1.thread_service_pb2 import (
    DeleteBranchRequest,
    DeleteTagRequest,
    MoveBranchRequest,
    PruneThreadRequest,
    SetTagRequest,
    UpdateThreadRequest,
)
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.journal.admitting import admit
from stateward_sidecar.store.journal.expecting import check_uid, get_draft
from stateward_sidecar.store.journal.requests import find_request, fingerprint, hash_request
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import ThreadDraft
from stateward_sidecar.store.thread.threads import Threads

MoveRequest = MoveBranchRequest | DeleteBranchRequest
ChangeRequest = (
    SetTagRequest | DeleteTagRequest | UpdateThreadRequest | PruneThreadRequest | SendSignalRequest | MoveRequest
)


@dataclass(frozen=True, slots=True)
class Change:
    """The beginning of every change of an existing thread: the draft, and the hashes of the request."""

    draft: ThreadDraft
    request_hash: bytes
    fingerprint: bytes
    replayed_sequence: int  # the entry that this request made before; 0 = the request is new


def begin_change(
    context: Context, threads: Threads, txn: lmdb.Transaction, batch: Batch, request: ChangeRequest
) -> Change:
    """Finds the thread and checks request id, uid and version. Raises typed errors."""
    return check_change(context, txn, get_draft(threads, txn, batch, request), request)


def check_change(context: Context, txn: lmdb.Transaction, draft: ThreadDraft, request: ChangeRequest) -> Change:
    """Checks request id, uid and version for a thread that was found. Raises typed errors."""
    check_uid(draft.identity, request)
    request_id, mark = request.options.request_id, fingerprint(request)
    request_hash = hash_request(request_id)
    if request_id:
        found = find_request(txn, draft, request_id, mark)
        if found is not None:
            return Change(draft, request_hash, mark, found.header.sequence)
    if isinstance(request, MoveRequest):  # which expect the head of their own branch
        draft.check_writable()
    else:
        admit(context, draft, request.options, needs_lease=False)
    return Change(draft, request_hash, mark, 0)
