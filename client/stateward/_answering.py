"""How adapters take a person's answer to what their framework asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stateward._async.thread import AsyncThread
from stateward._keeping import keep, kept
from stateward._telling import waiting
from stateward.changes import Change, DeleteSlot, SetSlot
from stateward.errors import VersionMismatch
from stateward.signals import ANSWER, APPROVE, Signal
from stateward.state import State

ANSWERS = "answers"
"""The slot with the answers to some parts of a question, while the others are still asked."""


@dataclass(frozen=True)
class Decision:
    """The answer to one thing that was asked."""

    value: Any
    """True for an approval, False for a rejection, else the value of the answer."""
    note: Any = None
    """The note of an approval, or the reason of a rejection."""

    @property
    def message(self) -> str | None:
        """The note, if it is a text."""
        return self.note if isinstance(self.note, str) and self.note else None


@dataclass(frozen=True)
class Answered:
    """The answers to all parts of a question, and the state that asked it."""

    state: State
    signal: Signal
    decisions: dict[str, Decision]
    """By the names of the parts."""

    @property
    def edits(self) -> list[Change]:
        """What the save that acknowledges the answer changes besides."""
        return [DeleteSlot(ANSWERS)] if ANSWERS in self.state.slots else []


def decisions_of(signal: Signal) -> dict[str, Decision]:
    """Returns the answers in a signal, by the names of the parts."""
    if signal.name != ANSWER:
        return dict.fromkeys(signal.parts, Decision(signal.name == APPROVE, signal.payload))
    answer = signal.payload
    if isinstance(answer, dict) and answer and answer.keys() <= set(signal.parts):
        return {name: Decision(value) for name, value in answer.items()}
    return dict.fromkeys(signal.parts[:1], Decision(answer))


async def find_answers(thread: AsyncThread, slots: Sequence[str] = ()) -> Answered | None:
    """Returns the answers to all that a thread asks, with these slots of its state; None = some are missing.

    A framework goes on with all answers at once. So the answer to some parts is kept in the slot ANSWERS, in the save
    that acknowledges it and asks for the others.
    """
    while True:
        state = await thread.hydrate(slots=[ANSWERS, *slots], logs=[])
        signal, question = state.answer, state.question
        if signal is None or question is None:
            return None
        before = {name: Decision(**each) for name, each in kept(state.slots.get(ANSWERS, {})).items()}
        found = before | decisions_of(signal)
        rest = [(part.name, part.prompt, part.schema) for part in question.parts if part.name not in found]
        if not rest:
            return Answered(state, signal, found)
        edits = [SetSlot(ANSWERS, keep({name: asdict(each) for name, each in found.items()}, ANSWERS))]
        try:
            await thread.apply(edits, parent=state.checkpoint, ack=[signal], **waiting(rest))
        except VersionMismatch:
            continue  # somebody added to the thread meanwhile
        return None
