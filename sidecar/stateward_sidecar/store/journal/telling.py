"""What PutEffects tells about the work: the status of main's head, without a new version.

A framework may say that its agent waits, or has failed, after the version was saved. The status then stands in the
thread's head (``ThreadHead.told``), and every view of that version shows it. The entry of the effect records it. The
next version ends it, as does a move of main's head. If the version is not saved yet, its status waits in the head, too
(``ThreadHead.early``), and becomes a part of the version.

Parallel tasks ask for themselves, under the name of an asker. Their parts make one question.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

import lmdb

from stateward.storage.v1.head_pb2 import EarlyStatus, ThreadHead
from stateward.storage.v1.journal_pb2 import CheckpointBody, EntryHeader
from stateward.v1.checkpoint_pb2 import WORK_STATUS_FAILED, WORK_STATUS_RUNNING, Checkpoint, StatusTold
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.effect_service_pb2 import PutEffectsRequest
from stateward.v1.signal_pb2 import Question, QuestionPart
from stateward_sidecar.storage import layout
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.thread.thread import MAIN, ThreadDraft

PARTS_MAX, QUESTION_BYTES_MAX = 100, 64 << 10
Told = StatusTold | EarlyStatus


def find_told(txn: lmdb.Transaction, draft: ThreadDraft, request: PutEffectsRequest) -> Told | None:
    """Returns the status that a request tells, as it is with what others have asked; None = nothing changes."""
    if not request.status:
        return None
    head, anchor = draft.head, request.effects[0].anchor
    row = txn.get(draft.identity.keys.checkpoint_id(draft.identity.hash_id(b"checkpoint", MAIN, anchor)))
    if row is None:
        early = head.early if head.early.checkpoint_id == anchor else EarlyStatus(checkpoint_id=anchor)
        return _next(early, request)
    if not head.main_version or replay.place_of(txn, draft, head.main_version) != layout.leading_number(row):
        return None  # another version is the head since
    return _next(_standing(head), request)


def tell(head: ThreadHead, header: EntryHeader, told: Told) -> None:
    """Writes a status into the head, after the entry that records it was put."""
    if isinstance(told, EarlyStatus):
        head.early.CopyFrom(told)
        head.early.sequence = header.sequence
        return
    head.told.version, head.told.sequence, head.told.time_us = told.version, header.sequence, header.create_time_us
    _copy(told, head)


def mark(head: ThreadHead | None) -> tuple[int, int]:
    """Returns what changes whenever a status is told: a version that is made before may have another one."""
    return (head.told.sequence, head.early.sequence) if head is not None else (0, 0)


def take_early(body: CheckpointBody, head: ThreadHead, request: SaveRequest) -> None:
    """Gives a version on main the status that was told before it was saved, unless the save tells another one."""
    if has_early(head, request) and request.status in (0, WORK_STATUS_RUNNING) and not request.wait_id:
        _copy(head.early, body)


def has_early(head: ThreadHead, request: SaveRequest) -> bool:
    """Returns whether a status waits for the version that a save makes on main."""
    early = head.early.checkpoint_id
    return bool(early) and early == request.checkpoint_id


def show_told(shown: CheckpointBody | Checkpoint, head: ThreadHead, version: int) -> None:
    """Changes what a version says of its status, if it was told since."""
    if head.told.version == version:
        _copy(head, shown)
        shown.status = head.status or WORK_STATUS_RUNNING


def _standing(head: ThreadHead) -> StatusTold:
    now = StatusTold(version=head.main_version)
    _copy(head, now)
    return now


def _copy(source: ThreadHead | Told, target: ThreadHead | CheckpointBody | Checkpoint | Told) -> None:
    target.status, target.status_detail, target.wait_id = source.status, source.status_detail, source.wait_id
    if source.HasField("question"):
        target.question.CopyFrom(source.question)
    else:
        target.ClearField("question")


def _next(now: Told, request: PutEffectsRequest) -> Told | None:
    """Returns the status after ``now``; None = the same."""
    made = deepcopy(now)
    made.status, made.status_detail, made.wait_id = request.status, request.status_detail, request.wait_id
    made.ClearField("question")
    if request.HasField("question"):
        made.question.CopyFrom(request.question)
    if request.asker:
        _ask_for_one(made, now, request)
    return None if made == now else made


def _ask_for_one(made: Told, now: Told, request: PutEffectsRequest) -> None:
    """Completes what a request tells for one asker."""
    parts = list(now.question.parts)
    mine = [part for part in parts if part.asker == request.asker]
    others = [part for part in parts if part.asker != request.asker]
    if request.status == WORK_STATUS_FAILED:
        # What the others ask is open, and its own part, whose answer it has not used.
        made.wait_id = now.wait_id
        if now.HasField("question"):
            made.question.CopyFrom(now.question)
    elif request.status == WORK_STATUS_RUNNING:
        if not mine:
            _copy(now, made)
            return
        if others or now.status == WORK_STATUS_FAILED:
            made.status, made.status_detail = now.status, now.status_detail
        # Tasks write at the same time: what stands may be newer than what this one knows.
        made.wait_id = (request.wait_id or now.wait_id) if others else ""
        if others:
            made.question.CopyFrom(join(others))
    else:
        asked = [
            QuestionPart(name=part.name, prompt=part.prompt, answer_schema=part.answer_schema, asker=request.asker,
                         wait_id=request.wait_id)
            for part in request.question.parts
        ]  # fmt: skip
        names = {part.name for part in asked}
        others = [part for part in others if part.name not in names]
        made.question.CopyFrom(join([*others, *asked]))
        is_same = all(part.wait_id == request.wait_id for part in mine)
        if (mine or others) and is_same:
            made.wait_id = now.wait_id


def find_used(draft: ThreadDraft, told: Told | None) -> list[str]:
    """Returns the ids of signals whose answers have all been used: none of their parts is asked any more, and others
    are. If no part is left, the next version acknowledges them, and until then a restarted agent sees that it has to go
    on."""
    if not isinstance(told, StatusTold) or not told.question.parts:
        return []
    before = {part.name for part in draft.head.question.parts}
    now = {part.name for part in told.question.parts}
    return [
        row.record.signal_id for row in draft.all_signals().values()
        if before.intersection(row.record.parts) and not now.intersection(row.record.parts)
    ]  # fmt: skip


def join(parts: Iterable[QuestionPart]) -> Question:
    """Returns the question that has these parts, as far as they fit. Its prompt has all prompts; its schema is that of
    the only part."""
    question, size_bytes = Question(), 0
    for part in parts:
        size_bytes += len(part.prompt.encode()) + len(part.answer_schema.encode()) + 1
        if len(question.parts) == PARTS_MAX or size_bytes > QUESTION_BYTES_MAX:
            break
        question.parts.append(part)
    question.prompt = "\n".join(part.prompt for part in question.parts)
    if len(question.parts) == 1:
        question.answer_schema = question.parts[0].answer_schema
    return question
