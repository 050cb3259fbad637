"""The LMDB environment of a data directory: opening it, its format gate, and how full it is.

Every commit syncs the data and the meta page before it returns. The map is large and sparse, and is never resized while
it is open. The format is checked before anything else is read. A compaction replaces the environment by one with a
fresh file (``compaction.py``), so nobody keeps ``env`` for longer than a step.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
from google.protobuf.message import DecodeError

from stateward.storage.v1.head_pb2 import StoreFormat
from stateward_sidecar.errors import StartError
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.files import DirectoryLock, make_directory, remove_unfinished, sync_path
from stateward_sidecar.syncing import grow_file

FORMAT = 1  # the newest that this version knows
DATA_FILE = "data.mdb"
# Deletions and pruning need a few pages to free many.
RESERVE_BYTES = 4 << 20
RESERVE_SHARE = 1 / 16
# If less than this is free after a commit failed, the disk may have been full.
CUT_SHORT_BYTES = 1 << 20
# More than the daemon can write in a tenth of a second.
PLENTY_BYTES = 1 << 30


class Opened:
    """An open environment, and the read transactions that are open in it."""

    __slots__ = ("env", "number", "readers")

    def __init__(self, env: lmdb.Environment, file: Path) -> None:
        self.env = env
        self.number = file.stat().st_ino
        self.readers = set[object]()


class Engine:
    """One open data directory. A transaction belongs to the thread that began it."""

    def __init__(self, directory: Path, map_bytes: int) -> None:
        make_directory(directory)
        self.directory = directory
        self._lock = DirectoryLock(directory)
        self.map_bytes = map_bytes
        self._usable_bytes = map_bytes - _reserve(map_bytes)
        self._room_bytes, self._room_until = 0, 0.0
        remove_unfinished(directory / DATA_FILE)
        is_new = not (directory / DATA_FILE).exists()
        try:
            self._opened = Opened(self.open_map(directory), directory / DATA_FILE)
            self._check_format(is_new)
        except lmdb.Error as error:
            raise StartError(f"cannot open {directory / DATA_FILE}: {error}") from None
        # At every start: the process that made the files may have been killed before it synced their names.
        sync_path(directory)
        self.env.reader_check()
        self.page_bytes = int(self.env.stat()["psize"])

    @property
    def env(self) -> lmdb.Environment:
        """The environment. After a compaction it is another one."""
        return self._opened.env

    def open_map(self, directory: Path) -> lmdb.Environment:
        """Opens the data file of a directory. Raises lmdb.Error."""
        return lmdb.open(str(directory), map_size=self.map_bytes, max_readers=512, mode=0o600, meminit=True)

    def take_map(self, env: lmdb.Environment) -> Opened:
        """Takes another environment from now on, and returns the former one. Reads that have begun go on there. Writer
        thread only, while no transaction is open."""
        former, self._opened = self._opened, Opened(env, self.directory / DATA_FILE)
        self._room_until = 0.0
        return former

    def _check_format(self, is_new: bool) -> None:
        with self.env.begin() as txn:
            stored = txn.get(layout.FORMAT_KEY)
        if stored is None:
            if not is_new and self.env.stat()["entries"]:
                raise StartError(f"{self.directory / DATA_FILE} is not a Stateward store")
            fresh = StoreFormat(
                format=FORMAT, min_reader=FORMAT, min_writer=FORMAT,
                store_id=os.urandom(16), create_time_us=time.time_ns() // 1000,
            )  # fmt: skip
            with self.env.begin(write=True) as txn:
                txn.put(layout.FORMAT_KEY, fresh.SerializeToString())
            return
        try:
            found = StoreFormat.FromString(stored)
        except DecodeError:
            raise StartError(f"the format record of {self.directory} is damaged") from None
        if max(found.min_reader, found.min_writer) > FORMAT or found.format < 1:
            raise StartError(
                f"the data in {self.directory} has format {found.format}, which needs a reader of format "
                f"{found.min_reader} and a writer of format {found.min_writer}; this version has format {FORMAT}"
            )

    @contextmanager
    def read(self) -> Iterator[lmdb.Transaction]:
        """A read transaction for one synchronous step. While one is open, LMDB reuses no freed page."""
        reader, opened = object(), self._opened
        opened.readers.add(reader)
        while opened is not self._opened:  # replaced meanwhile, and perhaps found without readers
            opened.readers.discard(reader)
            opened = self._opened
            opened.readers.add(reader)
        try:
            txn = opened.env.begin(buffers=True)
            try:
                yield txn
            finally:
                txn.abort()
        finally:
            opened.readers.discard(reader)

    def last_commit(self) -> int:
        """Number of the last committed transaction."""
        return int(self.env.info()["last_txnid"])

    def room_bytes(self) -> int:
        """Bytes that may still be written; beyond these the daemon accepts only deletions.

        Every batch asks. While there is plenty of room, the answer may be 0.1 s old.
        """
        now = time.monotonic()
        if self._room_bytes < PLENTY_BYTES or now > self._room_until:
            stat = self.env.stat()
            used = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
            # Pages that were freed inside the file already have their place on the disk.
            inside = (self.env.info()["last_pgno"] + 1 - used) * self.page_bytes
            room = min(self._usable_bytes - used * self.page_bytes, self.disk_room_bytes() + inside)
            self._room_bytes, self._room_until = int(room), now + 0.1
        return self._room_bytes

    def disk_room_bytes(self) -> int:
        """The same for files outside of the map."""
        disk = os.statvfs(self.directory)
        return disk.f_bavail * disk.f_frsize - _reserve(disk.f_blocks * disk.f_frsize)

    def can_grow(self, size_bytes: int) -> bool:
        """Whether the disk gives a file that many bytes. Makes a file and removes it."""
        path = self.directory / ".room"
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError:
            return False
        try:
            grow_file(fd, size_bytes)
        except OSError:
            return False
        finally:
            os.close(fd)
            path.unlink(missing_ok=True)
        return True

    def is_in_place(self) -> bool:
        """Whether the open data file is still that of the data directory. Raises OSError."""
        return (self.directory / DATA_FILE).stat().st_ino == self._opened.number

    def sizes(self) -> tuple[int, int]:
        """Bytes in use and bytes of the file."""
        stat = self.env.stat()
        used = (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] + 2) * self.page_bytes
        return used, (self.directory / DATA_FILE).stat().st_size

    def close(self) -> None:
        """Closes the environment, then releases the lock of the directory."""
        self.env.close()
        self._lock.close()

    def is_cut_short(self, error: BaseException) -> bool:
        """True if a commit failed because the full disk accepted only a part of a write.

        LMDB reports that as EIO. It happens before the meta page is written, so nothing was applied. If it was a real
        disk error, the next commit reports it.
        """
        if not isinstance(error, lmdb.Error) or os.strerror(errno.EIO) not in str(error):
            return False
        disk = os.statvfs(self.directory)
        return disk.f_bavail * disk.f_frsize < CUT_SHORT_BYTES


def _reserve(total_bytes: int) -> int:
    """Bytes that only deletions and pruning may use."""
    return int(min(RESERVE_BYTES, total_bytes * RESERVE_SHARE))


def is_disk_full(error: BaseException) -> bool:
    """True for the failures after which LMDB has applied nothing: a full map, and no space on the device."""
    if isinstance(error, lmdb.MapFullError | lmdb.TxnFullError):
        return True
    text = str(error)
    return isinstance(error, lmdb.Error | OSError) and any(
        os.strerror(code) in text for code in (errno.ENOSPC, errno.EDQUOT)
    )
