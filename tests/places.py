"""Where tests have their files: in memory, unless they are about a disk.

A disk takes milliseconds for each sync, and the tests make some ten thousand. Memory shows as much: a process that is
killed loses nothing in either, and a missing sync is found by tests that watch the calls (tests/storage/sync_law.py) or
replay disks (tests/soak). Daemons that are killed at each step, start, are looked at by `doctor`, or hold data that are
measured have a real disk, and so has everything where TESTS_ON_DISK is set or memory is scarce.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

TESTS = Path(__file__).parent
ON_DISK = {"bench", "crash", "deploy", "doctor", "golden", "pages", "project", "soak", "start"}
# A socket's path may have 104 bytes, and the usual temporary directory can be deep.
DISK = Path("/tmp")
MEMORY = Path("/dev/shm")
BYTES_MIN = 4 << 30
_NAME = "swt-"
_SET = "TESTS_IN_MEMORY"  # for workers, and for processes that tests start


def begin() -> Path | None:
    """Makes the directory of this run in memory; removes those of runs that have ended. None: there is no room."""
    if os.environ.get("TESTS_ON_DISK") or not MEMORY.is_dir():
        return None
    for left in MEMORY.glob(f"{_NAME}*"):
        if not Path("/proc", left.name.removeprefix(_NAME).partition("-")[0]).exists():
            shutil.rmtree(left, ignore_errors=True)
    if min(shutil.disk_usage(MEMORY).free, _available()) < BYTES_MIN:
        return None
    made = Path(tempfile.mkdtemp(prefix=f"{_NAME}{os.getpid()}-", dir=MEMORY))
    os.environ[_SET] = str(made)
    return made


def end(made: Path) -> None:
    """Removes the directory of this run."""
    os.environ.pop(_SET, None)
    shutil.rmtree(made, ignore_errors=True)


def of(path: Path) -> Path:
    """A directory with a short path for the daemons of the tests in a file."""
    inside, is_ours = os.environ.get(_SET), path.is_relative_to(TESTS)
    return Path(inside) if inside and is_ours and path.relative_to(TESTS).parts[0] not in ON_DISK else DISK


def is_in_memory() -> bool:
    """Whether this run has a directory in memory."""
    return _SET in os.environ


def _available() -> int:
    """What the system could give to new processes, in bytes."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 0
