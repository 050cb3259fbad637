"""Locks, alarms and threads of the blocking client. `aio.background` is the pair of this file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

IS_ASYNC = False
T = TypeVar("T")


class Lock:
    """A lock that its thread may take again."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class Alarm:
    """Wakes one waiter. May be set from any thread."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Ends the wait that is under way, or the next one."""
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Waits until the alarm is set, or so many seconds are over. Returns whether it was set, and clears it."""
        is_set = self._event.wait(min(seconds, threading.TIMEOUT_MAX))
        self._event.clear()
        return is_set


class Background:
    """Something that runs beside the agent, until it returns."""

    def __init__(self, name: str, run: Callable[[], Any]) -> None:
        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()

    def ended(self) -> None:
        """Waits for its end."""
        self._thread.join()


def running_loop() -> AbstractEventLoop | None:
    """The event loop of the caller: there is none."""
    return None


def awaited(found: object) -> Any:
    """Raises TypeError: this client awaits nothing."""
    if isinstance(found, Coroutine):
        found.close()  # else Python warns that nobody awaited it
    raise TypeError("a coroutine function was given: use AsyncClient, or a plain function")


def settled(found: T) -> T:
    """What a function of the caller's returned."""
    return found
