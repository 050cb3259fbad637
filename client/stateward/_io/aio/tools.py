"""Calling tools on an event loop. `blocking.tools` is the pair of this file."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar, overload

from stateward._frames import at_the_caller
from stateward._io.aio.background import Alarm
from stateward._io.aio.driving import keep_up
from stateward._io.aio.session import AsyncSession
from stateward._operations.steps import Await, Operation
from stateward._operations.tools import Outcome, ToolCall, Tools
from stateward.effects import EffectState
from stateward.errors import ClaimLost

P = ParamSpec("P")
R = TypeVar("R")

Tool = Callable[..., Awaitable[R] | R]
"""A function that an effect calls: a coroutine function or a plain one."""
Reducer = Callable[[R, Any], Awaitable[R] | R]
"""A function that folds an entry of a log into a value."""


class Decorator:
    """Turns `fn` into a coroutine function that carries out `start(fn, args, kwargs, tools)`."""

    def __init__(self, session: AsyncSession, start: Callable[[Any, Any, Any, Tools], Operation[Any]]) -> None:
        self._session = session
        self._start = start

    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]: ...
    @overload
    def __call__(self, fn: Callable[P, R]) -> Callable[P, Awaitable[R]]: ...
    def __call__(self, fn: Callable[P, Any]) -> Callable[P, Awaitable[Any]]:
        @at_the_caller
        @functools.wraps(fn)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            return await self._session.run(self._start(fn, args, kwargs, tools_of(self._session)))

        return awaited


def tools_of(session: AsyncSession) -> Tools:
    """Returns how functions are called for a session."""
    return AwaitedTools(session.run)


class AwaitedTools:
    """Calls coroutine functions on the event loop, and plain functions on a thread, so that they do not block the loop.

    A task renews the claim. A plain function cannot be cancelled: its claim is renewed until it has ended, so that
    nobody else calls it meanwhile.
    """

    def __init__(self, run: Callable[[Operation[None]], Awaitable[None]]) -> None:
        self._run = run

    def call(self, tool: ToolCall, renew: Callable[[], Operation[None]], interval_s: float) -> Operation[Outcome]:
        """Calls it."""
        outcome: Outcome = yield Await(self._settled(tool, renew, interval_s))
        return outcome

    async def _settled(self, tool: ToolCall, renew: Callable[[], Operation[None]], interval_s: float) -> Outcome:
        keeping = keep_up(Alarm(), interval_s, lambda: self._run(renew()), ClaimLost)
        renewal, working = asyncio.create_task(keeping), _OnThread(tool)
        try:
            result = tool() if tool.is_async else await asyncio.to_thread(working)
            return Outcome(EffectState.DONE, await result if inspect.isawaitable(result) else result)
        except Exception as error:  # noqa: BLE001  raised again once it is recorded
            return Outcome.of(error)
        finally:
            working.when_over(renewal.cancel)


class _OnThread:
    """A function that is called on another thread, unless its caller is gone before. Made on the event loop."""

    def __init__(self, tool: ToolCall) -> None:
        self._tool = tool
        self._loop = asyncio.get_running_loop()
        self._turn = threading.Lock()  # whoever takes it first decides whether the function is called
        self._ended = self._loop.create_future()

    def __call__(self) -> Any:
        if not self._turn.acquire(blocking=False):
            return None  # its caller is gone
        try:
            return self._tool()
        finally:
            with suppress(RuntimeError):  # the event loop was closed
                self._loop.call_soon_threadsafe(self._ended.set_result, None)

    def when_over(self, call: Callable[[], Any]) -> None:
        """Calls `call` on the event loop once the function has ended, or will not be called any more."""
        if self._turn.acquire(blocking=False) or self._ended.done():
            call()
        else:
            self._ended.add_done_callback(lambda _: call())
