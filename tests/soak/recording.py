"""What recorder.c wrote down: builds it, runs a daemon under it, and reads its logs as one list of operations.

Each start of the daemon has a log of its own. A mark, (number of the log, bytes in it), is a place in the common order.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

SOURCE = Path(__file__).with_name("recorder.c")
MARKS = "STATEWARD_SOAK_MARKS"  # tells clients where the logs are
_HEAD = struct.Struct("<6I4Q")
_MAGIC = 0x53574C47
IS_DSYNC = 1
Mark = tuple[int, int]


class Kind(IntEnum):
    """As in recorder.c."""

    CREATE = 1
    WRITE = 2
    TRUNCATE = 3
    ALLOCATE = 4
    SYNC = 5
    MKDIR = 6
    LINK = 7
    UNLINK = 8
    RENAME = 9
    RMDIR = 10
    MAP = 11


@dataclass(frozen=True, slots=True)
class Operation:
    """One call that changed or synced something. Paths are relative to the root; `file` is an inode number."""

    kind: Kind
    file: int
    end: Mark  # place in the order just after it
    path: str = ""
    other: str = ""
    offset: int = 0
    length: int = 0
    is_dsync: bool = False
    data: bytes = field(default=b"", repr=False)


def why_not() -> str:
    """Why nothing can be recorded here; empty if it can."""
    if shutil.which("cc") is None:
        return "there is no C compiler (cc)"
    return "" if os.uname().sysname == "Linux" else "the recorder needs Linux"


def build(directory: Path) -> Path:
    """Compiles the recorder."""
    library = directory / "recorder.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


class Recording:
    """The logs of one daemon that was started several times. `root` is what is recorded, `logs` lies outside of it."""

    def __init__(self, library: Path, root: Path, logs: Path) -> None:
        self.root, self.logs = root.resolve(), logs
        self._library = library
        logs.mkdir(exist_ok=True)

    @contextmanager
    def next_log(self) -> Iterator[None]:
        """What is started inside is recorded, in a new log."""
        log = self.logs / f"{len(list(self.logs.iterdir())):06}"
        log.touch()
        added = {
            "LD_PRELOAD": str(self._library),
            "STATEWARD_RECORD_ROOT": str(self.root),
            "STATEWARD_RECORD_LOG": str(log),
        }
        os.environ.update(added)
        try:
            yield
        finally:
            for name in added:
                del os.environ[name]

    def read(self, *, after: int = 0) -> list[Operation]:
        """All operations in order, of the logs from number `after` on. A last record that is cut off does not count."""
        return [operation for log in sorted(self.logs.iterdir())[after:] for operation in read_log(log)]


def current_mark(logs: Path) -> Mark:
    """The place in the order that has been reached now."""
    newest = max(logs.iterdir(), key=lambda path: path.name)
    return int(newest.name), newest.stat().st_size


def read_log(log: Path) -> Iterator[Operation]:
    """The operations of one log."""
    data, at, number = log.read_bytes(), 0, int(log.name)
    while at + _HEAD.size <= len(data):
        magic, kind, flags, path_bytes, other_bytes, _, file, offset, length, data_bytes = _HEAD.unpack_from(data, at)
        if magic != _MAGIC:
            raise ValueError(f"{log} holds no record at {at}")
        path_at = at + _HEAD.size
        data_at = path_at + path_bytes + other_bytes
        at = data_at + data_bytes
        if at > len(data):
            return
        yield Operation(
            kind=Kind(kind), file=file, end=(number, at), offset=offset, length=length,
            path=os.fsdecode(data[path_at : path_at + path_bytes]),
            other=os.fsdecode(data[path_at + path_bytes : data_at]),
            is_dsync=bool(flags & IS_DSYNC), data=data[data_at:at],
        )  # fmt: skip
