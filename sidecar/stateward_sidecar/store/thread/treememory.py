"""Trees of workspaces that are known to be whole: versions name the same tree again and again."""

from __future__ import annotations

import threading
from collections import OrderedDict

# Threads, and trees of each.
THREADS_MAX, TREES_MAX = 4096, 8


class TreeMemory:
    """The newest trees of threads that were found whole, by the thread's number. Any thread may use it.

    It is a shortcut: a tree that is not in it is looked at anew. Whoever removes or moves objects, or rows of them,
    forgets the thread in the transaction, and again after the commit: until then, readers find what is removed.
    """

    def __init__(self) -> None:
        self._whole: OrderedDict[int, OrderedDict[bytes, None]] = OrderedDict()
        # By thread: the keys of objects that nothing named when a sweep looked, and that nobody asked for since.
        self._unnamed: dict[int, set[bytes]] = {}
        # Threads that were refused objects, because their trees take as much as they may.
        self.full: set[int] = set()
        self._lock = threading.Lock()
        self.removals = 0
        """How often objects were removed. A tree that was looked at before the last removal may lack something now."""

    def knows(self, number: int, digest: bytes) -> bool:
        """Whether a tree of a thread is known to be whole."""
        known = self._whole.get(number)
        return known is not None and digest in known

    def newest(self, number: int) -> bytes:
        """Returns the tree that was noted last; empty = none."""
        with self._lock:
            known = self._whole.get(number)
            return next(reversed(known)) if known else b""

    def note(self, number: int, digest: bytes, removals: int) -> None:
        """Notes that a tree was found whole, when so many ``removals`` had happened."""
        with self._lock:
            if removals != self.removals:
                return
            known = self._whole.setdefault(number, OrderedDict())
            self._whole.move_to_end(number)
            known[digest] = None
            known.move_to_end(digest)
            if len(known) > TREES_MAX:
                known.popitem(last=False)
            if len(self._whole) > THREADS_MAX:
                self._whole.popitem(last=False)

    def ask(self, number: int, key: bytes) -> None:
        """Notes that somebody was told that the thread has an object: it stays for an hour more."""
        unnamed = self._unnamed.get(number)
        if unnamed is not None:
            unnamed.discard(key)

    def unnamed(self, number: int) -> set[bytes] | None:
        """Returns the keys of ``watch`` that nobody asked for since; None if the thread is not watched."""
        return self._unnamed.get(number)

    def watch(self, number: int, keys: set[bytes]) -> None:
        """Notes the keys of objects that nothing names. Empty = the thread is not watched any more."""
        if keys:
            self._unnamed[number] = keys
        else:
            self._unnamed.pop(number, None)

    def forget(self, number: int) -> None:
        """Forgets a thread: objects of it are removed."""
        with self._lock:
            self.removals += 1
            self._whole.pop(number, None)
