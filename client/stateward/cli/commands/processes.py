"""Ends the processes of a command: its shell, and all that the shell started in its process group."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

PROCESSES = Path("/proc")
# How often a process group is looked at that has lost its shell.
GROUP_POLL_S = 0.1


def kill(process: subprocess.Popen[bytes], number: int) -> None:
    """Sends a signal to all processes of a command that this user may signal."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def has_ended(process: subprocess.Popen[bytes], end: float) -> bool:
    """Waits until the shell of a command and all processes of its group are gone, or until a time of the monotonic
    clock. Returns whether they are gone."""
    try:
        process.wait(max(end - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        return False
    while _is_group(process.pid):
        if time.monotonic() >= end:
            return False
        time.sleep(GROUP_POLL_S)
    return True


def _is_group(number: int) -> bool:
    """Whether a process group has processes."""
    with suppress(ChildProcessError):  # as process 1 of a container, this process has to collect orphans
        while os.waitpid(-number, os.WNOHANG)[0]:
            pass
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # they belong to another user
        return True
    return not _has_only_dead(number)


def _has_only_dead(number: int) -> bool:
    """Whether all processes of a group have ended, and nobody collects them, as in a container whose process 1 does
    not. Needs /proc; returns False without it."""
    try:
        places = [each for each in PROCESSES.iterdir() if each.name.isdigit()]
    except OSError:
        return False
    for each in places:
        with suppress(OSError):
            state, _, group, *_ = (each / "stat").read_text().rpartition(")")[2].split()
            if int(group) == number and state not in ("Z", "X"):
                return False
    return True
