"""What a server's processes take of the machine, from /proc."""

from __future__ import annotations

import itertools
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

HAS_PROC = Path("/proc/self/stat").exists()


def resident_bytes(pid: int) -> int:
    """VmRSS of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def anonymous_bytes(pid: int) -> int:
    """Resident memory of a process that is no file."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


class Peak:
    """Looks at a process again and again, from the beginning of a block to its end."""

    EVERY_S = 0.01

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._before = self._most = 0

    @property
    def grown_bytes(self) -> int:
        """How much more memory that is no file it had than before, at most."""
        return self._most - self._before

    def __enter__(self) -> Self:
        self._before = self._most = anonymous_bytes(self._pid)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        with suppress(FileNotFoundError):  # it ended, and the block has an error that says so
            self._most = max(self._most, anonymous_bytes(self._pid))

    def _look(self) -> None:
        with suppress(FileNotFoundError):
            while not self._is_over.wait(self.EVERY_S):
                self._most = max(self._most, anonymous_bytes(self._pid))


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process and its children have taken so far; 0 if the system has no /proc."""
    return sum(map(_own_cpu_s, family(pid))) if HAS_PROC else 0.0


def _own_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime, stime


def family(pid: int) -> list[int]:
    """A process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *itertools.chain.from_iterable(family(int(child)) for child in children)]
