"""What a saver remembers of the newest checkpoints, so that it need not read them before it writes the next ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stateward._operations.steps import ThreadRef
from stateward.langgraph._channels import Stored


@dataclass(frozen=True, slots=True)
class Base:
    """A version whose channels are known, so that only what changes is sent. Version 0 = the empty state."""

    version: int = 0
    channel_versions: Mapping[str, Any] = field(default_factory=dict)
    channels: Mapping[str, Stored] = field(default_factory=dict)
    digest: bytes = b""
    rest: tuple[str, bytes] = "", b""
    """The checkpoint without its channels, as it was serialized."""

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""
        return (
            1000 + len(self.rest[1]) + sum(len(each.data) + 8 * len(each.ends or ()) for each in self.channels.values())
        )


class Bases:
    """The newest version of each branch that was written or read last, within a memory limit. Safe for threads."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes, self._used_bytes = limit_bytes, 0
        self._lock = threading.Lock()
        self._items: OrderedDict[tuple[str, str], tuple[str, Base, int]] = OrderedDict()

    def get(self, ref: ThreadRef, checkpoint_id: str) -> Base | None:
        """The version with this checkpoint id, if it is the one that is kept for its branch."""
        with self._lock:
            found = self._items.get((ref.thread, ref.branch))
        return found[1] if found is not None and found[0] == checkpoint_id else None

    def newest(self, ref: ThreadRef) -> Base | None:
        """The version that is kept for a branch."""
        with self._lock:
            found = self._items.get((ref.thread, ref.branch))
        return found[1] if found is not None else None

    def keep(self, ref: ThreadRef, checkpoint_id: str, base: Base) -> None:
        """Keeps a version in place of the one that was kept for its branch."""
        size_bytes = base.size_bytes
        with self._lock:
            self._drop((ref.thread, ref.branch))
            self._items[ref.thread, ref.branch] = checkpoint_id, base, size_bytes
            self._used_bytes += size_bytes
            while self._used_bytes > self._limit_bytes:
                self._drop(next(iter(self._items)))

    def forget(self, ref: ThreadRef) -> None:
        """Keeps nothing of a branch any more."""
        with self._lock:
            self._drop((ref.thread, ref.branch))

    def forget_thread(self, thread: str) -> None:
        """Keeps nothing of a thread any more."""
        with self._lock:
            for key in [key for key in self._items if key[0] == thread]:
                self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        found = self._items.pop(key, None)
        if found is not None:
            self._used_bytes -= found[2]
