"""Compaction: the data file is written anew, without freed pages, while the daemon works.

LMDB keeps freed pages in its file, with the sealed rows of deleted threads in them, and never makes the file smaller.

    1. From now on, the writer records the keys that batches change.
    2. LMDB copies what is in use into a fresh file, in a directory of its own.
    3. Rounds: the rows of the recorded keys are put into the fresh file, until few keys were changed meanwhile.
    4. Between two batches, the writer thread puts the last of them, and renames the fresh file to data.mdb. Only this
       step stops writes: at most ``LAST_KEYS`` rows or ``LAST_BYTES``, one commit and two syncs.
    5. When no reader is left in the old file, zeros are written over it, and it is removed.

The rename decides. A process that is killed before it starts again from the old file, which has every batch that was
committed. One that is killed after it starts from the fresh file, which has them, too. What else the killed process
left is removed at the next start. The old file has a second name from shortly before the rename, so that it can still
be overwritten then; if both names lead to one file, the rename had not happened.

Transactions of the fresh file have greater numbers than all those of the old one, because readers compare the numbers.
LMDB counts them in its meta pages, from 1 in a copy, so the compaction sets the number there before the fresh file is
opened, and asks LMDB for it afterwards.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import lmdb

from stateward_sidecar.errors import DiskFull, OutcomeUnknown, QueueFull, no_room
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.engine import DATA_FILE, RESERVE_BYTES, Engine, Opened, is_disk_full
from stateward_sidecar.storage.files import FRESH, OLD, PLACE_BYTES, place_of, sync_directory
from stateward_sidecar.storage.recording import ChangedKeys
from stateward_sidecar.storage.writer import Writer
from stateward_sidecar.syncing import sync_data
from stateward_sidecar.telemetry import log

LOCK_FILE = "lock.mdb"
LAST_KEYS, LAST_BYTES = 2_000, 16 << 20
ROUNDS_MAX = 20
# Rows of one transaction of a round, and keys that are recorded before a compaction gives up.
CHUNK, KEYS_MAX = 10_000, 4_000_000
# How long the end waits for readers of the old file.
READERS_S = 60.0
OVERWRITTEN_BYTES = 1 << 20
# Whoever asked for the environment just before the change has used it by then.
SETTLE_S = 0.1
# In a meta page of LMDB 0.9: page header, magic, version, address, size of the map, two trees, last page, then this.
_NUMBER_AT, _NUMBER = 144, struct.Struct("=Q")
_NUMBERS_AHEAD = 1 << 32


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did."""

    before_bytes: int
    after_bytes: int
    pause_s: float
    """How long writes waited at the end."""
    is_removed: bool
    """Whether the old file was overwritten and removed. False if another process still has it open."""


