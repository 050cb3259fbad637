"""The heads of branches, the versions of a branch, and the description of a version.

The description of a version (status, step, labels and so on): copied into the entry, the head and the answer.

The head of a branch: checks what a write expects of it, and moves it; and the versions of a branch.
"""

from __future__ import annotations

from dataclasses import dataclass

import lmdb

from stateward.storage.v1.head_pb2 import BranchHead, ThreadHead
from stateward.storage.v1.journal_pb2 import CheckpointBody, EntryHeader
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED
from stateward.v1.checkpoint_service_pb2 import ON_MISMATCH_FORK, SaveRequest, SaveResponse
from stateward.v1.diff_pb2 import Diff
from stateward.v1.state_pb2 import Value
from stateward.v1.write_pb2 import Receipt
from stateward_sidecar.codec.entry import Entry, stored_bytes
from stateward_sidecar.codec.state import StateTree
from stateward_sidecar.errors import QuotaExceeded, SchemaMismatch, VersionMismatch
from stateward_sidecar.measures import events
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.thread.ranges import Ranges
from stateward_sidecar.store.thread.thread import MAIN, Thread, ThreadDraft

# Metadata outlives pruning, so it must stay small however many numbers a diff adds to.
NUMBERS_MAX = 64


def describe_version(body: CheckpointBody, request: SaveRequest) -> None:
    """Copies the description of the version from the request. Tests each field, because most are usually empty."""
    if request.HasField("step"):
        body.step = request.step
    if request.checkpoint_id:
        body.checkpoint_id = request.checkpoint_id
    if request.status:
        body.status = request.status
    if request.status_detail:
        body.status_detail = request.status_detail
    if request.wait_id:
        body.wait_id = request.wait_id
    if request.HasField("question"):
        body.question.CopyFrom(request.question)
    if request.ack_signals:
        body.acked_signals.extend(request.ack_signals)
    if request.labels:
        body.labels.update(request.labels)
    if request.attributes:
        body.attributes.MergeFrom(request.attributes)
    if request.metrics:
        body.metrics.update(request.metrics)
    if request.HasField("metadata"):
        body.metadata.CopyFrom(request.metadata)


def describe_numbers(body: CheckpointBody, diff: Diff, tree: StateTree) -> None:
    """Notes the numbers that the edits added to, as they are in the new state: a retry gets the same sums."""
    for edit in diff.edits:
        if not edit.HasField("add_number"):
            continue
        slot = edit.add_number.slot
        value = Value.FromString(tree.slots.get(slot, b""))
        if value.WhichOneof("content") == "number":
            body.numbers[slot] = value.number
        if len(body.numbers) == NUMBERS_MAX:
            return


def is_merge(request: SaveRequest) -> bool:
    """Returns whether a save applies to the current head without an expectation."""
    return not (request.options.HasField("expected_version") or request.HasField("parent") or request.overwrite)


def keeps_status(request: SaveRequest) -> bool:
    """Returns whether a version keeps the status of its parent.

    A client that only adds to the head does not know the status of the work. A save that acknowledges signals comes
    from the agent itself, so it sets the status.
    """
    return not request.status and not request.wait_id and not request.ack_signals and is_merge(request)


def take_over(body: CheckpointBody, parent: CheckpointBody, request: SaveRequest) -> None:
    """Notes the parent's id. Copies its schema version if the save has none, and its status if the save keeps it: wait
    id and question too, and the status detail if the save has none."""
    if parent.checkpoint_id:
        body.parent_checkpoint_id = parent.checkpoint_id
    if not body.schema_version:
        body.schema_version = parent.schema_version
    if not keeps_status(request):
        return
    body.status, body.wait_id = parent.status, parent.wait_id
    if not body.status_detail:
        body.status_detail = parent.status_detail
    if parent.HasField("question"):
        body.question.CopyFrom(parent.question)


