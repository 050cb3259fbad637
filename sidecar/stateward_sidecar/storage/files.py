"""File operations that survive a power cut, and the lock against a second daemon on a data directory."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from stateward_sidecar.errors import DirectoryInUse, StartError
from stateward_sidecar.syncing import sync_file


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


def create_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Writes a new file, completely and durably, or not at all. Raises FileExistsError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
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
