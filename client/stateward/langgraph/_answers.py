"""Answers with which runs of this process go on, until they are acknowledged.

`resume_command` gives answers to a run, and notes them here under the uid of the thread. When a task has ended or asks
something else, its part of the question is over, which the daemon is told with the task's writes. Signals whose parts
are all over are used; the next checkpoint acknowledges those that are left, because the step that asked is over.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

from stateward._io.forks import Lock
from stateward._naming import name_for
from stateward.langgraph._names import MAIN, namespace_of
from stateward.langgraph._telling import HANDLED, Told
from stateward.v1 import checkpoint_pb2

RUNS_MAX = 10_000
"""How many threads are remembered with the answer that their run was given."""
_CONTROL = {ERROR, INTERRUPT, RESUME, HANDLED}
Writes = Sequence[tuple[str, Any]]


@dataclass
class Given:
    """The answers that a run was given."""

    signal_ids: tuple[str, ...]
    """Of the answers, and of earlier ones to questions that are over."""
    checkpoint: str
    """Name of the checkpoint whose tasks asked."""
    values: dict[str, Any]
    """What each part that they answer gets. LangGraph has the same dict."""
    asked: dict[str, set[str]] = field(default_factory=dict)
    """What each task asks, as names of parts."""

    def note(self, branch: str, writes: Iterable[tuple[str, str, Any]]) -> None:
        """Learns from the pending writes of a checkpoint what its tasks ask."""
        found = dict[str, dict[str, Any]]()
        for task_id, channel, value in writes:
            found.setdefault(task_id, {})[channel] = value
        open_ids, has_answers = set[str](), False
        for task_id, wrote in found.items():
            if INTERRUPT in wrote and wrote.keys() <= _CONTROL:
                self.asked[task_id] = _ids(wrote[INTERRUPT], task_id)
                open_ids |= self.asked[task_id]
                has_answers = has_answers or bool(wrote.get(RESUME))
        if branch != MAIN and has_answers:
            self._take_back(branch, open_ids)

    def _take_back(self, branch: str, open_ids: set[str]) -> None:
        """Takes answers back that the tasks of an inner graph have used already. The run died before the outer graph
        learned of it. LangGraph would give the task's first answer to its next question, too."""
        for name in self.asked.get(_task_around(branch), set()).difference(open_ids):
            self.values.pop(name, None)

    def take(self, branch: str, task_id: str, writes: Writes, told: Told | None) -> Taken:
        """Returns what is stored of the writes of a task, and what they tell of its part of the question."""
        wrote = {channel for channel, _ in writes}
        if ERROR in wrote and HANDLED not in wrote:  # it has used no answer: it gets the same one again
            return Taken([each for each in writes if each[0] != RESUME], told)
        if told is None and branch == MAIN and not wrote & {INTERRUPT, ERROR}:
            told = Told(checkpoint_pb2.WORK_STATUS_RUNNING, asker=name_for(task_id))
        return Taken(writes, told)


@dataclass(frozen=True, slots=True)
class Taken:
    """What is written of the writes of a task, and what they tell."""

    writes: Writes
    told: Told | None


class Answers:
    """The answers that runs of this process were given, by the uids of their threads. Safe for threads."""

    def __init__(self, limit: int = RUNS_MAX) -> None:
        self._lock, self._limit = Lock(), limit
        self._given: OrderedDict[str, Given] = OrderedDict()

    def give(self, uid: str, given: Given) -> None:
        """Notes an answer, in place of one that was given before."""
        with self._lock:
            self._given[uid] = given
            self._given.move_to_end(uid)
            if len(self._given) > self._limit:
                self._given.popitem(last=False)

    def note(self, uid: str, branch: str, writes: Iterable[tuple[str, str, Any]]) -> None:
        """As `Given.note`, if the thread's run was given an answer."""
        if self._given:
            with self._lock:
                if (given := self._given.get(uid)) is not None:
                    given.note(branch, writes)

    def take(self, uid: str, branch: str, task_id: str, writes: Writes, told: Told | None) -> Taken:
        """As `Given.take`."""
        if self._given:
            with self._lock:
                if (given := self._given.get(uid)) is not None:
                    return given.take(branch, task_id, writes, told)
        return Taken(writes, told)

    def end(self, uid: str, branch: str, parent: str) -> tuple[str, ...]:
        """Returns the signals that a checkpoint made from `parent` acknowledges: the step that asked is over."""
        if not self._given or branch != MAIN:
            return ()
        with self._lock:
            given = self._given.get(uid)
            return given.signal_ids if given is not None and given.checkpoint == parent else ()

    def forget(self, uid: str, signal_ids: Sequence[str]) -> None:
        """Forgets an answer that a checkpoint has acknowledged."""
        with self._lock:
            given = self._given.get(uid)
            if given is not None and given.signal_ids == signal_ids:
                del self._given[uid]


def _ids(interrupts: Any, task_id: str) -> set[str]:
    """The names under which the interrupts of a task are asked."""
    found = interrupts if isinstance(interrupts, list | tuple) else [interrupts]
    return {name_for(str(getattr(each, "id", "") or task_id)) for each in found}


def _task_around(branch: str) -> str:
    """The task in which an inner graph runs; empty = not known."""
    segments = (namespace_of(branch) or "").split("|")
    return next((each.rpartition(":")[2] for each in reversed(segments) if ":" in each), "")


ANSWERS = Answers()
