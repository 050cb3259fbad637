"""A sliding window over a log: what a model is shown stays small, and what slid out stays readable.

    window = Window("messages", keep_last=50, summarise=fn, into="summary")
    thread.save(state, windows=[window], step=7)

If the log is longer than the window, the save hands the oldest entries to `summarise(old_summary, entries)`, puts the
result into a slot, and trims the log, all in the same version. The version before still has the entries:
`thread.log("messages").trimmed()` reads them back. Only entries that some version has are trimmed; newer ones wait for
the next save.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

CHARACTERS_PER_TOKEN = 4

Summarise = Callable[[Any, list[Any]], Any]


def estimate_tokens(entry: Any) -> int:
    """Returns about how many tokens a text, or an entry of a log as JSON, takes: one for every four characters, which
    is what English text takes with most models."""
    text = entry if isinstance(entry, str) else json.dumps(entry, default=str, ensure_ascii=False)
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)


@dataclass(frozen=True)
class Window:
    """How much of a log is kept: the last `keep_last` entries, or the last that take `keep_tokens`, or both.

    Trimming begins above `(1 + slack)` times that: with a summariser that costs something, a slack of 0.5 has it called
    for every 25 entries of a window of 50, and not for each. `into` is the slot of the summary; without `summarise`
    entries are only trimmed. With an AsyncClient `summarise` may be a coroutine function. Where it raises, the state is
    saved untrimmed, and its error is raised afterwards.
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
            raise TypeError("a window needs keep_last or keep_tokens")
        if any(limit is not None and limit < 0 for limit in (self.keep_last, self.keep_tokens)) or self.slack < 0:
            raise ValueError("keep_last, keep_tokens and slack are not below 0")

    def excess(self, entries: Sequence[Any]) -> int:
        """How many of the oldest entries are to go; 0 = none."""
        if not (self._is_over(len(entries), self.keep_last) or self._has_too_many_tokens(entries)):
            return 0
        kept = len(entries) if self.keep_last is None else min(self.keep_last, len(entries))
        if self.keep_tokens is not None:
            kept = min(kept, self._fitting(entries, self.keep_tokens))
        return len(entries) - kept

    def _is_over(self, count: int, limit: int | None) -> bool:
        return limit is not None and count > limit * (1 + self.slack)

    def _has_too_many_tokens(self, entries: Iterable[Any]) -> bool:
        return self.keep_tokens is not None and self._is_over(sum(map(self.tokens, entries)), self.keep_tokens)

    def _fitting(self, entries: Sequence[Any], limit: int) -> int:
        total = 0
        for count, entry in enumerate(reversed(entries)):
            total += self.tokens(entry)
            if total > limit:
                return count
        return len(entries)
