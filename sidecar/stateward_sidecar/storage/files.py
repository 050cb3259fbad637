"""Files that survive a power cut, the lock on a data directory, and what the directory tells of its daemon.

File operations that survive a power cut, and the lock against a second daemon on a data directory.

What a data directory tells about its daemon: `daemon.json`, and the lock of those who use the daemon.

Clients find the daemon through these files (client/stateward/opening/README.md).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stateward_sidecar.errors import DirectoryInUse, StartError
from stateward_sidecar.syncing import sync_file

PLACE_BYTES = 16
FRESH, OLD = ".fresh-", ".old-"
"""How the names begin of an unfinished copy of the data file, and of a data file that a copy has replaced."""


def sync_directory(path: Path) -> None:
    """Makes renames and new names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync_file(fd)
    finally:
        os.close(fd)


def sync_path(path: Path) -> None:
    """Makes the names in a directory durable, and the names of its parents up to the mount point of its file system.

    That includes names that an earlier process made and had not synced when it was killed. Without them, a power cut
    loses everything that was synced in the directory. Raises StartError.
    """
    for directory in (path, *path.parents):
        try:
            sync_directory(directory)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL):
                raise StartError(f"cannot sync the directory {directory}: {error.strerror}") from None
        if os.path.ismount(directory):
            return


def place_of(file: Path) -> bytes:
    """Returns 16 bytes that stand for the place of a file: its file system and its number there. A copy has others."""
    where = f"{os.statvfs(file).f_fsid}:{file.stat().st_ino}"
    return hashlib.blake2b(where.encode(), digest_size=PLACE_BYTES).digest()


def remove_unfinished(data_file: Path) -> None:
    """Removes what an interrupted compaction left beside the data file, before it is opened: unfinished copies, and the
    second name of a file that no copy has replaced yet."""
    for path in data_file.parent.glob(f"{FRESH}*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in data_file.parent.glob(f"{OLD}*"):
        with contextlib.suppress(FileNotFoundError):
            if path.samefile(data_file):
                path.unlink()


def create_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Writes a new file, completely and durably, or not at all. Raises FileExistsError."""
    # In a directory that others may write, nobody else can have made the file, or a link of its name, before.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            sync_file(file.fileno())
        os.link(temporary, path)  # unlike a rename, a link never replaces a file that another process made meanwhile
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def make_directory(path: Path) -> None:
    """Makes a directory with its parents, for this user only. Raises StartError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"cannot make the directory {path}: {error.strerror}") from None


class DirectoryLock:
    """Locks a data directory for one process. The kernel releases the lock when the process ends for any reason."""

    def __init__(self, directory: Path) -> None:
        path = directory / "LOCK"
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StartError(f"cannot open {path}: {error.strerror}") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
            os.close(self._fd)
            raise DirectoryInUse(
                f"the data directory {directory} is in use by another stateward-sidecar (pid {owner or 'unknown'}); "
                "stop that process, or give this one another --data-dir"
            ) from None
        except OSError as error:  # a network file system without locks
            os.close(self._fd)
            raise StartError(f"cannot lock {path}: {error.strerror}; choose a --data-dir on a local disk") from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Releases the lock."""
        os.close(self._fd)


DAEMON_FILE = "daemon.json"
USERS_FILE = "users.lock"


def announce(directory: Path, facts: Mapping[str, Any]) -> None:
    """Writes daemon.json by rename, for this user only. Raises OSError.

    The file names the directory itself, so that a copy of the directory does not lead to this daemon.
    """
    found = directory.stat()
    content = json.dumps({**facts, "directory": f"{found.st_dev}:{found.st_ino}"})
    path = directory / DAEMON_FILE
    temporary = directory / f".{DAEMON_FILE}"  # of one process: it holds LOCK
    temporary.unlink(missing_ok=True)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(content + "\n")
        temporary.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def withdraw(directory: Path) -> None:
    """Removes daemon.json: from now on nobody finds this daemon."""
    with contextlib.suppress(OSError):
        (directory / DAEMON_FILE).unlink()


class UsersLock:
    """Whether clients of `stateward.open()` live. Each one holds the lock shared."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / USERS_FILE
        self._descriptor: int | None = None

    def close_door(self) -> bool:
        """Takes the lock exclusively if no client lives, without waiting; returns whether it did. No client begins
        while it is held, and the end of the process releases it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self._path, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        if os.fstat(descriptor).st_ino == self._path.stat().st_ino:
            return True
        self.open_door()  # somebody has removed the file, and clients lock another one
        return False

    def open_door(self) -> None:
        """Releases the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def stamp_of(path: Path) -> tuple[int, ...]:
    """Returns what changes when the file does, or when another file takes its place; empty = it is gone."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
