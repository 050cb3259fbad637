"""Answers with which runs of this process go on, until they are acknowledged.

`resume_command` gives an answer to a run, and notes it here under the uid of the thread. The saver sees in the pending
writes that LangGraph reads which task asks which part of the question. From what tasks write it learns which parts are
used: a task that ends, or asks something else, has used its part, and one that fails has not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

from stateward._io.forks import Lock
from stateward._naming import name_for
from stateward.langgraph._names import MAIN, namespace_of
from stateward.langgraph._telling import HANDLED, Told, name_of_rest
from stateward.v1 import checkpoint_pb2

RUNS_MAX = 10_000
"""How many threads are remembered with the answer that their run was given."""
_CONTROL = {ERROR, INTERRUPT, RESUME, HANDLED}
Writes = Sequence[tuple[str, Any]]


@dataclass
class Asked:
    """What a task asks."""

    ids: set[str]
    """Of its interrupts, as names of parts."""
    answers: int
    """How many answers the task has had."""
    is_root: bool


@dataclass
class Given:
    """An answer that a run was given."""

    signal_ids: tuple[str, ...]
    """Of the answer, and of earlier ones to questions that are over."""
    wait_id: str
    checkpoint: str
    """Name of the checkpoint whose tasks asked."""
    values: dict[str, Any]
    """What each part that it answers gets. LangGraph has the same dict."""
    parts: frozenset[str] = frozenset()
    """Names of these parts."""
    left: set[str] = field(default_factory=set)
    """Those that no task has used yet."""
    asked: dict[str, Asked] = field(default_factory=dict)
    """By the ids of the tasks that have not ended."""
    is_spoilt: bool = False
    """A task has used its part and asks something else, to which the answer must not be given again."""
    is_used: bool = False
    """Effects have acknowledged it."""

    def __post_init__(self) -> None:
        self.parts, self.left = frozenset(self.values), set(self.values)

    def note(self, branch: str, writes: Iterable[tuple[str, str, Any]]) -> None:
        """Learns from the pending writes of a checkpoint what its tasks ask."""
        found, ended = dict[str, dict[str, Any]](), set[str]()
        for task_id, channel, value in writes:
            found.setdefault(task_id, {})[channel] = value
            if channel not in _CONTROL:
                ended.add(task_id)
        for task_id, wrote in found.items():
            if INTERRUPT in wrote and task_id not in ended:
                ids = _ids(wrote[INTERRUPT], task_id)
                self.asked[task_id] = Asked(ids, _count(wrote.get(RESUME)), branch == MAIN)
        if branch != MAIN:
            self._take_back(branch, [self.asked[each] for each in found if each in self.asked])

    def _take_back(self, branch: str, inner: list[Asked]) -> None:
        """Takes answers back that the tasks of an inner graph have used already. The run died before the outer graph
        learned of it. LangGraph would give the task's first answer to its next question, too."""
        outer = self.asked.get(_task_around(branch))
        if outer is not None and any(each.answers for each in inner):
            for name in outer.ids.difference(*(each.ids for each in inner)):
                self.values.pop(name, None)
                self.left.discard(name)

    def take(self, branch: str, task_id: str, writes: Writes, told: Told | None) -> Taken:
        """Learns from what a task writes which parts are used. `told`: what the writes tell otherwise."""
        wrote, asked = dict(writes), self.asked.get(task_id)
        if ERROR in wrote and HANDLED not in wrote:
            kept = [each for each in writes if each[0] != RESUME] if asked is not None else writes
            is_failure = told is not None and told.status == checkpoint_pb2.STATUS_FAILED
            if told is not None and is_failure and (self.left or self.is_spoilt):
                told = replace(told, wait_id=self.wait_id)
            return Taken(kept, told)
        if asked is None or branch != MAIN:
            return Taken(writes, told)
        if INTERRUPT in wrote:
            again = _ids(wrote[INTERRUPT], task_id)
            used = set(asked.ids) if _count(wrote.get(RESUME)) > asked.answers else asked.ids - again
            self.is_spoilt = self.is_spoilt or bool(used & self.left)
            self.asked[task_id] = Asked(again, _count(wrote.get(RESUME)), is_root=True)
        else:
            used = asked.ids
            del self.asked[task_id]
            told = told or Told(checkpoint_pb2.STATUS_RUNNING, asker=name_for(task_id))
        self.left -= used
        rest = set[str]().union(*(each.ids for each in self.asked.values() if each.is_root)) - self.parts
        if told is not None and told.status == checkpoint_pb2.STATUS_RUNNING:
            # The wait id stays, unless only parts are left that the answer is not about. Tasks write at the same time,
            # and who asks something new gives its own: this one must never come back behind it.
            wait_id = name_of_rest(self.checkpoint, task_id) if rest and not self.left else ""
            told = replace(told, wait_id=wait_id)
        if self.left or not rest or self.is_used:
            return Taken(writes, told)  # the next checkpoint acknowledges the answer
        self.is_used = True
        return Taken(writes, told, self.signal_ids)


@dataclass(frozen=True, slots=True)
class Taken:
    """What is written of the writes of a task, and what they tell."""

    writes: Writes
    told: Told | None
    signal_ids: Sequence[str] = ()
    """The signals that the call acknowledges."""


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


def _count(answers: Any) -> int:
    return len(answers) if isinstance(answers, list) else int(answers is not None)


ANSWERS = Answers()
