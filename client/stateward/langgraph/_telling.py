"""What LangGraph tells a saver about its work, as a status of Stateward.

A checkpoint tells whether the graph runs on: its next tasks are those that its channels trigger. The writes of tasks
tell of questions (`interrupt`), answers and errors. Only the graph that has the thread for itself tells: a question of
a subgraph comes to it, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, TASKS

from stateward._naming import name_for
from stateward._telling import DETAIL_BYTES_MAX, PARTS_MAX, PROMPT_BYTES_MAX, TEXT_BYTES_MAX, cut, name_of, prompt_of
from stateward.v1 import checkpoint_pb2, signal_pb2
from stateward.v1.effect_service_pb2 import PutEffectsRequest

NO_TASK = "00000000-0000-0000-0000-000000000000"
HANDLED = "__error_source_node__"
_START, _END = "__start__", "__end__"
_EDGES = "branch:to:", "join:"
_OWN_NAMES = "__input__", INTERRUPT
Writes = Sequence[tuple[str, Any]]


# -- checkpoints ------------------------------------------------------------------------------------------------------


def status_of(checkpoint: Mapping[str, Any], values: Mapping[str, Any], source: Any) -> checkpoint_pb2.WorkStatus:
    """Returns COMPLETED if no task follows the checkpoint, else RUNNING, also if that cannot be told.

    The saver does not know the graph. But in a graph of states, and in the functional form, nodes are triggered by
    channels that LangGraph names itself. In any other graph any channel may trigger a node, so its end is not seen.
    """
    is_over = source in ("loop", "update") and _names_its_edges(checkpoint) and not values.get(TASKS)
    if is_over and (updated := checkpoint.get("updated_channels")):
        is_over = not any(is_edge(channel) for channel in updated)
    if is_over and (not checkpoint.get("updated_channels") or source == "update"):
        is_over = not any(is_edge(channel) and _may_trigger(value) for channel, value in values.items())
    return checkpoint_pb2.WORK_STATUS_COMPLETED if is_over else checkpoint_pb2.WORK_STATUS_RUNNING


def _names_its_edges(checkpoint: Mapping[str, Any]) -> bool:
    """Whether the graph's nodes were triggered by channels with LangGraph's own names only."""
    seen = {name: channels for name, channels in checkpoint["versions_seen"].items() if name not in _OWN_NAMES}
    if _START not in seen and _END not in checkpoint["channel_versions"]:
        return False
    return all(is_edge(channel) or channel == TASKS for channels in seen.values() for channel in channels)


def is_edge(channel: str) -> bool:
    """Whether LangGraph made the channel itself, to say which node runs next."""
    return channel == _START or channel.startswith(_EDGES)


def _may_trigger(value: Any) -> bool:
    """Whether a channel with this value may be complete: one that joins branches is empty after it has triggered."""
    met = value[0] if isinstance(value, tuple) and len(value) == 2 else value
    return not isinstance(met, set | frozenset) or bool(met)


# -- writes of tasks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Told:
    """What the writes of a task tell."""

    status: checkpoint_pb2.WorkStatus
    detail: str = ""
    asker: str = ""
    wait_id: str = ""
    question: signal_pb2.Question | None = None

    def add_to(self, request: PutEffectsRequest) -> None:
        """Sets the fields of the request."""
        request.status, request.status_detail = self.status, self.detail
        request.asker, request.wait_id = self.asker, self.wait_id
        if self.question is not None:
            request.question.CopyFrom(self.question)


def told_by(writes: Writes, checkpoint_id: str, task_id: str) -> Told | None:
    """Returns what the writes of a task tell; None = nothing. Several tasks may ask at once, each for itself."""
    found = dict(writes)  # of several writes to one special channel the last one counts
    if INTERRUPT in found:
        answers = found.get(RESUME) or ()
        turn = len(answers) if isinstance(answers, list | tuple) else 1
        return _asked(found[INTERRUPT], checkpoint_id, task_id, turn)
    if ERROR in found:
        error = found[ERROR]
        # A task is cancelled because another one failed, or from outside. And a node that handles errors runs on.
        if HANDLED in found or type(error).__name__ == "CancelledError":
            return None
        return Told(checkpoint_pb2.WORK_STATUS_FAILED, cut(_describe(error), DETAIL_BYTES_MAX), name_for(task_id))
    if RESUME in found:
        return Told(checkpoint_pb2.WORK_STATUS_RUNNING, asker="" if task_id == NO_TASK else name_for(task_id))
    return None


def _asked(interrupts: Any, checkpoint_id: str, task_id: str, turn: int) -> Told:
    parts = dict[str, signal_pb2.QuestionPart]()
    several = [each for each in interrupts if hasattr(each, "value")] if isinstance(interrupts, Iterable) else []
    room = min(PROMPT_BYTES_MAX, TEXT_BYTES_MAX // max(1, min(len(several), PARTS_MAX)))
    for each in several[:PARTS_MAX]:
        name = name_for(str(getattr(each, "id", "") or task_id))
        schema = getattr(each, "response_schema", None)
        text = cut(prompt_of(schema), TEXT_BYTES_MAX) if isinstance(schema, dict) else ""
        prompt = cut(prompt_of(each.value), room)
        has_room = len(prompt.encode()) + len(text.encode()) <= room
        parts[name] = signal_pb2.QuestionPart(name=name, prompt=prompt, answer_schema=text if has_room else "")
    if not parts:
        return Told(checkpoint_pb2.WORK_STATUS_WAITING)
    question = signal_pb2.Question(prompt="\n".join(part.prompt for part in parts.values()), parts=parts.values())
    wait_id = name_of(checkpoint_id, task_id, *parts, turn)
    return Told(checkpoint_pb2.WORK_STATUS_WAITING, asker=name_for(task_id), wait_id=wait_id, question=question)


def _describe(error: Any) -> str:
    if isinstance(error, str):
        return error
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  a program's object may do anything; the write must not fail
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
