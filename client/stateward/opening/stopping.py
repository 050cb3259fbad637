"""Stopping a daemon: never a process that only has its old pid."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from stateward.errors import CannotStart
from stateward.opening.places import Place
from stateward.opening.record import find_live

POLL_S = 0.02


class Process:
    """A process that stays the same one, also if its pid is used again. A context manager."""

    def __init__(self, pid: int) -> None:
        """Raises ProcessLookupError if there is none."""
        self._pid = pid
        self._descriptor = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        if self._descriptor is None:
            os.kill(pid, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal. Does nothing if the process has ended."""
        with suppress(ProcessLookupError):
            if self._descriptor is not None and hasattr(signal, "pidfd_send_signal"):
                signal.pidfd_send_signal(self._descriptor, number)
            else:
                os.kill(self._pid, number)

    def has_ended(self, within_s: float) -> bool:
        """Waits for the end; returns whether it came in time."""
        if self._descriptor is not None:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            return bool(poll.poll(max(within_s, 0) * 1000))
        end = time.monotonic() + within_s
        while True:
            try:
                os.kill(self._pid, 0)
            except ProcessLookupError:
                return True
            if time.monotonic() > end:
                return False
            time.sleep(POLL_S)


def stop_process(pid: int, grace_s: float, *, kills: bool, is_right: Callable[[], bool] = lambda: True) -> int | None:
    """Stops a daemon by its pid, and waits until it has ended. Returns the pid; None = it has ended before.

    `is_right` is asked when the process cannot be confused with another one any more. `kills`: whether a daemon that
    has not ended after `grace_s` is killed, which loses nothing that it answered. Raises CannotStart if it still runs,
    or if this user may not stop it.
    """
    try:
        with Process(pid) as process:
            if not is_right():
                return None
            process.send(signal.SIGTERM)
            if process.has_ended(grace_s):
                return pid
            if kills:
                process.send(signal.SIGKILL)
                if process.has_ended(grace_s):
                    return pid
    except ProcessLookupError:
        return None
    except PermissionError:
        raise CannotStart(f"the daemon (pid {pid}) belongs to another user") from None
    raise CannotStart(f"the daemon (pid {pid}) has not ended within {grace_s:g} s")


def stop_daemon(place: Place, grace_s: float, *, kills: bool) -> int | None:
    """Stops the daemon that works on a data directory, as `stop_process` does. Returns its pid; None = none runs."""
    record = find_live(place)
    if record is None:
        return None
    # The socket is asked once more: the pid may be another process's since.
    return stop_process(record.pid, grace_s, kills=kills, is_right=lambda: find_live(place) == record)
