"""The description of a version (status, step, labels and so on): copied into the entry, the head and the answer."""

from __future__ import annotations

from stateward.storage.v1.head_pb2 import ThreadHead
from stateward.storage.v1.journal_pb2 import CheckpointBody, EntryHeader
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED
from stateward.v1.checkpoint_service_pb2 import SaveRequest, SaveResponse
from stateward.v1.diff_pb2 import Diff
from stateward.v1.state_pb2 import Value
from stateward.v1.write_pb2 import Receipt
from stateward_sidecar.codec.entry import Entry, stored_bytes
from stateward_sidecar.codec.state import StateTree
from stateward_sidecar.measures import events
from stateward_sidecar.store.thread.thread import MAIN, ThreadDraft

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
