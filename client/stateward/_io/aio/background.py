"""Locks, alarms and tasks of the asyncio client. `blocking.background` is the pair of this file."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

IS_ASYNC = True
T = TypeVar("T")


class Lock:
    """A reentrant lock for tasks, as `threading.RLock` is for threads."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._holder: asyncio.Task[Any] | None = None
        self._depth = 0

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if self._holder is not task:
            await self._lock.acquire()
            self._holder = task
        self._depth += 1

    async def __aexit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._holder = None
            self._lock.release()


class Alarm:
    """Wakes one waiter. Any thread may set it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def set(self) -> None:
        """Ends the current wait, or the next one."""
        if self._loop is None:
            self._event.set()
            return
        with suppress(RuntimeError):  # the loop is closed, so nobody waits
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float) -> bool:
        """Waits until the alarm is set, for at most this many seconds. Returns whether it was set, and clears it."""
        self._loop = asyncio.get_running_loop()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == float("inf") else seconds):
                await self._event.wait()
        is_set = self._event.is_set()
        self._event.clear()
        return is_set


class Background:
    """A task that runs beside the agent."""

    def __init__(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._task = asyncio.create_task(run(), name=name)

    async def ended(self) -> None:
        """Waits until it has ended."""
        await self._task


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Returns the event loop of the caller."""
    return asyncio.get_running_loop()


async def awaited(found: Awaitable[T]) -> T:
    """Awaits it."""
    return await found


async def settled(found: Awaitable[T] | T) -> T:
    """Returns what a function of the caller returned, awaited if it is awaitable."""
    return await found if inspect.isawaitable(found) else found


async def worked(function: Callable[[], T]) -> T:
    """Calls a function on another thread, so that it does not block the event loop."""
    return await asyncio.to_thread(function)
