"""Sealed blobs as files: ``<data_dir>/blobs/<uid hex>/<blob id hex>``. This module knows only names and durability.

A file is written under a temporary name, synced and renamed, and its directories are synced. Only then may a row name
it. So a file without a row was left by a crash, and the next start removes it. A row without a file is damage, or its
blob is in the archive. The directory of a deleted thread is renamed at once and emptied later.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import TypeVar

from stateward_sidecar.errors import Corrupt, DiskFull, no_room
from stateward_sidecar.measures import SharedHistogram
from stateward_sidecar.storage.engine import Engine, is_disk_full
from stateward_sidecar.storage.files import sync_directory
from stateward_sidecar.syncing import sync_file

DIRECTORY = "blobs"
_UNFINISHED = ".new-"
_GONE = ".gone-"
ID_BYTES = 16
# A file without the right to write was fetched for a reader, and may go again while another sidecar owns the thread.
MODE_FILE, MODE_FETCHED, MODE_DIRECTORY = 0o600, 0o400, 0o700
T = TypeVar("T")
# After the sizes were added up, they are not added up again for this many times as long as it took.
SIZE_PAUSE = 100
# How often a file is made whose directory goes meanwhile.
MAKES_MAX = 8
# How many files are remembered that were found whole.
SOUND_MAX = 1024
_COPIED_BYTES = 1 << 20


class BlobFiles:
    """The blob files of all threads. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self.directory = engine.directory / DIRECTORY
        self._room = engine.disk_room_bytes
        self._lock = threading.Lock()
        self._synced: set[bytes] = set()
        # Set if metrics are on.
        self.syncs: SharedHistogram | None = None
        # Directories of earlier processes: only these may be cleared.
        self.found_at_start = [bytes.fromhex(name) for name in self._list(self.directory) if _is_id(name)]
        # Blobs of this process, which ``clear`` must not mistake for files that a crash left. None = ``clear`` is over.
        self._fresh: set[bytes] | None = set()
        self._size_bytes, self._size_until = 0, float("-inf")
        self._sound = OrderedDict[bytes, tuple[int, ...]]()  # files that were read and found whole, as they were then

    def path(self, uid: bytes, blob_id: bytes) -> Path:
        """Path of a blob's file, whether it exists or not."""
        return self.directory / uid.hex() / blob_id.hex()

    def size_bytes(self) -> int:
        """Bytes of all files. Adding them up takes at most a hundredth of the time; in between the last sum is
        returned."""
        begun = time.monotonic()
        if begun >= self._size_until:
            self._size_bytes = sum(self._sizes())
            now = time.monotonic()
            self._size_until = now + SIZE_PAUSE * (now - begun)
        return self._size_bytes

    def _sizes(self) -> Iterator[int]:
        for name in self._list(self.directory):
            with suppress(OSError), os.scandir(self.directory / name) as files:  # gone meanwhile
                for file in files:
                    with suppress(OSError):
                        found = file.stat(follow_symlinks=False)
                        yield found.st_size // max(found.st_nlink, 1)  # copies of a thread share files

    def is_here(self, uid: bytes, blob_id: bytes) -> bool:
        """Whether the file is on this disk."""
        return self.path(uid, blob_id).exists()

    def is_whole(self, uid: bytes, blob_id: bytes, size_bytes: int) -> bool:
        """Whether the file is on this disk, with its size."""
        try:
            return self.path(uid, blob_id).stat().st_size == size_bytes
        except OSError:
            return False

    def is_known_sound(self, uid: bytes, blob_id: bytes) -> bool:
        """Whether this process has read the file as it is now, and found it whole."""
        with self._lock:
            known = self._sound.get(blob_id)
        try:
            return known is not None and known == _mark(self.path(uid, blob_id).stat())
        except OSError:
            return False

    def note_sound(self, blob_id: bytes, found: os.stat_result, *, is_sound: bool) -> None:
        """Notes what a read of the whole file has shown. ``found``: the file before the read."""
        with self._lock:
            self._sound.pop(blob_id, None)
            if is_sound:
                self._sound[blob_id] = _mark(found)
            if len(self._sound) > SOUND_MAX:
                self._sound.popitem(last=False)

    def create(self, uid: bytes, blob_id: bytes) -> NewBlobFile:
        """Begins a new file. Raises DiskFull."""
        with self._lock:
            if self._fresh is not None:
                self._fresh.add(blob_id)
        path = self.path(uid, blob_id)
        return guarded(lambda: NewBlobFile(self, uid, path))

    def duplicate(self, uid: bytes, copy_uid: bytes, blob_id: bytes, size_bytes: int) -> None:
        """Gives a thread the file that another thread has. The caller calls ``sync_names`` before a row names it.

        A second name for the same file costs nothing. A file that was fetched for readers gets one, too: it goes only
        while another sidecar owns the copy, and then the archive has what the copy has. The file is copied on a file
        system without such names. Raises FileNotFoundError, DiskFull, Corrupt if the file does not have ``size_bytes``.
        """
        path = self.path(uid, blob_id)
        found = path.stat()
        if found.st_size != size_bytes:
            raise Corrupt(f"the file of a blob has {found.st_size} bytes, not {size_bytes}")
        with self._lock:
            if self._fresh is not None:
                self._fresh.add(blob_id)
        target = self.path(copy_uid, blob_id)
        target.parent.mkdir(mode=MODE_DIRECTORY, parents=True, exist_ok=True)
        try:
            os.link(path, target)
        except FileExistsError:
            return
        except OSError as error:
            if is_disk_full(error):
                raise DiskFull("the disk is full; nothing was written") from None
        else:
            return
        new = self.create(copy_uid, blob_id)
        try:
            with path.open("rb", buffering=0) as file:
                while part := file.read(_COPIED_BYTES):
                    new.write(part)
            new.publish()
        except BaseException:
            new.discard()
            raise

    def sync_names(self, uid: bytes) -> None:
        """Makes the names of a thread's files durable. Raises DiskFull."""
        guarded(lambda: self.sync(uid, self.directory / uid.hex()))

    def remove(self, uid: bytes, blob_id: bytes) -> None:
        """Removes a file that no row names any more, if it exists."""
        with suppress(FileNotFoundError):
            self.path(uid, blob_id).unlink()
        self.drop_empty(uid)

    def drop_empty(self, uid: bytes) -> None:
        """Removes the directory of a thread if nothing is in it. The thread may be gone."""
        with self._lock, suppress(OSError):
            (self.directory / uid.hex()).rmdir()
            self._synced.discard(uid)

    def mark_read(self, uid: bytes, blob_id: bytes, now_us: int) -> None:
        """Notes that a fetched file is read now, and that it may go some time later."""
        path = self.path(uid, blob_id)
        with suppress(OSError):
            path.chmod(MODE_FETCHED)
            os.utime(path, ns=(now_us * 1000, now_us * 1000))

    def keep(self, uid: bytes, blob_id: bytes) -> None:
        """Makes a fetched file one that stays."""
        with suppress(OSError):
            self.path(uid, blob_id).chmod(MODE_FILE)

    def read_us(self, uid: bytes, blob_id: bytes) -> int | None:
        """When a fetched file was read last, in microseconds since 1970; None if there is no such file."""
        try:
            found = self.path(uid, blob_id).stat()
        except OSError:
            return None
        return None if found.st_mode & stat.S_IWUSR else found.st_mtime_ns // 1000

    def set_aside(self, uid: bytes) -> Path | None:
        """Renames the directory of a deleted thread, so that ``empty`` can remove it. Returns None if there is none.
        Quick."""
        gone = self.directory / f"{_GONE}{uid.hex()}-{os.urandom(4).hex()}"
        with self._lock:
            self._synced.discard(uid)
            try:
                (self.directory / uid.hex()).rename(gone)
            except OSError:  # there is none, or the disk failed and the next start finds it
                return None
        return gone

    @staticmethod
    def empty(gone: Path) -> None:
        """Removes a directory that was set aside. May take long."""
        shutil.rmtree(gone, ignore_errors=True)

    def clear(
        self,
        uids: set[bytes],
        set_aside: Callable[[bytes], Path | None],
        named: Callable[[bytes], set[bytes] | None],
    ) -> None:
        """Removes what a crash left: directories of threads that are not in ``uids``, unfinished files, and files that
        no row names. ``set_aside`` does what the method of that name does, unless the thread has come back. ``named``
        returns the blobs that a thread's rows name now, or None if its files must stay."""
        for name in self._list(self.directory):
            if name.startswith(_GONE):
                self.empty(self.directory / name)
        for uid in self.found_at_start:
            if uid not in uids:
                gone = set_aside(uid)
                if gone is not None:
                    self.empty(gone)
                continue
            files = self._list(self.directory / uid.hex())  # before the rows: later files stay
            kept = named(uid)
            if kept is not None:
                self._clear_thread(uid, files, kept)
        with self._lock:
            self._fresh = None

    def _clear_thread(self, uid: bytes, files: list[str], kept: set[bytes]) -> None:
        for name in files:
            is_unfinished, text = name.startswith(_UNFINISHED), name[-2 * ID_BYTES :]
            if not _is_id(text) or not (is_unfinished or name == text):
                continue
            blob_id = bytes.fromhex(text)
            is_ours = self._fresh is not None and blob_id in self._fresh
            if not is_ours and (is_unfinished or blob_id not in kept):
                (self.directory / uid.hex() / name).unlink(missing_ok=True)

    @staticmethod
    def _list(directory: Path) -> list[str]:
        try:
            return os.listdir(directory)  # noqa: PTH208  names are what is wanted, thousands of them
        except FileNotFoundError:
            return []

    # -- for NewBlobFile ----------------------------------------------------------------------------------------

    @staticmethod
    def open_new(path: Path) -> FileIO:
        """Makes a file, and the directory of its thread, which may go at any moment: it is empty, or its thread was
        deleted."""
        for number in range(MAKES_MAX):
            # Only these two errors say that the directory came or went meanwhile. mkdir() with ``exist_ok`` raises the
            # first one if it went.
            with suppress(FileExistsError):
                path.parent.mkdir(mode=MODE_DIRECTORY, parents=True, exist_ok=True)
            try:  # unbuffered, so that the check for room sees every byte
                return FileIO(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE_FILE), "w")
            except FileNotFoundError:
                if number == MAKES_MAX - 1:
                    raise
        raise AssertionError

    def sync(self, uid: bytes, directory: Path) -> None:
        """Makes the names of a thread's files durable; those of the directories above only once in each process."""
        sync_directory(directory)
        if uid not in self._synced:
            sync_directory(self.directory)
            sync_directory(self.directory.parent)
            self._synced.add(uid)

    def write(self, file: FileIO, data: bytes) -> None:
        """Writes if there is room besides the reserve, which is kept for deletions. Raises DiskFull."""
        with self._lock:  # otherwise several writers would count on the same last bytes
            room = self._room()
            if len(data) > room:
                raise no_room(len(data), room)
            guarded(lambda: _write_all(file, data))


