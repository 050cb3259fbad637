"""Moves heads of branches to other versions, and deletes branches.

One entry of the journal lists the branches that it changes, with their heads before and after. No version is changed or
removed. A deleted branch has no row any more; the versions that it had are versions of the thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import lmdb

from stateward.storage.v1.head_pb2 import BranchHead
from stateward.storage.v1.journal_pb2 import EntryMetadata, HeadMove
from stateward.v1.thread_service_pb2 import (
    DeleteBranchRequest,
    DeleteBranchResponse,
    MoveBranchRequest,
    MoveBranchResponse,
)
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.errors import InvalidField, VersionNotFound
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.admitting import check_head, check_lease
from stateward_sidecar.store.journal.finding import resolve
from stateward_sidecar.store.journal.journal import append, commit_entry
from stateward_sidecar.store.journal.opening import Change, MoveRequest, begin_change
from stateward_sidecar.store.journal.views import receipt_of
from stateward_sidecar.store.kinds.ref import HEADS
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import MAIN, ThreadDraft, delete_row, write_branch
from stateward_sidecar.store.thread.threads import Threads
from stateward_sidecar.store.versions.branches import Pointed, describe_main, newest_version, point_branch

# By name of the branch: its new head; None = the branch is deleted.
Moves = Mapping[str, Pointed | None]


class Mover:
    """The verbs. Each returns a function for the writer."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads

    def move(self, request: MoveBranchRequest) -> Callable[[lmdb.Transaction, Batch], MoveBranchResponse]:
        """Moves the head of a branch to another version of the branch."""

        def run(txn: lmdb.Transaction, batch: Batch) -> MoveBranchResponse:
            change = begin_change(self._context, self._threads, txn, batch, request)
            draft, name, sequence = change.draft, request.branch or MAIN, change.replayed_sequence
            if not sequence:
                branch = self._expect(draft, request, name)
                version = resolve(txn, draft, request.version, name, "version")
                pointed = point_branch(txn, draft, branch, version)
                if pointed is None:
                    raise InvalidField("version", f"{version} was not saved to branch {name!r}")
                sequence = self._put(txn, batch, change, {name: pointed})
            move = _find_move(txn, draft, sequence)
            return MoveBranchResponse(
                receipt=receipt_of(txn, draft, sequence, replayed=bool(change.replayed_sequence)),
                version=move.version, version_digest=move.digest, previous_version=move.before_version,
            )  # fmt: skip

        return run

    def delete(self, request: DeleteBranchRequest) -> Callable[[lmdb.Transaction, Batch], DeleteBranchResponse]:
        """Deletes a branch."""

        def run(txn: lmdb.Transaction, batch: Batch) -> DeleteBranchResponse:
            change = begin_change(self._context, self._threads, txn, batch, request)
            draft, sequence = change.draft, change.replayed_sequence
            if not sequence:
                self._expect(draft, request, request.branch)
                sequence = self._put(txn, batch, change, {request.branch: None})
            move = _find_move(txn, draft, sequence)
            return DeleteBranchResponse(
                receipt=receipt_of(txn, draft, sequence, replayed=bool(change.replayed_sequence)),
                version=move.before_version, version_digest=move.before_digest,
            )  # fmt: skip

        return run

    def _expect(self, draft: ThreadDraft, request: MoveRequest, name: str) -> BranchHead:
        """Returns the branch. Raises LeaseHeld, VersionNotFound or VersionMismatch."""
        check_lease(self._context, draft, request.options.lease_token)
        branch, thread = draft.branch(name), draft.identity.name
        if branch is None:
            raise VersionNotFound(f"thread {thread!r} has no branch {name!r}", thread=thread, branch=name)
        if request.options.HasField("expected_version"):
            check_head(
                f"branch {name!r} of thread {thread!r} is at", branch.version, branch.digest,
                request.options.expected_version, request.options.expected_digest, thread=thread, branch=name,
            )  # fmt: skip
        return branch

    def _put(self, txn: lmdb.Transaction, batch: Batch, change: Change, moves: Moves) -> int:
        metadata = EntryMetadata(request_hash=change.request_hash, fingerprint=change.fingerprint)
        sequence = put_moves(self._context, txn, batch, change.draft, moves, metadata)
        self._threads.keep_draft(batch, change.draft)
        return sequence


def put_moves(
    context: Context, txn: lmdb.Transaction, batch: Batch, draft: ThreadDraft, moves: Moves, metadata: EntryMetadata
) -> int:
    """Appends the entry of moves, and writes the rows. Returns the sequence. The caller keeps the draft."""
    metadata.heads.extend(list_moves(draft, moves))
    entry = append(
        context, txn, draft, HEADS, draft_content(metadata), request_hash=metadata.request_hash
    )
    head, sums = entry.head, dict[bytes, int]()
    for name, to in moves.items():
        if to is None:
            head.deleted_version = head.last_version
            sums.update([delete_row(txn, draft, head, draft.identity.branch_key(name))])
            continue
        sums.update([write_branch(txn, draft, head, to.branch)])
        if name == MAIN:
            describe_main(head, to.body, to.header)
    commit_entry(context, txn, batch, draft, entry, sums)
    draft.branches.update({name: to.branch if to is not None else None for name, to in moves.items()})
    return entry.header.sequence


def list_moves(draft: ThreadDraft, moves: Moves) -> list[HeadMove]:
    """Returns moves as the journal records them."""
    found = []
    for name, to in moves.items():
        move, before = HeadMove(branch=name), draft.branch(name)
        if before is not None:
            move.before_version, move.before_digest = before.version, before.digest
            if to is None:
                move.first_version, move.last_version = before.first_version, newest_version(before)
        if to is not None:
            move.version, move.digest = to.branch.version, to.branch.digest
        found.append(move)
    return found


def _find_move(txn: lmdb.Transaction, draft: ThreadDraft, sequence: int) -> HeadMove:
    entry = replay.read_entry(txn, draft.identity, sequence)
    return replay.open_metadata(draft.identity, entry).heads[0]
