"""Processes of tests: each ends with its block, and what a failed test leaves behind is found and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# In the environment of everything that a run of the tests starts, also indirectly: RUN, or RUN.WORKER for what a worker
# of the run starts.
MARK = "TESTS_OF_STATEWARD"
END_WITHIN_S = 5.0
_CAP_SYS_PTRACE = 19


@contextmanager
def running(
    command: Sequence[str | Path], *, begin: Callable[..., subprocess.Popen[Any]] = subprocess.Popen, **options: Any
) -> Iterator[subprocess.Popen[Any]]:
    """A process that is killed when the block is left. With `begin` alone, a failed test waits for it."""
    process = begin([str(part) for part in command], **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait(END_WITHIN_S)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def sees_hidden() -> bool:
    """Whether this process may read what /proc has of a process that is not dumpable. True on systems without /proc."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) & 1 << _CAP_SYS_PTRACE)
    return True


def marked(mark: str) -> dict[int, str]:
    """Command lines of processes whose mark begins so, by process id. Empty on systems without /proc."""
    found, beginning = {}, f"{MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_marked = any(each.startswith(beginning) for each in (entry / "environ").read_bytes().split(b"\0"))
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if is_marked and command and int(entry.name) != os.getpid():
                found[int(entry.name)] = command
    return found


def end_marked(mark: str, patience_s: float = END_WITHIN_S) -> list[str]:
    """Waits for processes with this mark to end, then kills them. Returns the command lines of the killed ones."""
    end = time.monotonic() + patience_s
    while (left := marked(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    for number in left:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    return list(left.values())
