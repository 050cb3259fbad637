"""The prompt with which a restarted agent goes on: what its state knows for a fact, within a budget of tokens.

Items go in whole or not at all, the most important first, until the budget is full: goal, where the work stands,
unfinished tool calls, pending signals, plan, to-dos, summary, decisions, facts, and then messages and results of tool
calls by turns. So when the budget shrinks, the oldest messages and results go first and the goal last. One item that
would take more than half of the budget alone, the goal excepted, is left out in favour of all others. A result is
shortened, and shown once: where a message answers the call, the message says it. What was left out, and what the state
was read without, is said in the last line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, zip_longest
from typing import Any

from stateward.agent._sections import Entry, Section, Sections
from stateward.state import State
from stateward.window import estimate_tokens

DEFAULT_BUDGET_TOKENS = 4000

Remark = Callable[[list[tuple[Section, int]]], str]
"""Says what is missing: of each section, how many items."""


def build_resume_context(
    state: State,
    budget: int = DEFAULT_BUDGET_TOKENS,
    tokens: Callable[[str], int] = estimate_tokens,
    *,
    signals: Iterable[Any] | None = None,
) -> str:
    """Markdown that tells a fresh model where the work stands; `tokens(text) <= budget` for the whole of it.

    `tokens` counts those of a text, best with the model's own tokenizer. `signals` are those that wait for the agent;
    None = `state.signals`, and an empty list = none. The same state gives the same text. Slots and logs that hold other
    values than `stateward.agent.v1` has are shown as they are; scratch and ephemeral slots are never shown. Changes
    nothing in the state. Empty where the budget is too small for anything.
    """
    if budget < 0:
        raise ValueError(f"budget is below 0: {budget}")
    making = Sections(state, list(state.signals if signals is None else signals), budget, tokens)
    sections = making.all()
    ranked = sorted(sections, key=lambda each: each.rank)
    goal = ranked[0].entries
    others = [entry for entry in _by_importance(ranked[1:]) if making.is_moderate(entry)]
    remark_alone = ""
    for chosen in ([*goal, *others], others):  # the second where the goal alone is too much
        for remark in (_what_is_missing, _how_much_is_missing):
            text, count = _fill(sections, chosen, remark, budget, tokens)
            if count:
                return text
            remark_alone = remark_alone or text
    return remark_alone


def _by_importance(ranked: list[Section]) -> Iterator[Entry]:
    """Section by section; those with one rank by turns, so that none of them starves the other."""
    for _, equals in groupby(ranked, key=lambda each: each.rank):
        for turn in zip_longest(*(section.entries for section in equals)):
            yield from (entry for entry in turn if entry is not None)


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
    said = []
    for section, left in missing:
        said += [f"{left:,} {section.one if left == 1 else section.many}"] if left else []
        said += [section.unread] if section.unread else []
    return f"Left out of this text, and kept in the state: {', '.join(said)}."


def _how_much_is_missing(missing: list[tuple[Section, int]]) -> str:
    """Where not even the goal fits beside the other line."""
    unread = ", and what was not read" if any(section.unread for section, _ in missing) else ""
    return f"Left out: {sum(left for _, left in missing):,} items{unread}."
