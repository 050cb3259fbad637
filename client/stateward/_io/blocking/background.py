"""Locks, alarms and threads of the blocking client. `aio.background` is the pair of this file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from stateward._io import forks

IS_ASYNC = False
T = TypeVar("T")


class Lock:
    """A reentrant lock for threads. In a forked child it is free, unless the thread that forked holds it."""

    def __init__(self) -> None:
        self._lock = forks.Lock(is_reentrant=True)

    def __enter__(self) -> None:
        self._lock.__enter__()

    def __exit__(self, *error: object) -> None:
        self._lock.__exit__()


class Alarm:
    """Wakes one waiter. Any thread may set it."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Ends the current wait, or the next one."""
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Waits until the alarm is set, for at most this many seconds. Returns whether it was set, and clears it."""
        is_set = self._event.wait(min(seconds, threading.TIMEOUT_MAX))
        self._event.clear()
        return is_set


class Background:
    """A thread that runs beside the agent."""

    def __init__(self, name: str, run: Callable[[], Any]) -> None:
        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()

    def ended(self) -> None:
        """Waits until it has ended."""
        self._thread.join()


def running_loop() -> Any:
    """Returns None: a blocking client has no event loop."""
    return None


def awaited(found: object) -> Any:
    """Raises TypeError: a blocking client cannot await."""
    if isinstance(found, Coroutine):
        found.close()  # else Python warns that it was never awaited
    raise TypeError("a coroutine function was given: use AsyncClient, or a plain function")


def settled(found: T) -> T:
    """Returns what a function of the caller returned."""
    return found


def worked(function: Callable[[], T]) -> T:
    """Calls a function."""
    return function()
