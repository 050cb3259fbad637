"""How a write begins: it opens its thread, makes a missing one, or finds its first answer.

Opens a thread for a write, and makes the thread if it is missing.

A blob, an effect or a lease may make a thread before it has a version.

How every change of an existing thread begins, unless it is a save.

What a sweep asks before it writes an entry: whether a thread is still ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import lmdb

from stateward.storage.v1.head_pb2 import ThreadHead
from stateward.storage.v1.journal_pb2 import EntryMetadata, ThreadCreation
from stateward.v1.signal_service_pb2 import SendSignalRequest
from stateward.v1.thread_pb2 import THREAD_ACCESS_OWNED, ThreadOptions
from stateward.v1.thread_service_pb2 import (
    DeleteBranchRequest,
    DeleteTagRequest,
    MoveBranchRequest,
    PruneThreadRequest,
    SetTagRequest,
    UpdateThreadRequest,
)
from stateward_sidecar.errors import Fenced, InvalidField, LeaseHeld, NotOwner, ThreadNotFound
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.journal.admitting import Expects, admit, check_head, find_draft, get_draft
from stateward_sidecar.store.journal.journal import index_expiry, index_options
from stateward_sidecar.store.journal.requests import find_request, fingerprint, hash_request
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Thread, ThreadDraft
from stateward_sidecar.store.thread.threads import Threads


@contextmanager
def opened(
    context: Context, threads: Threads, txn: lmdb.Transaction, batch: Batch, request: Expects
) -> Iterator[ThreadDraft]:
    """Gives the draft of the thread that a request writes, and makes the thread if it is missing.

    Raises UidMismatch or ThreadNotFound if the request expects another creation, and LeaseHeld or VersionMismatch if it
    expects a lease or a version of a thread that is missing.

    The caller answers a retry, and then calls ``check_writable``: what was written once is answered by whoever has it.
    The first entry of a new thread must describe it: see ``describe_creation``.
    """
    draft = find_draft(threads, txn, batch, request)
    if draft is not None:
        check_held(draft, request.options.create)
        yield draft
        return
    _check_new(request)
    held = request.options.create.held_key
    draft = threads.create(txn, batch, request.namespace, request.thread, is_held=held)
    try:
        yield draft
    except BaseException:
        context.keystore.give_up(draft.identity.uid)
        raise


def check_held(draft: ThreadDraft, create: ThreadOptions) -> None:
    """Raises InvalidField if a call means a held thread, and the thread exists and is not held: what the call writes
    would be readable without its key."""
    if create.held_key and not draft.identity.is_held:
        raise InvalidField("options.create.held_key", "the thread exists, and is not held")


def _check_new(request: Expects) -> None:
    """Raises LeaseHeld or VersionMismatch if a write expects what a new thread does not have. ``admit`` would say the
    same, but only after the name was claimed in the archive."""
    options, name = request.options, request.thread
    if options.lease_token:
        raise LeaseHeld(
            f"token {options.lease_token} is not valid: there is no thread {name!r}", thread=name, token=0,
            remaining_s=0,
        )  # fmt: skip
    if options.HasField("expected_version"):
        expected, digest = options.expected_version, options.expected_digest
        check_head(f"thread {name!r} is at", 0, b"", expected, digest, thread=name)


def describe_creation(draft: ThreadDraft, metadata: EntryMetadata, options: ThreadOptions) -> None:
    """Adds name and settings of the thread to the metadata of its first entry. Does nothing for later entries."""
    if draft.head.tip_sequence == 0:
        identity = draft.identity
        metadata.creation.CopyFrom(ThreadCreation(namespace=identity.namespace, thread=identity.name, options=options))


def settle_options(
    txn: lmdb.Transaction, draft: ThreadDraft, old: ThreadHead, new: ThreadHead, options: ThreadOptions
) -> None:
    """Writes the settings of a new thread."""
    index_options(txn, draft.identity, new.options, options)
    new.options.CopyFrom(options)
    new.options.held_key = draft.identity.is_held
    index_expiry(txn, draft.identity.number, old, new)


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
    """Checks request id and version for a thread that was found. Raises typed errors."""
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


def is_still_ours(context: Context, thread: Thread) -> bool:
    """Reads HEAD of a thread of ours. Returns False if another sidecar has taken or deleted the thread since this
    process last looked: an entry of this disk would only become an orphan.

    While the bucket is away, the thread is used as it is here, as for a save. Raises Corrupt and others.
    """
    hooks = context.archive
    if hooks is None or thread.access != THREAD_ACCESS_OWNED or hooks.is_away():
        return True
    try:
        hooks.own((thread.identity.namespace, thread.name), True)
    except (NotOwner, Fenced, ThreadNotFound):
        return False
    return True