def describe_main(head: ThreadHead, body: CheckpointBody, header: EntryHeader) -> None:
    """Copies the description of main's head into the thread's head, for lists. What was told of it is over."""
    if head.HasField("told"):
        head.ClearField("told")
    head.main_version = header.version
    head.main_digest = header.digest
    head.status = body.status
    head.status_detail = body.status_detail
    head.wait_id = body.wait_id
    if body.HasField("question"):
        head.question.CopyFrom(body.question)
    elif head.HasField("question"):
        head.ClearField("question")
    if body.HasField("step"):
        head.step = body.step
    else:
        head.ClearField("step")
    if head.metrics:
        head.metrics.clear()
    if body.metrics:
        head.metrics.update(body.metrics)


def replay_response(draft: ThreadDraft, entry: Entry, body: CheckpointBody, request: SaveRequest) -> SaveResponse:
    """Returns the answer to a retry: the first answer again."""
    events.replays += 1
    return response(draft, entry.header, stored_bytes(entry), body, request, replayed=True)


def response(
    draft: ThreadDraft,
    header: EntryHeader,
    size_bytes: int,
    body: CheckpointBody,
    request: SaveRequest,
    *,
    replayed: bool,
) -> SaveResponse:
    """Returns the answer to a save."""
    seconds, micros = divmod(header.create_time_us, 1_000_000)
    archived_sequence = draft.thread.archived_sequence
    answer = SaveResponse(
        receipt=Receipt(
            uid=draft.identity.uid_text, sequence=header.sequence, digest=header.digest,
            durability=DURABILITY_COMMITTED, archived_sequence=archived_sequence,
        ),
        version=header.version, parent_version=header.parent_version, stored_bytes=size_bytes,
    )  # fmt: skip
    answer.create_time.seconds, answer.create_time.nanos = seconds, micros * 1000
    if body.schema_version and not request.schema_version:
        answer.schema_version = body.schema_version
    if body.status and not request.status:
        answer.status, answer.wait_id = body.status, body.wait_id
    if request.on_mismatch and body.branch != request.branch and (body.branch or request.branch != MAIN):
        answer.branch = body.branch or MAIN
    if body.parent_checkpoint_id:
        answer.parent_checkpoint_id = body.parent_checkpoint_id
    if body.numbers:
        answer.numbers.update(body.numbers)
    if replayed:
        answer.receipt.replayed = True
        if header.sequence <= archived_sequence:
            answer.receipt.durability = DURABILITY_ARCHIVED
    return answer


# The most branches of a thread. GetThread shows them in one answer, which every client can receive.
BRANCHES_MAX = 1000


def fork_branch(request: SaveRequest, version: int) -> str:
    """Returns the branch that a save makes if the head is not the expected one. ``version``: that of the save."""
    return request.fork_branch or f"{fork_prefix(request)}{version}"


def fork_prefix(request: SaveRequest) -> str:
    """Returns the begin of the names that the daemon gives to such branches."""
    return f"{request.branch or MAIN}-fork-"


def does_fork(request: SaveRequest, thread: Thread | ThreadDraft | None, branch: BranchHead | None) -> bool:
    """Returns whether a save goes to a branch of its own: the head is not the expected one, which may be here."""
    if request.on_mismatch != ON_MISMATCH_FORK or thread is None or is_expected(request, branch):
        return False
    return request.options.expected_version <= thread.head.last_version


def is_expected(request: SaveRequest, branch: BranchHead | None) -> bool:
    """Returns whether the head of a branch is the version and digest that the save expects."""
    version, digest = (branch.version, branch.digest) if branch else (0, b"")
    if request.options.HasField("expected_version") and request.options.expected_version != version:
        return False
    return not request.options.expected_digest or request.options.expected_digest == digest


