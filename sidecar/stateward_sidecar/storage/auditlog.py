"""The audit log (`--audit-log`): security events in a file, each line with the SHA-256 of the line before it.

    {"before":"5d41…","time":"2026-01-31T12:00:00.123456Z","event":"denied","said":"a call was denied", …}

The hash is over the bytes of a line without its end. So nobody can change, remove, insert or reorder lines unnoticed,
unless all lines behind them are written again, and that is noticed by whoever keeps the hash of a later line.

A thread of its own writes and syncs the lines, so no call waits for the file. If the file cannot be written, calls go
on: 4,096 events wait, the rest is counted as lost, and a line says how many once the file can be written again. A line
that was not written whole, because the daemon was killed or the disk full, stays as it is; the line behind it says so
(`torn`) and names the line before it.

The file may be renamed at any time: the next event makes a new one, which continues the chain. Two daemons never write
the same file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import threading
from collections import deque
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from stateward_sidecar.errors import StartError
from stateward_sidecar.measures import events
from stateward_sidecar.syncing import sync_data
from stateward_sidecar.telemetry import failures, log

NOTHING = "0" * 64
"""What the first line of a chain has as the hash of the line before it."""
BEGIN = b'{"before":"'
EVENTS_MAX = 4096
"""So many events wait while the file cannot be written."""
BATCH_EVENTS_MAX = 256
"""So many lines share a sync."""
VALUE_CHARS_MAX = 512
TAIL_BYTES = 1 << 20
"""No line is longer."""
AGAIN_S, AGAIN_MAX_S = 0.5, 10.0
"""Pauses before a file that could not be written is tried again."""
CLOSE_S = 2.0
"""How long a stop may wait for the last lines."""
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class AuditLog:
    """The file, and the events that are not in it yet."""

    def __init__(self, path: Path) -> None:
        """Raises StartError."""
        self.path = path
        self._waiting: deque[dict[str, Any]] = deque()
        self._changed = threading.Condition()
        self._is_closing = self._is_idle = False
        self._unsaid = 0  # lost events of which no line says anything yet
        self._before = NOTHING
        self._fragment = b""  # a line that is not whole, at the end of the file
        self._torn: tuple[str, int] | None = None  # such a line has ended, and the next one must say so
        self.why = ""
        """Why the file cannot be written now; empty = it can."""
        try:
            self._fd = self._open()
        except OSError as error:
            raise StartError(f"--audit-log {path}: {error.strerror}") from None
        self._thread = threading.Thread(target=self._run, name="stateward-audit", daemon=True)
        self._thread.start()

    def put(self, event: dict[str, Any]) -> None:
        """Takes an event. Never waits; any thread may call it."""
        timed = {"time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"), **event}
        with self._changed:
            if len(self._waiting) >= EVENTS_MAX:
                self._lose(1)
                return
            self._waiting.append(timed)
            self._changed.notify()

    def close(self) -> None:
        """Writes what waits, as far as that is possible at once."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(CLOSE_S)

    def _lose(self, count: int) -> None:
        self._unsaid += count
        events.audit_lost += count

    def _run(self) -> None:
        pause_s = AGAIN_S
        while True:
            with self._changed:
                while not self._waiting and not self._is_closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                batch = list(islice(self._waiting, BATCH_EVENTS_MAX))
            written = 0
            try:
                self._begin()
                for event in batch:
                    self._append(event)
                    written += 1
                sync_data(self._fd)
            except OSError as error:
                self._fail(error.strerror or type(error).__name__)
            except StartError as error:
                self._fail(error.message)
            except Exception:  # noqa: BLE001  (whatever it is, the next event tries again)
                failures.note("audit log")
                self._fail("it failed unexpectedly")
            else:
                self._recover()
                pause_s = AGAIN_S
            with self._changed:
                for _ in range(written):
                    self._waiting.popleft()
                if not self.why:
                    continue
                if self._is_closing:
                    self._lose(len(self._waiting))
                    return
                self._changed.wait_for(lambda: self._is_closing, pause_s)
                pause_s = min(2 * pause_s, AGAIN_MAX_S)

    def _fail(self, why: str) -> None:
        if self.why != why:
            log.error("the audit log cannot be written; its events wait, and calls go on", error=why)
        self.why, events.audit_failing = why, True

    def _recover(self) -> None:
        if self.why:
            log.info("the audit log is written again")
        self.why, events.audit_failing = "", False

    def _begin(self) -> None:
        """Makes the file ready for the next line: a new one if it was renamed, and the end of a line that is torn."""
        try:
            is_same = os.path.samestat(self.path.lstat(), os.fstat(self._fd))
        except FileNotFoundError:
            is_same = False
        if not is_same:
            last, before = self._fd, self._before
            self._fd = self._open()
            os.close(last)
            if self._before == NOTHING:
                self._before = before
            self._append({"event": "continued", "said": "the file before was renamed or removed", "of": before})
        if self._fragment:
            os.write(self._fd, b"\n")
            self._torn, self._before = (self._before, len(self._fragment)), _hash(self._fragment)
            self._fragment = b""
        if self._torn is not None:
            before, size_bytes = self._torn
            self._append(
                {"event": "torn", "said": "the line before was not written whole", "of": before, "bytes": size_bytes}
            )
            self._torn = None
        if self._unsaid:
            count, said = self._unsaid, "events were lost while the file could not be written"
            self._append({"event": "lost", "said": said, "count": count})
            with self._changed:
                self._unsaid -= count

    def _append(self, event: dict[str, Any]) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        told = {name: each if isinstance(each, int) else str(each)[:VALUE_CHARS_MAX] for name, each in event.items()}
        line = json.dumps({"before": self._before, "time": now, **told}, separators=(",", ":")).encode() + b"\n"
        written = 0
        try:
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except OSError:
            self._fragment += line[:written]
            raise
        self._before = _hash(line[:-1])

    def _open(self) -> int:
        """Opens the file, and reads how it ends. Raises OSError, StartError."""
        fd = os.open(self.path, _FLAGS, 0o600)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise StartError(f"--audit-log {self.path}: it is no file")
            if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise StartError(f"--audit-log {self.path}: others can write it; chmod 600 it")
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StartError(f"--audit-log {self.path}: another daemon writes it; give each its own") from None
            self._read_end(fd, found.st_size)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _read_end(self, fd: int, size_bytes: int) -> None:
        begin = os.pread(fd, len(BEGIN), 0)
        if not BEGIN.startswith(begin):
            raise StartError(f"--audit-log {self.path}: it is no audit log; give another file")
        tail = os.pread(fd, TAIL_BYTES, max(size_bytes - TAIL_BYTES, 0))
        whole, _, self._fragment = tail.rpartition(b"\n")
        self._before = _hash(whole.rpartition(b"\n")[2]) if whole else NOTHING
        if len(self._fragment) == TAIL_BYTES:
            raise StartError(f"--audit-log {self.path}: its last line is too long; give another file")


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