class NewBlobFile:
    """A file that is being written: ``publish`` makes it durable under its name, ``discard`` removes it."""

    def __init__(self, files: BlobFiles, uid: bytes, path: Path) -> None:
        self._files = files
        self._uid = uid
        self._path = path
        self._unfinished = path.with_name(f"{_UNFINISHED}{os.urandom(4).hex()}-{path.name}")
        self.size_bytes = 0
        self._file = files.open_new(self._unfinished)

    def write(self, data: bytes) -> None:
        """Adds bytes. Raises DiskFull."""
        self._files.write(self._file, data)
        self.size_bytes += len(data)

    def read(self, offset: int, length: int) -> bytes:
        """Returns bytes that were written."""
        with self._unfinished.open("rb", buffering=0) as file:
            return os.pread(file.fileno(), length, offset)

    def publish(self) -> None:
        """Makes the file, its name and its directories durable. Raises DiskFull, or FileNotFoundError if the thread was
        deleted meanwhile."""
        began = time.perf_counter() if self._files.syncs is not None else 0.0
        guarded(self._publish)
        if self._files.syncs is not None:
            self._files.syncs.add(time.perf_counter() - began)

    def _publish(self) -> None:
        sync_file(self._file.fileno())
        self._file.close()
        self._unfinished.rename(self._path)
        self._files.sync(self._uid, self._path.parent)

    def discard(self) -> None:
        """Removes the file, even after ``publish``. Must not be called once a row may name it."""
        self._file.close()
        for path in (self._unfinished, self._path):
            path.unlink(missing_ok=True)
        self._files.drop_empty(self._uid)


def guarded(action: Callable[[], T]) -> T:
    """Runs an action that writes. Raises DiskFull if the disk is full."""
    try:
        return action()
    except OSError as error:
        if is_disk_full(error):
            raise DiskFull("the disk is full; nothing was written") from None
        raise


def _write_all(file: FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _mark(found: os.stat_result) -> tuple[int, ...]:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _is_id(name: str) -> bool:
    return len(name) == 2 * ID_BYTES and all(each in "0123456789abcdef" for each in name)
