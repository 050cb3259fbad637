"""What a saver remembers: the newest checkpoints, so that it need not read them before it writes the next ones, and the
creation of its thread to which each checkpoint belongs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stateward._io.forks import Lock
from stateward._operations.steps import ThreadRef
from stateward.langgraph._channels import Stored

CREATIONS_MAX = 50_000
"""How many checkpoints a saver remembers the thread's uid of, about 200 bytes each."""


@dataclass(frozen=True, slots=True)
class Base:
    """A version whose channels are known, so that only what changes is sent. Version 0 = the empty state."""

    version: int = 0
    channel_versions: Mapping[str, Any] = field(default_factory=dict)
    channels: Mapping[str, Stored] = field(default_factory=dict)
    digest: bytes = b""
    uid: str = ""
    """Uid of the thread; empty = any."""
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
        self._lock = Lock()
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
        """Keeps a version in place of the one that was kept for its branch. The last one stays, however large it is,
        unless nothing is to be kept: to read it back before each write would take far longer than all else."""
        size_bytes = base.size_bytes
        with self._lock:
            self._drop((ref.thread, ref.branch))
            self._items[ref.thread, ref.branch] = checkpoint_id, base, size_bytes
            self._used_bytes += size_bytes
            while self._used_bytes > self._limit_bytes and (len(self._items) > 1 or not self._limit_bytes):
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


class Creations:
    """The uids of the threads to which the checkpoints belong that were written or read last. Safe for threads.

    A write names the checkpoint that it continues, and the daemon refuses it if the thread with that uid was deleted.
    LangGraph may write what a task wrote before it has begun to write the task's checkpoint. Such a write belongs to
    the thread as the run found it.
    """

    def __init__(self, limit: int = CREATIONS_MAX) -> None:
        self._lock = Lock()
        self._checkpoints: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._threads: OrderedDict[str, str] = OrderedDict()
        self._limit = limit

    def of(self, ref: ThreadRef, checkpoint_ids: Iterable[str]) -> str:
        """Returns the uid of the first of these checkpoints that is known; empty = none is."""
        with self._lock:
            found = (self._checkpoints.get((ref.thread, each)) for each in checkpoint_ids if each)
            return next((uid for uid in found if uid), "")

    def of_thread(self, ref: ThreadRef) -> str:
        """Returns the uid that the thread had last; empty = it was not there, or is not known."""
        with self._lock:
            return self._threads.get(ref.thread, "")

    def note(self, ref: ThreadRef, checkpoint_id: str, uid: str, *, is_seen: bool = True) -> None:
        """Remembers the uid of a checkpoint; empty id = that of the thread only. `is_seen`: the daemon has answered
        with it. A checkpoint that is about to be written says nothing about the thread: it may be late."""
        if not uid:
            return
        with self._lock:
            if checkpoint_id:
                self._put(self._checkpoints, (ref.thread, checkpoint_id), uid)
            if is_seen:
                self._put(self._threads, ref.thread, uid)

    def note_missing(self, ref: ThreadRef) -> None:
        """Remembers that a run which begins now finds no checkpoint, so any thread of the name is its own. What earlier
        runs write stays as it was noted."""
        with self._lock:
            self._threads.pop(ref.thread, None)

    def _put(self, items: OrderedDict[Any, str], key: Any, uid: str) -> None:
        items[key] = uid
        items.move_to_end(key)
        while len(items) > self._limit:
            items.popitem(last=False)
