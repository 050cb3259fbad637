"""A cache of states and dictionaries with one byte budget. LMDB holds the truth, so any item may be dropped."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

from stateward_sidecar.codec.compress import Dictionary, dictionary_bytes
from stateward_sidecar.codec.state import StateTree

# One Python object per entry of a log or slot, roughly.
ENTRY_OVERHEAD_BYTES = 64


class Cache:
    """Drops the least recently used item first. Safe for several threads."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._items: OrderedDict[Hashable, tuple[StateTree | Dictionary, int]] = OrderedDict()
        self._lock = threading.Lock()

    def state(self, thread: int, version: int) -> StateTree | None:
        """Returns the state of a thread at a version; None if it is not cached."""
        found = self._get(("state", thread, version))
        return found if isinstance(found, StateTree) else None

    def put_state(self, thread: int, version: int, tree: StateTree) -> None:
        """Keeps a state."""
        self._put(("state", thread, version), tree, state_bytes(tree))

    def replace_state(self, thread: int, old: int, new: int, tree: StateTree) -> None:
        """Keeps a new state, and forgets the state it was made from, which is rarely read again."""
        self._put(("state", thread, new), tree, state_bytes(tree), ("state", thread, old))

    def drop_state(self, thread: int, version: int) -> None:
        """Forgets a state."""
        with self._lock:
            self._pop(("state", thread, version))

    def dictionary(self, thread: int, version: int) -> Dictionary | None:
        """Returns the digested snapshot of a thread at a version; None if it is not cached."""
        found = self._get(("dictionary", thread, version))
        return found if isinstance(found, Dictionary) else None

    def put_dictionary(self, thread: int, dictionary: Dictionary) -> None:
        """Keeps a dictionary."""
        self._put(("dictionary", thread, dictionary.version), dictionary, dictionary.size_bytes)

    def fit_together(self, tree: StateTree) -> bool:
        """Returns whether a state and the dictionary made from it fit into the cache together.

        If they do not, they push each other out with every save, and every save has to read both again.
        """
        return state_bytes(tree) + dictionary_bytes(tree.size_bytes) <= self.limit_bytes

    def drop_thread(self, thread: int) -> None:
        """Forgets everything of a thread."""
        with self._lock:
            for key in [key for key in self._items if isinstance(key, tuple) and key[1] == thread]:
                self.used_bytes -= self._items.pop(key)[1]

    def _get(self, key: Hashable) -> StateTree | Dictionary | None:
        with self._lock:
            found = self._items.get(key)
            if found is None:
                return None
            self._items.move_to_end(key)
            return found[0]

    def _put(
        self, key: Hashable, item: StateTree | Dictionary, size_bytes: int, replaced: Hashable | None = None
    ) -> None:
        with self._lock:
            self._pop(key)
            self._pop(replaced)
            if size_bytes > self.limit_bytes:
                return
            self._items[key] = (item, size_bytes)
            self.used_bytes += size_bytes
            while self.used_bytes > self.limit_bytes:
                _, (_, freed) = self._items.popitem(last=False)
                self.used_bytes -= freed

    def _pop(self, key: Hashable) -> None:
        old = self._items.pop(key, None)
        if old is not None:
            self.used_bytes -= old[1]


def state_bytes(tree: StateTree) -> int:
    """Returns about how many bytes a state takes in memory."""
    entries = len(tree.slots) + sum(len(log.entries) for log in tree.logs.values())
    return tree.size_bytes + ENTRY_OVERHEAD_BYTES * (entries + 8)
