"""The prompt with which a restarted agent goes on: what its state knows for a fact, within a budget of tokens.

Items go in whole or not at all, the most important first, until the budget is full: goal, where the work stands,
unfinished tool calls, pending signals, plan, to-dos, summary, decisions, facts, messages. So when the budget shrinks,
the oldest messages go first and the goal last. One item that would take more than half of the budget alone, the goal
excepted, is left out in favour of all others. What was left out is said in the last line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from stateward import values
from stateward._log import Log
from stateward.agent import _render
from stateward.agent._entries import OPEN
from stateward.agent._items import is_over
from stateward.agent.v1 import agent_pb2 as pb
from stateward.models import Status
from stateward.state import State

DEFAULT_BUDGET_TOKENS = 4000
CHARACTERS_PER_TOKEN = 4


def estimate_tokens(text: str) -> int:
    """Four characters a token: what English text takes with most models, and no more than a guess."""
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)


def build_resume_context(
    state: State,
    budget: int = DEFAULT_BUDGET_TOKENS,
    tokens: Callable[[str], int] = estimate_tokens,
    *,
    signals: Iterable[Any] = (),
) -> str:
    """Markdown that tells a fresh model where the work stands; `tokens(text) <= budget` for the whole of it.

    `tokens` counts those of a text, best with the model's own tokenizer. `signals` are those that wait for the agent.
    The same state gives the same text. Slots and logs that hold other values than `stateward.agent.v1` has are shown
    as they are; scratch and ephemeral slots are never shown. Changes nothing in the state. Empty where the budget is
    too small for anything.
    """
    if budget < 0:
        raise ValueError(f"budget is below 0: {budget}")
    sections = _sections(state, list(signals), budget, tokens)
    ranked = sorted(sections, key=lambda each: each.rank)
    goal = ranked[0].entries
    others = [entry for section in ranked[1:] for entry in section.entries if entry.cost * 2 <= budget]
    remark_alone = ""
    for chosen in ([*goal, *others], others):  # the second where the goal alone is too much
        for remark in (_what_is_missing, _how_much_is_missing):
            text, count = _fill(sections, chosen, remark, budget, tokens)
            if count:
                return text
            remark_alone = remark_alone or text
    return remark_alone


def _fill(
    sections: list[Section], chosen: list[Entry], remark: Remark, budget: int, tokens: Callable[[str], int]
) -> tuple[str, int]:
    """The text with as many of the chosen items as fit, and their number."""
    low, high = 0, len(chosen)
    while low < high:
        middle = (low + high + 1) // 2
        if tokens(_write(sections, chosen[:middle], remark)) <= budget:
            low = middle
        else:
            high = middle - 1
    for count in range(low, -1, -1):  # a tokenizer may count less for more text
        text = _write(sections, chosen[:count], remark)
        if tokens(text) <= budget:
            return text, count
    return "", 0


@dataclass(eq=False)
class Entry:
    """One item of a section."""

    text: str
    cost: int
    place: int
    """Where it stands in its section."""


@dataclass(eq=False)
class Section:
    """Items of one kind, the most important first. Sections are written in the order in which they are made."""

    title: str
    rank: int
    """0 is the most important."""
    one: str
    """What one item is called when it is left out."""
    many: str
    entries: list[Entry] = field(default_factory=list)
    more: int = 0
    """Further items that cannot fit, and were not looked at."""
    unread: bool = False
    """Whether the state was read without them."""


Remark = Callable[[list[tuple[Section, int]]], str]


def _write(sections: list[Section], chosen: list[Entry], remark: Remark) -> str:
    taken = set(map(id, chosen))
    blocks, missing = [], []
    for section in sections:
        entries = sorted((each for each in section.entries if id(each) in taken), key=lambda each: each.place)
        if entries:
            blocks.append(f"## {section.title}\n\n" + "\n".join(each.text for each in entries))
        left = len(section.entries) - len(entries) + section.more
        if left or section.unread:
            missing.append((section, left))
    if missing:
        blocks.append(remark(missing))
    return "\n\n".join(blocks) + "\n" if blocks else ""


def _what_is_missing(missing: list[tuple[Section, int]]) -> str:
    said = [
        f"all {section.many} (not read)" if section.unread else f"{left:,} {section.one if left == 1 else section.many}"
        for section, left in missing
    ]
    return f"Left out of this text, and kept in the state: {', '.join(said)}."


def _how_much_is_missing(missing: list[tuple[Section, int]]) -> str:
    """Where not even the goal fits beside the other line."""
    return f"Left out: {sum(left for _, left in missing):,} items."


def _sections(state: State, signals: list[Any], budget: int, tokens: Callable[[str], int]) -> list[Section]:
    """All that may be written, in the order in which it is written."""

    def make(title: str, rank: int, names: str, texts: Iterator[tuple[int, str]], total: int) -> Section:
        one, many = names.split("/")
        section = Section(title, rank, one, many)
        spent = 0
        for place, text in texts:
            cost = tokens(text)
            section.entries.append(Entry(text, cost, place))
            spent += cost if cost * 2 <= budget else 0
            if spent > budget:  # what comes after can never fit
                break
        section.more = total - len(section.entries)
        return section

    def slot(title: str, rank: int, names: str, name: str, render: Callable[[Any], str]) -> Section:
        texts = [render(_peek_slot(state, name))] if name in state.slots else []
        return make(title, rank, names, iter(enumerate(texts)), len(texts))

    def listed(
        title: str, rank: int, names: str, items: list[tuple[int, Any]], render: Callable[[Any], str]
    ) -> Section:
        return make(title, rank, names, ((place, render(value)) for place, value in items), len(items))

    def log(title: str, rank: int, names: str, name: str, render: Callable[[Any], str]) -> Section:
        entries = state.logs[name]
        if not entries._readable:
            unread = make(title, rank, names, iter(()), 0)
            unread.unread = True
            return unread
        places = reversed(range(len(entries)))
        section = make(title, rank, names, ((at, render(_peek_entry(entries, at))) for at in places), len(entries))
        section.more += entries.first_index if entries._tail else 0
        return section

    calls = list(_peek_all(state.logs["tool_calls"]))
    known = {call.id: call for _, call in calls if isinstance(call, pb.ToolCall)}
    unfinished = [each for each in calls if not isinstance(each[1], pb.ToolCall) or each[1].status in OPEN]
    steps = list(enumerate(_items(state, "agent/plan")))
    steps.sort(key=lambda each: isinstance(each[1], pb.PlanStep) and is_over(each[1]))
    standing = _standing(state)
    return [
        slot("Goal", 0, "goal/goals", "agent/goal", _render.goal),
        make("Where the work stands", 1, "line/lines", iter(enumerate(standing)), len(standing)),
        slot("Summary so far", 6, "summary/summaries", "agent/summary", _render.summary),
        listed("Plan", 4, "plan step/plan steps", steps, _render.step),
        listed("Open to-dos", 5, "to-do/to-dos", list(enumerate(_items(state, "agent/todos"))), _render.todo),
        listed("Unfinished tool calls", 2, "unfinished tool call/unfinished tool calls", unfinished, _render.tool_call),
        listed("Pending signals", 3, "signal/signals", list(enumerate(signals)), _render.signal),
        log("Decisions", 7, "decision/decisions", "decisions", _render.decision),
        log("Facts", 8, "fact/facts", "facts", _render.fact),
        log("Last messages", 9, "message/messages", "messages", lambda value: _render.message(value, known)),
    ]


def _standing(state: State) -> list[str]:
    lines = []
    if state.checkpoint is not None:
        status = state.checkpoint.status
        word = status.name.lower() if isinstance(status, Status) else str(status)
        step = "" if state.checkpoint.step is None else f", step {state.checkpoint.step}"
        detail = f": {state.checkpoint.status_detail}" if state.checkpoint.status_detail else ""
        lines.append(_render.item(f"saved as version {state.checkpoint.version}{step}, {word}{detail}"))
    if "agent/model" in state.slots:
        lines.append(_render.item(_render.model(_peek_slot(state, "agent/model"))))
    return lines


def _items(state: State, name: str) -> list[Any]:
    """Items that have slots of their own, in order. A slot that holds another kind of value is one item."""
    if name not in state.slots:
        return []
    order = _peek_slot(state, name)
    if not isinstance(order, pb.ItemOrder):
        return order if isinstance(order, list) else [order]
    places = (f"{name}/{id_}" for id_ in order.ids)
    return [_peek_slot(state, place) for place in places if place in state.slots]


# To look at a value through the state would make the next save encode and compare it. Here nothing is changed.


def _peek_slot(state: State, name: str) -> Any:
    slots = state.slots
    if name in slots._watched:
        return slots._watched[name]
    return _decoded(slots._stored[name], f"slots.{name}", slots._gate.blobs)


def _peek_entry(log: Log, position: int) -> Any:
    if position >= len(log._stored) or log._first + position in log._watched:
        return log[position]
    return _decoded(log._stored[position], f"logs.{log.name}[{position}]", log._gate.blobs)


def _peek_all(log: Log) -> Iterator[tuple[int, Any]]:
    """The newest first."""
    if log._readable:
        for position in reversed(range(len(log))):
            yield position, _peek_entry(log, position)


def _decoded(value: Any, path: str, blobs: Any) -> Any:
    """What cannot be decoded is shown by its size: a prompt must not fail because of one value."""
    try:
        return values.decode(value, path, blobs)
    except ValueError:
        return values.RawValue(value.media_type, value.data)