def check_fork(txn: lmdb.Transaction, request: SaveRequest, name: str, draft: ThreadDraft) -> None:
    """Raises VersionMismatch if the branch exists, or if the thread has another version than the expected one; also
    VersionPruned, HistoryElsewhere or Corrupt."""
    found = draft.branch(name)
    if found is not None:
        raise VersionMismatch(
            f"{_where(request, name)} exists already, at version {found.version}; the save would have made it",
            thread=request.thread, branch=name, current_version=found.version, current_digest=found.digest.hex(),
            expected_version=0,
        )  # fmt: skip
    expected = request.options.expected_version
    if not expected:
        return
    entry = replay.read_version(txn, draft, expected)
    replay.open_metadata(draft.identity, entry)  # proves the digest in the header
    if request.options.expected_digest and request.options.expected_digest != entry.header.digest:
        raise VersionMismatch(
            f"version {expected} of thread {request.thread!r} has another digest than expected",
            thread=request.thread, branch=request.branch or MAIN, current_version=expected,
            current_digest=entry.header.digest.hex(), expected_version=expected,
        )  # fmt: skip


def check_expectation(request: SaveRequest, name: str, draft: ThreadDraft | None, branch: BranchHead | None) -> None:
    """Raises VersionMismatch if the head of the branch is not the version and digest that the save expects."""
    current, digest = (branch.version, branch.digest) if branch else (0, b"")
    if not is_expected(request, branch):
        what = f"version {request.options.expected_version} was expected"
        if request.options.expected_version == current:
            what = f"version {current} with another digest was expected"
        state = f"is at version {current}" if draft is not None else "does not exist"
        raise VersionMismatch(
            f"{_where(request, name)} {state}, but {what}", thread=request.thread, branch=name,
            current_version=current, current_digest=digest.hex(), expected_version=request.options.expected_version,
        )  # fmt: skip


def check_schema(request: SaveRequest, name: str, branch: BranchHead | None) -> None:
    """Raises SchemaMismatch if an unconditional save has another schema version than the head.

    Another client may have migrated the state meanwhile, and an addition must fit the state.
    """
    asked, found = request.schema_version, branch.schema_version if branch is not None else 0
    if asked and found and asked != found and is_merge(request):
        raise SchemaMismatch(
            f"{_where(request, name)} has schema {found}, but the save has schema {asked}", thread=request.thread,
            branch=name, schema=found, asked=asked,
        )  # fmt: skip


def _where(request: SaveRequest, name: str) -> str:
    return f"thread {request.thread!r}" + (f" branch {name!r}" if name != MAIN else "")


def move_branch(
    txn: lmdb.Transaction,
    draft: ThreadDraft,
    branch: BranchHead | None,
    name: str,
    header: EntryHeader,
    body: CheckpointBody,
) -> BranchHead:
    """Returns the head of a branch after a new version on it."""
    moved = BranchHead(name=name, base_version=header.parent_version, first_version=header.version)
    if branch is not None:
        moved.CopyFrom(branch)
    if branch is None or branch.version != header.parent_version:
        _lean(txn, draft, moved, header.parent_version)
        # A reader that follows logs may know an older branch of this name, which was deleted.
        is_move = branch is not None or draft.head.deleted_version
        moved.moved_version = header.version if is_move else 0
    if moved.newest_version:  # the head had gone back, so this version was not made from the newest one
        moved.moved_version, moved.newest_version = header.version, 0
    _name(moved, header, body)
    moved.weight += replay.entry_weight(header.edit_stored_bytes)
    return moved


@dataclass(frozen=True, slots=True)
class Pointed:
    """A branch whose head is moved to a version that exists, and what describes this version."""

    branch: BranchHead
    header: EntryHeader
    body: CheckpointBody


