"""The sections of a resume prompt: their items as text, and the parts that the state was read without."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from stateward.agent import _peek, _render
from stateward.agent._entries import OPEN
from stateward.agent._fields import is_unread
from stateward.agent._items import is_over
from stateward.agent.v1 import agent_pb2 as pb
from stateward.models import Status
from stateward.state import State

Texts = Iterable[tuple[int, str]]
"""Items as text, each with its position in its section, the most important first."""


@dataclass(eq=False)
class Entry:
    """One item of a section."""

    text: str
    cost: int
    place: int
    """Position of the item in its section."""


@dataclass(eq=False)
class Section:
    """Items of one kind, the most important first. Sections are written in the order in which they are made."""

    title: str
    rank: int
    """0 is the most important; items of sections with one rank take turns."""
    one: str
    """Name of one item, for the remark about left-out items."""
    many: str
    entries: list[Entry] = field(default_factory=list)
    more: int = 0
    """Number of further items, which cannot fit and were not rendered."""
    unread: str = ""
    """Text about the parts that the state was read without; empty = none."""


class Sections:
    """Makes the sections of one prompt."""

    def __init__(self, state: State, signals: list[Any], budget: int, tokens: Callable[[str], int]) -> None:
        self._state, self._signals, self._budget, self._tokens = state, signals, budget, tokens

    def all(self) -> list[Section]:
        """Returns all sections, in the order in which they are written."""
        calls = list(_peek.newest_first(self._state.logs["tool_calls"]))
        messages = self._messages(calls)
        return [
            self._slot("Goal", 0, "goal/goals", "agent/goal", _render.goal),
            self._standing(),
            self._slot("Summary so far", 6, "summary/summaries", "agent/summary", _render.summary),
            self._items("Plan", 4, "plan step/plan steps", "agent/plan", _render.step),
            self._items("Open to-dos", 5, "to-do/to-dos", "agent/todos", _render.todo),
            self._unfinished(calls),
            self._pending_signals(),
            self._log("Decisions", 7, "decision/decisions", "decisions", _render.decision),
            self._log("Facts", 8, "fact/facts", "facts", _render.fact),
            messages,
            self._results(calls, messages),
        ]

    def is_moderate(self, entry: Entry) -> bool:
        """Whether an item takes at most half of the budget: a larger one is left out."""
        return entry.cost * 2 <= self._budget

    def _make(self, title: str, rank: int, names: str, texts: Texts, total: int, unread: str = "") -> Section:
        one, many = names.split("/")
        section = Section(title, rank, one, many, unread=unread)
        spent = 0
        for place, text in texts:
            entry = Entry(text, self._tokens(text), place)
            section.entries.append(entry)
            spent += entry.cost if self.is_moderate(entry) else 0
            if spent > self._budget:  # later items can never fit
                break
        section.more = total - len(section.entries)
        return section

    def _slot(self, title: str, rank: int, names: str, name: str, render: Callable[[Any], str]) -> Section:
        texts = [render(_peek.slot(self._state, name))] if name in self._state.slots else []
        unread = f"{title.lower()} (not read)" if is_unread(self._state, name) else ""
        return self._make(title, rank, names, enumerate(texts), len(texts), unread)

    def _items(self, title: str, rank: int, names: str, name: str, render: Callable[[Any], str]) -> Section:
        items = list(enumerate(_peek.items(self._state, name)))
        # Ended steps are left out first.
        items.sort(key=lambda each: isinstance(each[1], pb.PlanStep) and is_over(each[1]))
        texts = ((place, render(value)) for place, value in items)
        return self._make(title, rank, names, texts, len(items), self._unread_items(names, name))

    def _unread_items(self, names: str, name: str) -> str:
        one, many = names.split("/")
        if is_unread(self._state, name):
            return f"{many} (not read)"
        order = _peek.slot(self._state, name) if name in self._state.slots else None
        ids = order.ids if isinstance(order, pb.ItemOrder) else ()
        count = sum(is_unread(self._state, f"{name}/{id_}") for id_ in ids)
        return f"{count:,} {one if count == 1 else many} (not read)" if count else ""

    def _log(self, title: str, rank: int, names: str, name: str, render: Callable[[Any], str]) -> Section:
        log = self._state.logs[name]
        if not log._readable:
            return self._make(title, rank, names, (), 0, self._unread_log(names, name))
        texts = ((at, render(value)) for at, value in _peek.newest_first(log))
        hidden = log.first_index if log._tail else 0
        return self._make(title, rank, names, texts, hidden + len(log))

    def _unread_log(self, names: str, name: str) -> str:
        """For sections that show some entries of a log: the number of unread entries is unknown."""
        log, many = self._state.logs[name], names.split("/")[1]
        if not log._readable:
            return f"all {many} (not read)"
        return f"{many} before index {log.first_index:,} (not read)" if log._tail and log.first_index else ""

    def _messages(self, calls: list[tuple[int, Any]]) -> Section:
        known = {call.id: call for _, call in calls if isinstance(call, pb.ToolCall)}

        def render(value: Any) -> str:
            return _render.message(value, known)

        return self._log("Last messages", 9, "message/messages", "messages", render)

    def _unfinished(self, calls: list[tuple[int, Any]]) -> Section:
        names = "unfinished tool call/unfinished tool calls"
        # A value of another type may not have ended.
        found = [each for each in calls if not isinstance(each[1], pb.ToolCall) or each[1].status in OPEN]
        texts = ((place, _render.tool_call(value)) for place, value in found)
        unread = self._unread_log(names, "tool_calls")
        return self._make("Unfinished tool calls", 2, names, texts, len(found), unread)

    def _results(self, calls: list[tuple[int, Any]], messages: Section) -> Section:
        """Results of calls, without those that a shown message already contains."""
        names = "tool result/tool results"
        log = self._state.logs["messages"]
        shown = [each.place for each in messages.entries if self.is_moderate(each)]
        answered = {_render.answered_call(_peek.entry(log, place)) for place in shown} - {""}
        found = [
            (place, call)
            for place, call in calls
            if isinstance(call, pb.ToolCall) and _render.has_outcome(call) and call.id not in answered
        ]
        texts = ((place, _render.tool_result(call, self._kept)) for place, call in found)
        unread = self._unread_log(names, "tool_calls")
        return self._make("Recent tool results", messages.rank, names, texts, len(found), unread)

    def _kept(self, name: str) -> Any:
        return _peek.slot(self._state, name) if name in self._state.slots else f"[slot {name}]"

    def _pending_signals(self) -> Section:
        texts = ((place, _render.signal(value)) for place, value in enumerate(self._signals))
        return self._make("Pending signals", 3, "signal/signals", texts, len(self._signals))

    def _standing(self) -> Section:
        lines = [*self._progress()]
        if "agent/model" in self._state.slots:
            lines.append(_render.item(_render.model(_peek.slot(self._state, "agent/model"))))
        unread = "model (not read)" if is_unread(self._state, "agent/model") else ""
        return self._make("Where the work stands", 1, "line/lines", enumerate(lines), len(lines), unread)

    def _progress(self) -> Iterator[str]:
        found = self._state.checkpoint
        if found is not None:
            word = found.status.name.lower() if isinstance(found.status, Status) else str(found.status)
            step = "" if found.step is None else f", step {found.step}"
            detail = f": {found.status_detail}" if found.status_detail else ""
            yield _render.item(f"saved as version {found.version}{step}, {word}{detail}")