class Compactor:
    """Compacts the file of one store, once at a time."""

    def __init__(self, engine: Engine, writer: Writer, is_closing: Callable[[], bool] = lambda: False) -> None:
        self._engine = engine
        self._writer = writer
        self._is_closing = is_closing
        self._running = threading.Lock()

    def compact(self) -> Compacted:
        """Runs a compaction; a second caller waits for the first one. Raises DiskFull, QueueFull if too much is
        written meanwhile, ShuttingDown, OutcomeUnknown."""
        with self._running:
            before = self._engine.sizes()
            needed, room = before[0] + RESERVE_BYTES, self._engine.disk_room_bytes()
            if needed > room:
                raise no_room(needed, room)
            fresh = self._engine.directory / f"{FRESH}{secrets.token_hex(8)}"
            try:
                pause_s, former, old = self._rewrite(fresh)
            except (lmdb.Error, OSError) as error:
                if is_disk_full(error):
                    raise DiskFull("the disk is full; the data file is as it was") from None
                raise
            finally:
                self._writer.changed = None
                shutil.rmtree(fresh, ignore_errors=True)
            is_removed = self._end_former(former, old)
            after_bytes = self._engine.sizes()[1]
            log.info("compacted", before_bytes=before[1], after_bytes=after_bytes, pause_ms=round(pause_s * 1e3))
            return Compacted(before[1], after_bytes, pause_s, is_removed)

    def remove_rest(self) -> None:
        """Overwrites and removes what an earlier process left. Takes as long as the file is large."""
        with self._running:
            for path in self._engine.directory.glob(f"{OLD}*"):
                if path.stat().st_nlink > 1 or _overwrite(path):
                    path.unlink(missing_ok=True)

    # -- the copy --------------------------------------------------------------------------------------------------

    def _rewrite(self, fresh: Path) -> tuple[float, Opened, Path]:
        """Returns how long writes waited, the former environment, and the second name of its file."""
        writer = self._writer
        fresh.mkdir(mode=0o700)
        writer.run_between(self._record)
        env = self._open_copy(fresh)
        try:
            self._catch_up(env)
            return writer.run_between(lambda: self._switch(env, fresh))
        except BaseException:
            if env is not self._engine.env:
                env.close()
            raise

    def _record(self) -> ChangedKeys | None:
        """Begins to record changed keys. Returns those so far. Between two batches."""
        writer = self._writer
        changed, writer.changed = writer.changed, ChangedKeys()
        return changed

    def _open_copy(self, fresh: Path) -> lmdb.Environment:
        engine = self._engine
        fd = os.open(fresh / DATA_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            engine.env.copyfd(fd, compact=True)
            # The numbers of transactions take turns in the two meta pages, so an odd one belongs to the second.
            first = (engine.last_commit() + _NUMBERS_AHEAD) | 1
            os.pwrite(fd, _NUMBER.pack(first), engine.page_bytes + _NUMBER_AT)
            os.fsync(fd)
        finally:
            os.close(fd)
        env = engine.open_map(fresh)
        if int(env.info()["last_txnid"]) != first:
            env.close()
            raise RuntimeError("LMDB's meta pages are not as this version knows them; the data file is as it was")
        return env

    def _catch_up(self, env: lmdb.Environment) -> None:
        """Puts what was changed since the copy began, until little is left. Raises QueueFull."""
        for _ in range(ROUNDS_MAX):
            if self._is_closing():
                break
            changed = self._writer.run_between(self._record)
            assert changed is not None
            keys = list(changed.keys)
            if len(keys) > KEYS_MAX:
                break
            for first in range(0, len(keys), CHUNK):
                self._put(env, keys[first : first + CHUNK])
            now = self._writer.changed
            if now is not None and len(now.keys) <= LAST_KEYS and now.size_bytes <= LAST_BYTES:
                return
        raise _too_much()

    def _put(self, env: lmdb.Environment, keys: Iterable[bytes]) -> None:
        with self._engine.read() as now, env.begin(write=True) as txn:
            for key in keys:
                row = now.get(key)
                if row is None:
                    txn.delete(key)
                else:
                    txn.put(key, row)

    # -- the change --------------------------------------------------------------------------------------------------

    def _switch(self, env: lmdb.Environment, fresh: Path) -> tuple[float, Opened, Path]:
        """Lets the fresh file take the place of the old one. Between two batches. Raises OutcomeUnknown if nobody knows
        which of them the next start will find."""
        began = time.monotonic()
        changed, self._writer.changed = self._writer.changed, None
        assert changed is not None
        self._finish(env, changed, fresh)
        old = self._link_old()
        try:
            self._rename(fresh)
        except BaseException:
            old.unlink(missing_ok=True)
            raise
        with self._writer.publishing:
            former = self._engine.take_map(env)
            self._writer.shown = self._engine.last_commit()
        self._make_durable(fresh)
        return time.monotonic() - began, former, old

    def _finish(self, env: lmdb.Environment, changed: ChangedKeys, fresh: Path) -> None:
        """Puts the last rows, and checks that none is missing."""
        if len(changed.keys) > 2 * LAST_KEYS or changed.size_bytes > 2 * LAST_BYTES:
            raise _too_much()
        self._put(env, changed.keys)
        with env.begin(write=True) as txn:
            row = txn.get(layout.PLACE_KEY)
            if row is not None:  # else the next start takes the data for moved
                txn.put(layout.PLACE_KEY, place_of(fresh / DATA_FILE) + row[PLACE_BYTES:])
        found, expected = env.stat()["entries"], self._engine.env.stat()["entries"]
        if found != expected or int(env.info()["last_txnid"]) <= self._engine.last_commit():
            raise RuntimeError(f"the fresh file has {found} rows instead of {expected}; the old one stays")

    def _link_old(self) -> Path:
        old = self._engine.directory / f"{OLD}{secrets.token_hex(8)}"
        os.link(self._engine.directory / DATA_FILE, old)
        sync_directory(self._engine.directory)
        return old

    def _rename(self, fresh: Path) -> None:
        (fresh / DATA_FILE).rename(self._engine.directory / DATA_FILE)

    def _make_durable(self, fresh: Path) -> None:
        directory = self._engine.directory
        try:
            (fresh / LOCK_FILE).rename(directory / LOCK_FILE)
            sync_directory(directory)
        except OSError as error:
            raise OutcomeUnknown(f"the disk failed while the data file was replaced: {error.strerror}") from None

    def _end_former(self, former: Opened, old: Path) -> bool:
        """Closes the old file when its readers have ended, and overwrites and removes it."""
        end = time.monotonic() + READERS_S
        time.sleep(SETTLE_S)
        while former.readers and time.monotonic() < end and not self._is_closing():
            time.sleep(0.01)
        if former.readers:  # it stays open; the next start removes it
            return False
        former.env.close()
        if old.stat().st_nlink > 1:  # somebody keeps it under another name
            old.unlink()
            return False
        while not (is_over := _overwrite(old)) and time.monotonic() < end and not self._is_closing():
            time.sleep(0.2)
        if is_over:
            old.unlink(missing_ok=True)
            sync_directory(old.parent)
        return is_over


def _too_much() -> QueueFull:
    return QueueFull("too much is written for a compaction to catch up; compact at a quieter time")


def _overwrite(path: Path) -> bool:
    """Writes zeros over a file, durably. Returns False, and does nothing, if another process has it open: a program
    that copies it, for example."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if not _is_ours_alone(fd):
            return False
        size = os.fstat(fd).st_size
        for at in range(0, size, OVERWRITTEN_BYTES):
            os.pwrite(fd, bytes(min(OVERWRITTEN_BYTES, size - at)), at)
        sync_data(fd)
    finally:
        os.close(fd)
    return True


def _is_ours_alone(fd: int) -> bool:
    """Whether nobody else has a file open. The kernel gives a lease for writing only then; it is given back at once.
    Returns True where there are no leases."""
    lease = getattr(fcntl, "F_SETLEASE", None)
    if lease is None:
        return True
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # if somebody opens it now: a signal that nobody hears
        fcntl.fcntl(fd, lease, fcntl.F_WRLCK)
        fcntl.fcntl(fd, lease, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EBUSY)
    return True
