"""Which threads the last batches changed, so that a reader can tell damage from a commit that came in between."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# For how many batches the changed threads are remembered.
KEPT = 256


class Changes:
    """Written by the writer thread, read by any thread. Counts batches: ``begun`` when the commit begins, ``over`` when
    memory shows the batch, or when it came to nothing."""

    def __init__(self) -> None:
        self.begun = self.over = 0
        self._changed: list[tuple[Any, ...]] = [()] * KEPT  # by number of the batch: the keys of its drafts

    def begin(self, keys: Iterable[tuple[str, str]]) -> None:
        """Says that a commit begins, which changes these threads, given by namespace and name."""
        self._changed[self.begun % KEPT] = tuple(keys)
        self.begun += 1

    def end(self) -> None:
        """Says that the commit is over."""
        self.over = self.begun

    def has_changed(self, thread: str | None, since: int) -> bool:
        """Whether a batch may have changed a thread of this name (None = any thread) since ``over`` was ``since``."""
        begun = self.begun
        changed = [self._changed[number % KEPT] for number in range(since, min(begun, since + KEPT))]
        # After so many batches, the writer may be overwriting the first of them before it counts the next one.
        if self.begun - since >= KEPT:
            return True
        # A batch without drafts may have changed anything.
        return any(thread is None or not keys or any(key[1] == thread for key in keys) for keys in changed)
