"""`daemon.json`: which daemon works on a data directory, and whether it is really that daemon that listens."""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from stateward._version import VERSION
from stateward.opening.files import read_file
from stateward.opening.places import Place

DIAL_S = 1.0
_MAC_LEVEL, _MAC_PEER_PID = 0, 2  # SOL_LOCAL and LOCAL_PEERPID, which Python does not name


@dataclass(frozen=True)
class DaemonRecord:
    """A daemon, as it describes itself."""

    pid: int
    start_time: str
    """When it was ready, in ISO 8601."""
    target: str
    version: str
    idle_exit_s: float
    """After what time without use it ends; 0 = never."""
    archive: str
    """The URL of its archive; "" = it has none."""

    @property
    def is_ours(self) -> bool:
        """Whether a client of `open()` has started it, so that such a client may also stop it."""
        return self.idle_exit_s > 0

    def is_process(self, pid: int) -> bool:
        """Whether it is the process with this pid, which is 0 if the system does not tell it."""
        return pid in (0, self.pid) or self.pid in _pids(pid)

    @property
    def is_older(self) -> bool:
        """Whether it has an older version than this client."""
        return _order(self.version) < _order(VERSION)


def find_live(place: Place) -> DaemonRecord | None:
    """Returns the daemon that works on the data directory; None if none is ready. Raises CannotStart."""
    record = read_record(place)
    return record if record is not None and is_live(record) else None


def read_record(place: Place) -> DaemonRecord | None:
    """Returns what `daemon.json` says; None if it is missing, unreadable, or was written for another directory: then
    the data directory is a copy."""
    content = read_file(place.daemon_file)
    if content is None:
        return None
    try:
        directory, record = _parse(content)
        here = os.stat(place.data_dir)  # noqa: PTH116  a Path takes longer
    except (ValueError, KeyError, TypeError, OSError):
        return None
    return record if directory == f"{here.st_dev}:{here.st_ino}" else None


@lru_cache(maxsize=16)
def _parse(content: bytes) -> tuple[str, DaemonRecord]:
    """Returns the directory that a `daemon.json` was written for, as its device and inode, and the rest. Raises
    ValueError, KeyError and TypeError."""
    found: dict[str, Any] = json.loads(content)
    return found["directory"], DaemonRecord(
        pid=int(found["pid"]), start_time=str(found["start_time"]), target=str(found["target"]),
        version=str(found["version"]), idle_exit_s=float(found["idle_exit_s"]), archive=str(found["archive"]),
    )  # fmt: skip


def is_live(record: DaemonRecord) -> bool:
    """Whether the daemon listens. A killed daemon leaves its file; another daemon may listen at its socket since."""
    if not record.target.startswith("unix://"):
        return _answers_port(record.target)
    found = dial(Path(record.target.removeprefix("unix://")))
    return found is not None and record.is_process(found)


def dial(path: Path) -> int | None:
    """Returns the pid of the process that listens at a socket, 0 if it is not known, and None if nobody listens."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(DIAL_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            return 0  # a daemon that is too busy to accept, or stopped
        with suppress(OSError):
            if sys.platform == "linux":
                told = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                return int(struct.unpack("3i", told)[0])
            if sys.platform == "darwin":
                return int(struct.unpack("i", probe.getsockopt(_MAC_LEVEL, _MAC_PEER_PID, 4))[0])
    return 0


def _pids(pid: int) -> set[int]:
    """The process ids of a process: the one seen here, and those in the containers that it is in."""
    found = {pid}
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                found |= {int(each) for each in line.split()[1:]}
    return found


def _answers_port(target: str) -> bool:
    host, _, port = target.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), DIAL_S).close()
    except (OSError, ValueError):
        return False
    return True


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))

