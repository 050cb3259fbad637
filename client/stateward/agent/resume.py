"""The prompt with which a restarted agent continues: the contents of its state, within a budget of tokens.

The prompt contains whole items only, the most important first, until the budget is full: goal, progress, unfinished
tool calls, pending signals, plan, to-dos, summary, decisions, facts, and then messages and tool results alternately. So
a smaller budget drops the oldest messages and results first, and the goal last. An item other than the goal that would
take more than half of the budget is left out. A result is shortened, and appears once: if a message answers the call,
only the message is shown. The last line lists what was left out and what the state was read without.
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
"""Returns the remark about what is missing, from the number of missing items of each section."""


def build_resume_context(
    state: State,
    budget: int = DEFAULT_BUDGET_TOKENS,
    tokens: Callable[[str], int] = estimate_tokens,
    *,
    signals: Iterable[Any] | None = None,
) -> str:
    """Returns Markdown that tells a new model the state of the work, with `tokens(text) <= budget`.

    `tokens` counts the tokens of a text, best with the model's own tokenizer. `signals` are the signals that wait for
    the agent; None = `state.signals`, an empty list = none. The same state gives the same text. Values of types other
    than those of `stateward.agent.v1` are shown as they are; scratch and ephemeral slots are never shown. The function
    does not change the state. The text is empty if the budget is too small for any item.
    """
    if budget < 0:
        raise ValueError(f"budget is below 0: {budget}")
    making = Sections(state, list(state.signals if signals is None else signals), budget, tokens)
    sections = making.all()
    ranked = sorted(sections, key=lambda each: each.rank)
    goal = ranked[0].entries
    others = [entry for entry in _by_importance(ranked[1:]) if making.is_moderate(entry)]
    remark_alone = ""
    for chosen in ([*goal, *others], others):  # the second if the goal alone is too large
        for remark in (_what_is_missing, _how_much_is_missing):
            text, count = _fill(sections, chosen, remark, budget, tokens)
            if count:
                return text
            remark_alone = remark_alone or text
    return remark_alone


def _by_importance(ranked: list[Section]) -> Iterator[Entry]:
    """Yields the items section by section; sections with the same rank take turns, so that none is starved."""
    for _, equals in groupby(ranked, key=lambda each: each.rank):
        for turn in zip_longest(*(section.entries for section in equals)):
            yield from (entry for entry in turn if entry is not None)


def _fill(
    sections: list[Section], chosen: list[Entry], remark: Remark, budget: int, tokens: Callable[[str], int]
) -> tuple[str, int]:
    """Returns the text with as many of the chosen items as fit, and their number."""
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
    """The short remark, for a budget in which no item fits beside the long one."""
    unread = ", and what was not read" if any(section.unread for section, _ in missing) else ""
    return f"Left out: {sum(left for _, left in missing):,} items{unread}."
