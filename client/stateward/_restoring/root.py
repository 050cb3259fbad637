"""The directory that a restore works in: the only code that touches it.

Each call opens the directories on the way one by one, from the root on, and follows no symlink. So a symlink that
somebody puts in the place of a directory meanwhile is an error, and no way out of the root.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stateward._restoring.paths import shown
from stateward._restoring.planning import facts
from stateward._workspace.objects import DIRECTORY, FILE, SYMLINK, Entry
from stateward.errors import WorkspaceChanged, WorkspaceUnsupported

READ_BYTES = 1 << 20
MODE_BITS = 0o777
EXECUTE_BITS = 0o111
OTHER = 0
"""The kind of what no tree has: a device, a socket, a FIFO."""
NOT_A_DIRECTORY = (errno.ENOTDIR, errno.ELOOP)


@dataclass(frozen=True, slots=True)
class Seen:
    """What `lstat` told of a path."""

    kind: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    mode: int
    links: int
    target: bytes = b""

    def facts(self) -> tuple[object, ...]:
        """The same as `planning.facts` of its entry."""
        if self.kind == FILE:
            return (FILE, self.size_bytes, self.mtime_ns, bool(self.mode & stat.S_IXUSR))
        return (SYMLINK, self.target, self.mtime_ns) if self.kind == SYMLINK else (self.kind,)

    def mark(self) -> tuple[int, ...]:
        """What tells that nobody has changed it since. Directories have only their kind."""
        if self.kind == DIRECTORY:
            return (DIRECTORY,)
        return (self.kind, self.size_bytes, self.mtime_ns, self.ctime_ns, self.inode)


class Root:
    """A directory, and the paths below it. Close it after use."""

    def __init__(self, path: bytes, *, conflicts: Collection[bytes] = ()) -> None:
        """`conflicts` are the paths at which a directory takes the place of something else, or the reverse: there, and
        nowhere else, a path may have no directory on its way."""
        if not hasattr(os, "O_NOFOLLOW") or os.open not in os.supports_dir_fd:
            raise WorkspaceUnsupported("this system cannot restore files: it has no calls relative to a directory")
        self.path = path
        self.conflicts = frozenset(conflicts)
        self._fd = os.open(path, _directory_flags())

    def close(self) -> None:
        """Closes the directory."""
        os.close(self._fd)

    @contextmanager
    def directory(self, path: bytes) -> Iterator[int]:
        """Opens a directory; empty = the root. Raises WorkspaceChanged if something on the way is none."""
        fd = os.dup(self._fd)
        try:
            way = b""
            for name in path.split(b"/") if path else ():
                way = way + b"/" + name if way else name
                try:
                    inner = os.open(name, _directory_flags(), dir_fd=fd)
                except OSError as error:
                    if error.errno not in (*NOT_A_DIRECTORY, errno.ENOENT):
                        raise
                    raise _NoDirectory(way, error.errno) from error
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def parent(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        """Opens the directory that a path is in. Gives the name in it, too."""
        above, _, name = path.rpartition(b"/")
        with self.directory(above) as fd:
            yield fd, name

    def see(self, path: bytes) -> Seen | None:
        """Returns what is at a path; None = nothing. Raises WorkspaceChanged if the way to it is not one of
        directories."""
        try:
            with self.parent(path) as (fd, name):
                return see_in(fd, name)
        except _NoDirectory as error:
            if error.errno == errno.ENOENT or error.way in self.conflicts:
                return None
            raise

    def is_entry(self, path: bytes, entry: Entry | None) -> bool:
        """Whether exactly this is at a path. Files are read."""
        seen = self.see(path)
        if entry is None or seen is None:
            return entry is None and seen is None
        if seen.kind != entry.kind or seen.facts() != facts(entry):
            return False
        return entry.kind != FILE or self._has_content(path, entry)

    def _has_content(self, path: bytes, entry: Entry) -> bool:
        try:
            for _ in self.contents(path, entry):
                pass
        except WorkspaceChanged:
            return False
        return True

    def contents(self, path: bytes, entry: Entry) -> Iterator[bytes]:
        """Yields the chunks of a file. Raises WorkspaceChanged if it has other content than its entry says."""
        with self.parent(path) as (fd, name):
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
        with os.fdopen(file, "rb", buffering=0) as reader:
            is_right = stat.S_ISREG(os.fstat(file).st_mode)
            for chunk in entry.chunks if is_right else ():
                data = _read(reader, chunk.size_bytes)
                if hashlib.sha256(data).digest() != chunk.digest:
                    is_right = False
                    break
                yield data
            if not is_right or reader.read(1):
                raise WorkspaceChanged(f"{shown(path)!r} has other content now", metadata={"path": shown(path)})

    def can_write(self, path: bytes) -> bool:
        """Whether entries of a directory can be made and deleted; also True if there is no such directory."""
        try:
            with self.directory(path) as fd:
                effective = os.access in os.supports_effective_ids
                return os.access(b".", os.W_OK | os.X_OK, dir_fd=fd, effective_ids=effective)
        except _NoDirectory:
            return True
        except PermissionError:
            return False

    def make_directory(self, path: bytes, mode: int | None = None) -> None:
        """Makes a directory. `mode` None = the system gives it one."""
        with self.parent(path) as (fd, name):
            os.mkdir(name, 0o777 if mode is None else 0o700, dir_fd=fd)
        if mode is not None:
            with self.directory(path) as fd:
                os.fchmod(fd, mode & MODE_BITS)

    def create(self, path: bytes, *, executable: bool, private: bool) -> int:
        """Makes a file for writing, and opens it; `private` = only its owner may read it for now."""
        mode = 0o600 if private else 0o777 if executable else 0o666
        with self.parent(path) as (fd, name):
            return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=fd)

    def link(self, path: bytes, entry: Entry) -> None:
        """Makes a symlink."""
        with self.parent(path) as (fd, name):
            os.symlink(entry.target, name, dir_fd=fd)
            os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=fd, follow_symlinks=False)

    def move(self, temporary: bytes, path: bytes, expected: tuple[int, ...] | None) -> bool:
        """Renames a file within its directory, in the place of what `expected` is the mark of; None = of nothing.
        Returns False, and does nothing, if something else is there."""
        with self.parent(path) as (fd, name):
            seen = see_in(fd, name)
            if (None if seen is None else seen.mark()) != expected:
                return False
            os.rename(temporary.rpartition(b"/")[2], name, src_dir_fd=fd, dst_dir_fd=fd)
            return True

    def remove(self, path: bytes, expected: tuple[int, ...] | None = None) -> bool:
        """Deletes a file or a symlink that has this mark; None = any. Returns whether it did so, or found nothing."""
        with self.parent(path) as (fd, name):
            seen = see_in(fd, name)
            if seen is None:
                return True
            if seen.kind == DIRECTORY or (expected is not None and seen.mark() != expected):
                return False
            os.unlink(name, dir_fd=fd)
            return True

    def remove_directory(self, path: bytes) -> bool:
        """Deletes an empty directory. Returns False if something is in it."""
        with self.parent(path) as (fd, name):
            try:
                os.rmdir(name, dir_fd=fd)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return False
            return True

    def sync(self, directories: Collection[bytes]) -> None:
        """Brings the entries of directories to the disk. Those that are gone are passed over."""
        for path in sorted(directories):
            try:
                with self.directory(path) as fd:
                    os.fsync(fd)
            except _NoDirectory:
                continue


class _NoDirectory(WorkspaceChanged):
    """Something on the way to a path is no directory, or missing."""

    def __init__(self, path: bytes, number: int) -> None:
        what = "is missing" if number == errno.ENOENT else "is no directory, or a symlink is in its place"
        super().__init__(f"{shown(path)!r} {what}; nothing was written there", metadata={"path": shown(path)})
        self.way = path
        self.errno = number


def see_in(fd: int, name: bytes) -> Seen | None:
    """Returns what an open directory has under a name; None = nothing."""
    try:
        found = os.lstat(name, dir_fd=fd)
    except FileNotFoundError:
        return None
    mode = found.st_mode
    kind = (
        FILE if stat.S_ISREG(mode) else DIRECTORY if stat.S_ISDIR(mode) else SYMLINK if stat.S_ISLNK(mode) else OTHER
    )
    target = os.readlink(name, dir_fd=fd) if kind == SYMLINK else b""
    return Seen(
        int(kind), found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, stat.S_IMODE(mode),
        found.st_nlink, target,
    )  # fmt: skip


def finish(file: int, entry: Entry, mode: int | None) -> None:
    """Gives a file that was written its mode and its time. `mode` is that of the file that it replaces; None = the mode
    that the system gave it."""
    if mode is not None:
        os.fchmod(file, with_execution(mode, executable=entry.executable))
    os.utime(file, ns=(entry.mtime_ns, entry.mtime_ns))


def with_execution(mode: int, *, executable: bool) -> int:
    """Returns a mode with the bits of execution set or not. Others than those of reading, writing and execution go."""
    plain = mode & MODE_BITS & ~EXECUTE_BITS
    if not executable:
        return plain
    if mode & stat.S_IXUSR:
        return mode & MODE_BITS
    return plain | (plain >> 2 & EXECUTE_BITS) | stat.S_IXUSR



def _read(reader: Any, size_bytes: int) -> bytes:
    parts = list[bytes]()
    while size_bytes > 0 and (data := reader.read(min(size_bytes, READ_BYTES))):
        parts.append(data)
        size_bytes -= len(data)
    return b"".join(parts)


def _directory_flags() -> int:
    return os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
