"""A bucket in a local directory. Several processes of one machine may use it at once.

An object is a file whose path is its key. The file is written under a temporary name in the same directory, synced, and
then named: ``create`` uses link(), which never replaces a file, the others use rename(). Files that begin with a dot
are the bucket's own: ``.tmp-…`` are unfinished writes, or were left by a crash; ``.lock`` is locked by ``put``,
``replace`` and ``delete`` while they compare and act. A file that has its name is never written again, so a reader that
opened it sees one whole object.

A call that returned survives a power cut. When a process first uses a directory, it syncs the directory and those that
lead to it, because a process that was killed may have left names that are visible and not yet durable. If the sync of a
directory fails, the outcome of that call is unclear, and every later call is refused, because nobody can know any more
what that sync covered. If the directory is no longer there to be synced, because it was unmounted or moved, only that
outcome is unclear, and whoever uses it next syncs it first.

The etag is a hash of the content. It repeats if the bytes repeat; the write ids inside of bodies do not.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from stateward_sidecar.bucket.base import (
    REPLACED_BYTES_MAX,
    Bucket,
    BucketDenied,
    BucketError,
    BucketFull,
    BucketMissing,
    BucketRefused,
    BucketUnavailable,
    Object,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
    check_key,
    check_prefix,
    check_range,
    check_size,
)
from stateward_sidecar.errors import StartError
from stateward_sidecar.syncing import sync_file

LEFT_OVER_AFTER_S = 3600.0  # a crash left any temporary file that is older: no write takes so long
DIRECTORIES_MAX = 65_536  # how many directories are remembered as synced
_TEMPORARY = ".tmp-"
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTSUP, errno.EMLINK)


COPY_BYTES = 1 << 20


class DirectoryBucket(Bucket):
    """Objects as files below ``root``, which is made if it does not exist. Raises StartError."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._settled: set[Path] = set()
        self._settling = threading.Lock()
        self._failure: str | None = None
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for directory in (root, *root.parents):
                with suppress(_NotOpened):  # it may be another user's
                    _sync_directory(directory)
                if os.path.ismount(directory):
                    break
        except OSError as error:
            raise StartError(f"cannot use the directory {root} as a bucket: {error.strerror}") from None

    def get(self, key: str, most_bytes: int = REPLACED_BYTES_MAX) -> Object:
        with self._call(key) as path, self._reading(key, path) as fd:
            size = os.fstat(fd).st_size
            check_size(key, size, most_bytes)
            data = _read(fd, 0, size)
            return Object(data, _etag_of(data))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        check_range(offset, length)
        with self._call(key) as path, self._reading(key, path) as fd:
            return _read(fd, offset, min(length, max(0, os.fstat(fd).st_size - offset)))

    def put(self, key: str, data: bytes) -> None:
        with self._call(key) as path, self._temporary(path, data) as temporary, _locked(path.parent):
            temporary.rename(path)
            self._sync(path.parent)

    def put_file(self, key: str, path: Path) -> None:
        with (
            path.open("rb") as source,
            self._call(key) as target,
            self._temporary(target, source) as temporary,
            _locked(target.parent),
        ):
            temporary.rename(target)
            self._sync(target.parent)

    def create(self, key: str, data: bytes) -> str:
        with self._call(key) as path, self._temporary(path, data) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError:
                raise ObjectExists(key) from None
            self._sync(path.parent)
            return _etag_of(data)

    def replace(self, key: str, data: bytes, etag: str) -> str:
        with self._call(key) as path, self._temporary(path, data) as temporary, _locked(path.parent):
            try:
                if path.stat().st_size > REPLACED_BYTES_MAX:  # not ours, whatever its etag
                    raise ObjectChanged(key)
                current = path.read_bytes()
            except FileNotFoundError:
                raise ObjectChanged(key) from None
            if _etag_of(current) != etag:
                raise ObjectChanged(key)
            temporary.rename(path)
            self._sync(path.parent)
            return _etag_of(data)

    def delete(self, key: str) -> None:
        with self._call(key) as path:
            if not path.parent.is_dir():
                self._check_there()
                return
            with _locked(path.parent):
                path.unlink(missing_ok=True)
                self._sync(path.parent)  # even if it was missing: another removal may not be synced

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        check_prefix(prefix)
        for folder, folders, names in os.walk(self._root / prefix, onerror=self._refuse_to_list):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            _remove_left_overs(Path(folder))
            for name in sorted(names):
                path = Path(folder, name)
                with suppress(FileNotFoundError):
                    if not name.startswith(".") and stat.S_ISREG((found := path.lstat()).st_mode):
                        yield str(path.relative_to(self._root)), found.st_size

    def _refuse_to_list(self, error: OSError) -> None:
        """Raises the bucket's error for a directory that cannot be listed: its objects would seem to be gone. Passes
        over one that does not exist, unless the whole bucket does not."""
        if not isinstance(error, FileNotFoundError):
            raise _translate(error, Path(error.filename or self._root)) from error
        self._check_there()

    def written_at(self, key: str) -> float | None:
        with self._call(key) as path:
            try:
                return path.stat().st_mtime
            except FileNotFoundError:
                self._check_there()
                raise ObjectNotFound(key) from None

    def close(self) -> None:
        """Nothing is held between calls."""

    @contextmanager
    def _call(self, key: str) -> Iterator[Path]:
        """Yields the path of a key, and turns errors of the system into errors of the bucket."""
        path = self._root / check_key(key)
        if self._failure:
            raise BucketRefused(self._failure)
        try:
            yield path
        except OSError as error:
            raise _translate(error, path) from error

    @contextmanager
    def _reading(self, key: str, path: Path) -> Iterator[int]:
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            self._check_there()
            raise ObjectNotFound(key) from None
        try:
            self._settle(path.parent)
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def _temporary(self, path: Path, data: bytes | BinaryIO) -> Iterator[Path]:
        """Yields a synced file with these bytes beside ``path``. Removes it at the end unless it was renamed."""
        self._make_directories(path.parent)
        temporary = path.with_name(f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}")
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "wb") as file:
                if isinstance(data, bytes):
                    file.write(data)
                else:
                    shutil.copyfileobj(data, file, COPY_BYTES)
                file.flush()
                sync_file(file.fileno())
            yield temporary
        finally:
            with suppress(OSError):
                temporary.unlink()

    def _make_directories(self, directory: Path) -> None:
        if not directory.is_dir():
            missing = [folder for folder in self._chain(directory) if not folder.is_dir()]
            if self._root in missing:  # what is written in its place would be lost once it is there again
                raise BucketUnavailable(f"the directory {self._root} is not there: is it mounted?")
            with self._settling:
                self._settled.difference_update(missing)
            for folder in reversed(missing):
                with suppress(FileExistsError):
                    folder.mkdir(mode=0o700)
        self._settle(directory)

    def _check_there(self) -> None:
        """Raises BucketMissing if the whole bucket is missing: nobody knows then what it has."""
        if not self._root.is_dir():
            raise BucketMissing(f"the directory {self._root} is not there: is it mounted?")

    def _settle(self, directory: Path) -> None:
        """Prepares a directory that this process has not used yet: makes its names and those that lead to it durable,
        and removes what crashes left."""
        with self._settling:
            missing = [folder for folder in self._chain(directory) if folder not in self._settled]
        # Another process may just have made a new directory in a directory that was synced before.
        for folder in dict.fromkeys((*missing, *(folder.parent for folder in missing if folder != self._root))):
            self._sync(folder)
        for folder in missing:
            _remove_left_overs(folder)
        with self._settling:
            if len(self._settled) > DIRECTORIES_MAX:
                self._settled.clear()
            self._settled.update(missing)

    def _chain(self, directory: Path) -> tuple[Path, ...]:
        """A directory of the bucket and its parents within the bucket, innermost first."""
        return tuple(folder for folder in (directory, *directory.parents) if folder.is_relative_to(self._root))

    def _sync(self, directory: Path) -> None:
        try:
            _sync_directory(directory)
        except _NotOpened as error:
            with self._settling:
                self._settled.discard(directory)
            raise BucketUnavailable(f"cannot sync {directory}: {error.strerror}", is_unclear=True) from error
        except OSError as error:
            self._failure = f"a sync of {directory} failed ({error.strerror}); check the disk, then restart"
            raise BucketUnavailable(self._failure, is_unclear=True) from error


