"""Calling somebody's function: what it is given, what became of it, and keeping its claim alive meanwhile."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from stateward._operations import Await, Operation
from stateward.effects import EffectState
from stateward.errors import EffectUncertain

KEY_PARAMETER = "idempotency_key"
# So often within its term a claim is renewed: two renewals may fail.
RENEWALS_PER_TERM = 3


@dataclass(frozen=True)
class ToolCall:
    """A function and what it is called with."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        return self.fn(*self.args, **self.kwargs)

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.fn)

    def takes_key(self) -> bool:
        """Whether it has a parameter for the idempotency key that was not given."""
        return KEY_PARAMETER in _parameters(self.fn) and KEY_PARAMETER not in self.kwargs

    def with_key(self, key: str) -> ToolCall:
        """The same, given the idempotency key where it takes it by name."""
        return ToolCall(self.fn, self.args, {**self.kwargs, KEY_PARAMETER: key}) if self.takes_key() else self


def keyed(fn: Callable[..., Any], what: str) -> Callable[[str], ToolCall]:
    """How `fn` is called with an idempotency key: by name where it has such a parameter, else as its only required
    argument, else without. TypeError where it wants more."""
    parameters = _parameters(fn).values()
    if any(each.name == KEY_PARAMETER for each in parameters):
        return lambda key: ToolCall(fn, (), {KEY_PARAMETER: key})
    required = [each for each in parameters if each.default is each.empty and each.kind not in _VARIADIC]
    if len(required) > 1 or any(each.kind is each.KEYWORD_ONLY for each in required):
        raise TypeError(f"{what} may take the idempotency key and nothing else; give the rest with a lambda")
    return (lambda key: ToolCall(fn, (key,))) if required else (lambda _key: ToolCall(fn))


def spread(fn: Callable[..., Any], args: Any) -> ToolCall:
    """`fn` called with arguments that stand in one value; one that takes nothing is called so."""
    if not _parameters(fn):
        return ToolCall(fn)
    if isinstance(args, Mapping):
        return ToolCall(fn, (), args)
    return ToolCall(fn, tuple(args) if isinstance(args, (list, tuple)) else (args,))


def bind_arguments(fn: Callable[..., Any], args: Any, kwargs: Any) -> tuple[ToolCall, dict[str, Any]]:
    """The call, and its arguments by name, however they were given and with defaults filled in."""
    bound = inspect.signature(fn).bind(*args, **kwargs)
    bound.apply_defaults()
    return ToolCall(fn, args, kwargs), dict(bound.arguments)


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError):  # of some functions written in C nothing is known
        return {}


@dataclass(frozen=True)
class Outcome:
    """What became of a call: DONE with a value, or another state with the error."""

    state: EffectState
    value: Any = None
    error: Exception | None = None

    @classmethod
    def of(cls, error: Exception) -> Outcome:
        is_known = not isinstance(error, EffectUncertain)
        return cls(EffectState.FAILED if is_known else EffectState.UNCERTAIN, error=error)


class Tools(Protocol):
    """Calls functions under a claim: `renew()` begins its term anew, and is called every `interval_s` seconds.

    KeyboardInterrupt, SystemExit and cancellation pass: nobody knows what the tool did, and the claim stays as it is.
    """

    def call(self, tool: ToolCall, renew: Callable[[], Operation[None]], interval_s: float) -> Operation[Outcome]:
        """Calls it."""
        ...


class BlockingTools:
    """In this thread. Renews from another one."""

    def __init__(self, run: Callable[[Operation[None]], None]) -> None:
        self._run = run

    def call(self, tool: ToolCall, renew: Callable[[], Operation[None]], interval_s: float) -> Operation[Outcome]:
        """Calls it."""
        yield from ()
        ended = threading.Event()

        def keep() -> None:
            with suppress(Exception):  # the claim is lost, or the client closed: completing it will tell
                while not ended.wait(interval_s):
                    self._run(renew())

        threading.Thread(target=keep, name="stateward-renewal", daemon=True).start()
        try:
            result = tool()
            if inspect.iscoroutine(result):
                result.close()
                error = TypeError(f"{tool.fn!r} is a coroutine function: use AsyncClient, or the decorator")
                return Outcome(EffectState.NEW, error=error)  # it has not begun
            return Outcome(EffectState.DONE, result)
        except Exception as error:  # noqa: BLE001  raised on, when it is recorded
            return Outcome.of(error)
        finally:
            ended.set()


class AwaitedTools:
    """On the event loop, plain functions on a thread of their own, so that they do not hold it. Renews from a task."""

    def __init__(self, run: Callable[[Operation[None]], Awaitable[None]]) -> None:
        self._run = run

    def call(self, tool: ToolCall, renew: Callable[[], Operation[None]], interval_s: float) -> Operation[Outcome]:
        """Calls it."""
        outcome: Outcome = yield Await(self._settled(tool, renew, interval_s))
        return outcome

    async def _settled(self, tool: ToolCall, renew: Callable[[], Operation[None]], interval_s: float) -> Outcome:
        async def keep() -> None:
            with suppress(Exception):
                while True:
                    await asyncio.sleep(interval_s)
                    await self._run(renew())

        renewal = asyncio.create_task(keep())
        try:
            result = tool() if tool.is_async else await asyncio.to_thread(tool)
            return Outcome(EffectState.DONE, await result if inspect.isawaitable(result) else result)
        except Exception as error:  # noqa: BLE001  raised on, when it is recorded
            return Outcome.of(error)
        finally:
            renewal.cancel()
