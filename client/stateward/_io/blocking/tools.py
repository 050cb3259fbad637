"""Calling tools on threads. `aio.tools` is the pair of this file."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from stateward._frames import at_the_caller
from stateward._io.blocking.background import Alarm, Background
from stateward._io.blocking.driving import keep_up
from stateward._io.blocking.session import Session
from stateward._operations.steps import Await, Operation
from stateward._operations.tools import Outcome, ToolCall, Tools
from stateward.effects import EffectState
from stateward.errors import ClaimLost

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Tool = Callable[..., R]
"""A function that an effect calls."""
Reducer = Callable[[R, Any], R]
"""A function that folds an entry of a log into a value."""


class Decorator:
    """Turns `fn` into a function that carries out `start(fn, args, kwargs, tools)`; a coroutine function into a
    coroutine function."""

    def __init__(self, session: Session, start: Callable[[Any, Any, Any, Tools], Operation[Any]]) -> None:
        self._session = session
        self._start = start

    def __call__(self, fn: Callable[P, R]) -> Callable[P, R]:
        if inspect.iscoroutinefunction(fn):

            @at_the_caller
            @functools.wraps(fn)
            async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
                from stateward._io.aio.tools import AwaitedTools  # noqa: PLC0415  costs gRPC's asyncio half

                run = functools.partial(_run_on_loop, self._session)
                return await run(self._start(fn, args, kwargs, AwaitedTools(run)))

            return cast("Callable[P, R]", awaited)

        @at_the_caller
        @functools.wraps(fn)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            result: R = self._session.run(self._start(fn, args, kwargs, tools_of(self._session)))
            return result

        return called


def tools_of(session: Session) -> Tools:
    """Returns how functions are called for a session."""
    return BlockingTools(session.run)


async def _run_on_loop(session: Session, operation: Operation[T]) -> T:
    """Carries out an operation of a blocking client on an event loop, for a decorated coroutine function."""
    from stateward._io.aio.driving import drive  # noqa: PLC0415  costs gRPC's asyncio half

    async def perform(step: Any) -> Any:
        return await step.awaitable if isinstance(step, Await) else await asyncio.to_thread(session.perform, step)

    return await drive(session.with_retries(operation), perform)


class BlockingTools:
    """Calls functions on this thread. Another thread renews the claim."""

    def __init__(self, run: Callable[[Operation[None]], None]) -> None:
        self._run = run

    def call(self, tool: ToolCall, renew: Callable[[], Operation[None]], interval_s: float) -> Operation[Outcome]:
        """Calls it."""
        yield from ()
        ended = Alarm()
        Background("stateward-renewal", lambda: keep_up(ended, interval_s, lambda: self._run(renew()), ClaimLost))
        try:
            result = tool()
            if inspect.iscoroutine(result):
                result.close()
                error = TypeError(f"{tool.fn!r} is a coroutine function: use AsyncClient, or the decorator")
                return Outcome(EffectState.NEW, error=error)  # it was not started
            return Outcome(EffectState.DONE, result)
        except Exception as error:  # noqa: BLE001  raised again once it is recorded
            return Outcome.of(error)
        finally:
            ended.set()
