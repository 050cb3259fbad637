"""How a graph goes on with the answer of a person."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any

from stateward._async.thread import AsyncThread
from stateward._operations.reading import hydrate_stored
from stateward._operations.steps import Operation, ThreadRef
from stateward._sync.thread import Thread
from stateward.langgraph._answers import ANSWERS, Given
from stateward.langgraph._names import MAIN
from stateward.models import Status
from stateward.signals import ANSWER, APPROVE, REJECT, Signal
from stateward.state import State

if TYPE_CHECKING:
    from langgraph.types import Command

_INTERRUPT_ID = re.compile("[0-9a-f]{32}")
Decide = Callable[[Signal], Any]


def decision_of(signal: Signal) -> Any:
    """Returns what `interrupt` returns for an approval, True, for a rejection, False, and for another signal."""
    return True if signal.name == APPROVE else False if signal.name == REJECT else signal.payload


def resume_command(thread: Thread, *, decide: Decide = decision_of) -> Command[Any] | None:
    """Returns the command with which the graph of a thread goes on; None = nobody has answered its question yet.

        command = resume_command(saver.thread("trip-1"))
        if command is not None:
            graph.invoke(command, {"configurable": {"thread_id": "trip-1"}})

    The command names the interrupts that the answer is about. If a question has several parts, and the answer some of
    them, the graph asks again for the others. `interrupt` returns the value of an answer, and for an approval or a
    rejection what `decide` returns: True or False, unless you give another function, which gets the signal with its
    note in `payload`.

    The run that gets the command, in this process, acknowledges the answer in the calls in which its saver writes what
    the graph made of it. If the run fails or dies before, the next call of this function returns the answer again.
    """
    return thread._run(_find(thread._ref, decide))


async def aresume_command(thread: AsyncThread, *, decide: Decide = decision_of) -> Command[Any] | None:
    """As `resume_command`."""
    return await thread._run(_find(thread._ref, decide))


def _find(ref: ThreadRef, decide: Decide) -> Operation[Command[Any] | None]:
    from langgraph.types import Command  # noqa: PLC0415  the extra has the checkpoints only

    if ref.branch != MAIN:
        raise ValueError(f"branch {ref.branch!r} is not resumed: only the head of main asks a thread's question")
    state = yield from hydrate_stored(ref, slots=[], logs=[])
    signals = _answers_in(state)
    values = _values(signals, _open_parts(state), decide)
    if state.checkpoint is None or not values:
        return None
    newest = max(each.sequence for each in signals)
    ids = tuple(each.id for each in state.signals if each.wait_id and each.sequence <= newest)
    ANSWERS.give(state.checkpoint.uid, Given(ids, state.checkpoint.checkpoint_id, values))
    if all(map(_INTERRUPT_ID.fullmatch, values)):
        return Command(resume=values)
    return Command(resume=next(iter(values.values())))  # LangGraph gave no id, and so asks one thing only


def _open_parts(state: State) -> Container[str] | None:
    """The names of the parts that the graph asks now; None = all tasks that had asked have ended, and the next
    checkpoint is missing: the run has only to go on."""
    head = state.checkpoint
    if head is not None and head.question is not None:
        return {part.name for part in head.question.parts}
    return None if head is not None and head.status == Status.RUNNING else ()


def _answers_in(state: State) -> list[Signal]:
    """The answers to what the graph asks, or asked when its run died or failed; oldest first."""
    head = state.checkpoint
    if head is None:
        return []
    is_open = head.question is not None
    return [each for each in state.signals if each.parts and (is_open or each.sequence > head.sequence)]


def _values(signals: Sequence[Signal], wanted: Container[str] | None, decide: Decide) -> dict[str, Any]:
    """What each interrupt returns, by the names of the parts. The newest answer to a part counts."""
    found: dict[str, Any] = {}
    for signal in signals:
        found |= _values_of(signal, decide)
    return {name: value for name, value in found.items() if wanted is None or name in wanted}


def _values_of(signal: Signal, decide: Decide) -> dict[str, Any]:
    if signal.name != ANSWER:
        return dict.fromkeys(signal.parts, decide(signal))
    answer = signal.payload
    if isinstance(answer, dict) and answer and all(map(_INTERRUPT_ID.fullmatch, answer)):
        return {name: answer[name] for name in signal.parts if name in answer}
    if isinstance(answer, dict) and answer and answer.keys() <= set(signal.parts):
        return {name: answer[name] for name in signal.parts if name in answer}
    return dict.fromkeys(signal.parts[:1], answer)
