"""A law of durable files, checked on real calls: content is synced before it gets its name, a name before the answer.

A kill cannot show a missing sync: the kernel keeps what a killed process wrote. `tests/soak` replays whole disks,
this looks at one verb at a time, in milliseconds.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


class SyncLaw:
    """Watches the calls of this process that sync files and give names. `broken` says what was not synced in time."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self._synced: dict[int, tuple[int, int]] = {}  # inode → size and time of change when it was synced
        self._unsynced_names: dict[int, str] = {}  # inode of a directory → the newest name in it
        self._unsynced_writes: dict[int, str] = {}  # inode of a file that is written in place

    def synced(self, fd: int) -> None:
        found = os.fstat(fd)
        self._synced[found.st_ino] = found.st_size, found.st_mtime_ns
        self._unsynced_names.pop(found.st_ino, None)
        self._unsynced_writes.pop(found.st_ino, None)

    def written(self, fd: int) -> None:
        self._unsynced_writes[os.fstat(fd).st_ino] = f"a write to {Path(f'/proc/self/fd/{fd}').readlink()}"

    def named(self, path: Any) -> None:
        path = Path(os.fsdecode(path))
        found = path.stat()
        if stat.S_ISREG(found.st_mode) and self._synced.get(found.st_ino) != (found.st_size, found.st_mtime_ns):
            self.broken.append(f"{path} has its name, and its content was not synced")
        self._unsynced_names[path.parent.stat().st_ino] = str(path)

    def answered(self) -> None:
        """The verb returns: whatever it did must be durable now."""
        self.broken += [f"the directory of {path} was not synced" for path in self._unsynced_names.values()]
        self.broken += [f"{what} was not synced" for what in self._unsynced_writes.values()]


@contextmanager
def sync_law(part: str = "") -> Iterator[None]:
    """Everything inside of the block must be durable at its end. Fails the test where it is not. ``part``: of the paths
    that are judged."""
    law, calls = SyncLaw(), {name: getattr(os, name) for name in _CALLS}
    with pytest.MonkeyPatch.context() as patch:
        for name, call in calls.items():
            patch.setattr(os, name, _watched(law, name, call))
        yield
    law.answered()
    assert [each for each in law.broken if part in each] == []


_CALLS = ("fsync", "fdatasync", "link", "rename", "mkdir", "pwrite")


def _watched(law: SyncLaw, name: str, call: Any) -> Any:
    def watched(*arguments: Any, **options: Any) -> Any:
        result = call(*arguments, **options)
        if name in {"fsync", "fdatasync"}:
            law.synced(arguments[0])
        elif name == "pwrite":
            law.written(arguments[0])
        else:
            law.named(arguments[0 if name == "mkdir" else 1])
        return result

    return watched
