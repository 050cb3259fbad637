"""What a server's processes take of the machine, from /proc."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

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
