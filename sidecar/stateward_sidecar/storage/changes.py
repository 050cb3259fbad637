"""Which threads the last batches changed: so that a reader can tell damage from a commit in between."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# Batches of which is remembered what they changed.
KEPT = 256


class Changes:
    """Changed by the writer, read by anybody. Counts batches: ``begun`` once their commit begins, ``over`` once memory
    shows them or they came to nothing."""

    def __init__(self) -> None:
        self.begun = self.over = 0
        self._changed: list[tuple[Any, ...]] = [()] * KEPT  # by number of the batch: the keys of its drafts

    def begin(self, keys: Iterable[tuple[str, str]]) -> None:
        """A commit begins: of drafts of these threads, by namespace and name."""
        self._changed[self.begun % KEPT] = tuple(keys)
        self.begun += 1

    def end(self) -> None:
        """It is over."""
        self.over = self.begun

    def has_changed(self, thread: str | None, since: int) -> bool:
        """Whether a batch that was not ``over`` then may have changed a thread of this name (None: any thread)."""
        begun = self.begun
        changed = [self._changed[number % KEPT] for number in range(since, min(begun, since + KEPT))]
        # With so many batches since, the next one may be writing over the first of them already, before it counts.
        if self.begun - since >= KEPT:
            return True
        # A batch without drafts may have changed anything.
        return any(thread is None or not keys or any(key[1] == thread for key in keys) for keys in changed)
