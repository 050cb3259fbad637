"""Files of a data directory, opened so that nobody can trick or block the process, and locks on them.

A symbolic link, a FIFO or a device in the place of a file is refused. Locks are `flock`s: the kernel releases them when
the process ends. In a forked child the parent's locks are closed, which releases nothing of the parent's.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from stateward.errors import CannotStart

FILE_BYTES_MAX = 64 << 10
WAIT_MIN_S, WAIT_MAX_S = 0.005, 0.1


def open_file(path: Path, flags: int) -> int:
    """Opens a regular file of this process's user, and never waits. Raises FileNotFoundError, and CannotStart."""
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except FileNotFoundError:
        raise
    except OSError as error:
        why = "is a symbolic link" if error.errno == errno.ELOOP else f"cannot be opened: {error.strerror}"
        raise CannotStart(f"{path} {why}") from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid not in (os.geteuid(), 0):
        os.close(descriptor)
        what = f"belongs to user {found.st_uid}" if stat.S_ISREG(found.st_mode) else "is not a regular file"
        raise CannotStart(f"{path} {what}; remove it")
    return descriptor


def read_file(path: Path) -> bytes | None:
    """Returns the content of a small file; None if it is missing. Raises CannotStart."""
    try:
        descriptor = open_file(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return os.read(descriptor, FILE_BYTES_MAX)  # of a regular file: all of it, as far as the limit
    finally:
        os.close(descriptor)


class FileLock:
    """A lock on a file, of one process. `directory` must exist."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._pid = 0

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock; its parent's lock does not count."""
        return self._descriptor is not None and self._pid == os.getpid()

    def take(self, *, shared: bool = False, deadline: float | None = None) -> bool:
        """Takes the lock; returns whether it did. Waits until `deadline` (`time.monotonic`); None = does not wait."""
        pause_s = WAIT_MIN_S
        while not self._try(shared):
            left_s = 0.0 if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, WAIT_MAX_S)
        return True

    def _try(self, shared: bool) -> bool:
        descriptor = open_file(self._path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            is_same = os.fstat(descriptor).st_ino == os.stat(self._path).st_ino  # noqa: PTH116  else it was removed
        except (BlockingIOError, FileNotFoundError):
            is_same = False
        except OSError as error:  # a network file system without locks
            os.close(descriptor)
            raise CannotStart(f"{self._path} cannot be locked: {error.strerror}; give another data_dir") from None
        if not is_same:
            os.close(descriptor)
            return False
        self._descriptor, self._pid = descriptor, os.getpid()
        _held.add(descriptor)
        return True

    def share(self) -> None:
        """Makes an exclusive lock a shared one."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def release(self) -> None:
        """Releases the lock. Does nothing if this process does not hold it."""
        if self.is_held and self._descriptor is not None:
            _held.discard(self._descriptor)
            os.close(self._descriptor)
        self._descriptor = None

    def note(self, text: str) -> None:
        """Writes a text for others into the file of a lock that is held exclusively."""
        if self._descriptor is not None:
            with suppress(OSError):  # a full disk: the text is for messages only
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, text.encode(), 0)

    def noted(self) -> str:
        """Returns the text of whoever holds the lock; "" if there is none."""
        return (read_file(self._path) or b"").decode(errors="replace").strip()

    def __enter__(self) -> None:
        """The lock is taken before."""

    def __exit__(self, *error: object) -> None:
        self.release()

    def __del__(self) -> None:
        with suppress(OSError):
            self.release()


_held: set[int] = set()


def _close_all() -> None:
    for descriptor in list(_held):
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_all)