class _NotOpened(OSError):
    """A directory cannot be opened, so no sync of it has begun."""


def _sync_directory(directory: Path) -> None:
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _NotOpened(error.errno, error.strerror, str(directory)) from error
    try:
        sync_file(fd)
    finally:
        os.close(fd)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keeps all other threads and processes from replacing or deleting in a directory. The lock ends with the
    process."""
    fd = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _read(fd: int, offset: int, length: int) -> bytes:
    """Reads so many bytes, or up to the end. One system call returns at most 2 GiB."""
    parts = []
    while length > 0 and (part := os.pread(fd, length, offset)):
        parts.append(part)
        offset, length = offset + len(part), length - len(part)
    return b"".join(parts)


def _remove_left_overs(directory: Path, now: Callable[[], float] = time.time) -> None:
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(_TEMPORARY):
                with suppress(OSError):
                    if now() - entry.stat(follow_symlinks=False).st_mtime > LEFT_OVER_AFTER_S:
                        Path(entry.path).unlink()


def _etag_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _translate(error: OSError, path: Path) -> BucketError:
    """The bucket's error for an error of the system, by what helps against it. Of the first three kinds, none leaves an
    effect: a file gets its name last, in one step."""
    message = f"{path}: {error.strerror}"
    if error.errno in _FULL:
        return BucketFull(message)
    if error.errno in _DENIED:
        return BucketDenied(message)
    if error.errno in _REFUSED:
        return BucketRefused(message)
    return BucketUnavailable(message, is_unclear=True)
