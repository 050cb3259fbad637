"""A sliding window over a log: the model sees few entries, and older versions keep the others.

    window = Window("messages", keep_last=50, summarise=fn, into="summary")
    thread.save(state, windows=[window], step=7)

If the log is longer than the window, the save passes the oldest entries to `summarise(old_summary, entries)`, stores
the result in a slot, and trims the log, all in the same version. The version before still has the entries:
`thread.log("messages").trimmed()` reads them. Entries that no version has yet are not trimmed before the next save.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from itertools import accumulate
from types import NoneType
from typing import Any

from stateward._frames import ends_at_the_caller
from stateward.arguments import instance

CHARACTERS_PER_TOKEN = 4

Summarise = Callable[[Any, list[Any]], Any]


def estimate_tokens(entry: Any) -> int:
    """Returns an estimate of the tokens in a text, or in an entry of a log as JSON: one token for four characters, as
    in English text with most models."""
    text = entry if isinstance(entry, str) else json.dumps(entry, default=str, ensure_ascii=False)
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)


@ends_at_the_caller
@dataclass(frozen=True)
class Window:
    """How much of a log is kept: the last `keep_last` entries, or the last entries that have at most `keep_tokens`
    tokens. If both are given, both limits hold.

    Trimming begins above `(1 + slack)` times the limit. Use slack for an expensive summariser: with a slack of 0.5, a
    window of 50 entries calls it once for every 25 entries. `into` is the slot of the summary; without `summarise`
    entries are only trimmed. With an AsyncClient, `summarise` may be a coroutine function. If `summarise` raises, the
    state is saved untrimmed, and the error is raised afterwards.
    """

    log: str
    keep_last: int | None = None
    keep_tokens: int | None = None
    summarise: Summarise | None = None
    into: str = "summary"
    slack: float = 0.0
    tokens: Callable[[Any], int] = estimate_tokens

    def __post_init__(self) -> None:
        if self.keep_last is None and self.keep_tokens is None:
            raise TypeError("a window needs keep_last, keep_tokens or both")
        try:
            is_below = any(each is not None and each < 0 for each in (self.keep_last, self.keep_tokens, self.slack))
        except TypeError:
            for name in ("keep_last", "keep_tokens"):
                instance(getattr(self, name), name, (int, NoneType), "a whole number")
            instance(self.slack, "slack", (int, float), "a number")
            raise
        if is_below:
            raise ValueError("keep_last, keep_tokens and slack must be 0 or more")

    def excess(self, entries: Sequence[Any]) -> int:
        """Returns how many of the oldest entries must be trimmed; 0 = none."""
        count = len(instance(entries, "entries", Sized, "a log or a list"))
        totals = [] if self.keep_tokens is None else list(accumulate(map(self.tokens, reversed(entries))))
        if not (self._is_over(count, self.keep_last) or (totals and self._is_over(totals[-1], self.keep_tokens))):
            return 0
        kept = count if self.keep_last is None else min(self.keep_last, count)
        if self.keep_tokens is not None:
            kept = min(kept, sum(total <= self.keep_tokens for total in totals))
        return count - kept

    def _is_over(self, count: int, limit: int | None) -> bool:
        return limit is not None and count > limit * (1 + self.slack)
