"""The directory of a workspace, and opening what is below it without following a symlink."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stateward.errors import WorkspaceRefused

HAS_POSIX = all(hasattr(os, name) for name in ("O_NOFOLLOW", "O_DIRECTORY", "O_NONBLOCK", "geteuid", "fchmod"))
_SYSTEM, _MEMORY = ("/proc", "/sys", "/dev"), "/dev/shm"  # noqa: S108  nothing is made there


def find_root(path: str | os.PathLike[str], apart: Iterable[Path], *, force: bool) -> bytes:
    """Returns the real path of a directory. `apart`: where data of the daemon lies. Raises WorkspaceRefused for a
    directory that nobody wants to snapshot, unless `force`, and for what is none; TypeError for what is no path."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"root must be a path, not {type(path).__name__}")
    if not HAS_POSIX:
        raise refused(os.fspath(path), "workspaces need a Unix system", "system")
    root = os.path.realpath(path)
    if not os.path.isdir(root):  # noqa: PTH112  the same path
        raise refused(root, f"{root} is no directory", "directory")
    if any(_is_within(root, each) for each in _SYSTEM) and not _is_within(root, _MEMORY):
        raise refused(root, f"{root} has no files, but things of the system", "system")
    if not force:
        home = os.environ.get("HOME")
        if home and _is_within(os.path.realpath(home), root):
            what = "is the home directory" if os.path.realpath(home) == root else "has the home directory in it"
            raise refused(root, f"{root} {what}: name a directory in it, or use Rules(force=True)", "home")
        if root == "/":
            raise refused(root, "/ is the whole machine: name a directory in it, or use Rules(force=True)", "home")
        for each in map(os.path.realpath, apart):
            if _is_within(each, root) or _is_within(root, each):
                said = f"{root} and the data of the daemon, {each}, lie in each other; use another directory"
                raise refused(root, said, "daemon")
    return os.fsencode(root)


def refused(path: str, message: str, limit: str) -> WorkspaceRefused:
    """Returns the error for a directory, or what is in it."""
    return WorkspaceRefused(message, metadata={"path": path, "limit": limit})


def _is_within(path: str, parent: str) -> bool:
    return path == parent or path.startswith(parent.rstrip("/") + "/")


class Root:
    """An open directory. Everything below it is reached from here, name by name."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self._fd = os.open(path, _directory_flags())

    def close(self) -> None:
        """Closes it."""
        os.close(self._fd)

    @contextmanager
    def directory(self, path: bytes) -> Iterator[int]:
        """Opens a directory below the root. Raises OSError if there is none, or a symlink is on the way."""
        fd, flags = os.dup(self._fd), _directory_flags()
        try:
            for name in path.split(b"/") if path else ():
                inner = os.open(name, flags, dir_fd=fd)
                os.close(fd)
                fd = inner
            yield fd
        finally:
            with suppress(OSError):
                os.close(fd)


def _directory_flags() -> int:
    return os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def file_flags() -> int:
    """How a file is opened to be read. What is no regular file must not block."""
    return os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