def point_branch(
    txn: lmdb.Transaction, thread: Thread | ThreadDraft, branch: BranchHead, version: int
) -> Pointed | None:
    """Returns the branch with another version of it as its head; None if the version was not saved to the branch.

    Raises as ``replay.read_version`` does.
    """
    entry = replay.read_version(txn, thread, version)
    body = replay.open_metadata(thread.identity, entry).checkpoint
    if (body.branch or MAIN) != branch.name or version < branch.first_version:
        return None
    moved = BranchHead()
    moved.CopyFrom(branch)
    newest = newest_version(branch)
    moved.newest_version = newest if newest != version else 0
    _lean(txn, thread, moved, version)
    _name(moved, entry.header, body)
    return Pointed(moved, entry.header, body)


def fall_back(txn: lmdb.Transaction, thread: Thread, branch: BranchHead, going: Ranges) -> int:
    """Returns the newest retained version of a branch that is older than its head and not ``going``; 0 = none."""
    walk = Walk(thread, branch, branch.version + 1)
    while version := walk.version:
        entry = replay.read_version(txn, thread, version)
        name = replay.open_metadata(thread.identity, entry).checkpoint.branch or MAIN
        if name == branch.name and version not in going:
            return version
        walk.step(entry.header.parent_version, name)
    return 0


def newest_version(branch: BranchHead) -> int:
    """Returns the newest version that was ever saved to a branch. It may be pruned."""
    return max(branch.version, branch.newest_version)


def _lean(txn: lmdb.Transaction, thread: Thread | ThreadDraft, branch: BranchHead, version: int) -> None:
    """Sets the nearest snapshot of a branch, and the weight since, as they are at a version."""
    snapshot, branch.weight = replay.nearest_snapshot(txn, thread, version)
    branch.snapshot_version = snapshot
    branch.snapshot_stored_bytes = replay.snapshot_stored_bytes(txn, thread.identity, snapshot) if snapshot else 0


def _name(branch: BranchHead, header: EntryHeader, body: CheckpointBody) -> None:
    branch.version, branch.digest, branch.save_time_us = header.version, header.digest, header.create_time_us
    branch.schema_version = body.schema_version


class Walk:
    """The retained versions of a thread, newest first. In a branch it skips most versions of other branches.

    A version of a branch was made from the newest version of the branch before it, unless the branch had moved. So the
    walk follows parents above ``moved_version``, and looks at every version below it, down to the branch's first.
    """

    def __init__(self, thread: Thread, branch: BranchHead | None, below: int) -> None:
        """``branch``: only this branch matters; None = all versions. ``below``: begins below this version."""
        self._pruned, self._branch = thread.pruned, branch
        self._end, newest = 0, thread.head.last_version
        if branch is not None:
            self._end, newest = branch.first_version - 1, newest_version(branch)
        self.version = self._retained(min(below - 1, newest))
        """The version to look at; 0 = there are no more."""

    def step(self, parent: int, name: str) -> None:
        """Moves to the next version, given the parent and the branch of the current one."""
        branch = self._branch
        is_chained = branch is not None and name == branch.name and self.version > branch.moved_version
        self.version = self._retained(parent if is_chained else self.version - 1)

    def _retained(self, version: int) -> int:
        while version > self._end and version in self._pruned:
            version -= 1
        return version if version > self._end else 0


def belongs(branch: BranchHead | None, version: int) -> bool:
    """Returns whether a version with a branch's name was saved to this branch, and not to a deleted one of the name."""
    return branch is not None and version >= branch.first_version


def check_room(draft: ThreadDraft, name: str) -> None:
    """Raises QuotaExceeded if the thread has as many branches as it may have: GetThread shows all in one answer."""
    if len(draft.thread.branches) + len(draft.branches) >= BRANCHES_MAX and len(draft.all_branches()) >= BRANCHES_MAX:
        thread = draft.identity.name
        raise QuotaExceeded(
            f"branch: thread {thread!r} has {BRANCHES_MAX:,} branches already, and {name!r} would be a new one; delete "
            "some first", field="branch", thread=thread, limit=BRANCHES_MAX,
        )  # fmt: skip
