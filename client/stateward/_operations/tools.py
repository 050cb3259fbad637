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
from stateward.errors import ClaimLost, EffectUncertain, StatewardError

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
        try:
            return self.fn(*self.args, **self.kwargs)
        except StopIteration as error:  # no future can hold one: whoever awaits the call would wait for ever
            raise RuntimeError("the tool raised StopIteration") from error

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.fn)

    def takes_key(self) -> bool:
        """Whether it has a parameter for the idempotency key that was not given."""
        return KEY_PARAMETER in (_parameters(self.fn) or {}) and KEY_PARAMETER not in self.kwargs

    def with_key(self, key: str) -> ToolCall:
        """The same, given the idempotency key where it takes it by name."""
        return ToolCall(self.fn, self.args, {**self.kwargs, KEY_PARAMETER: key}) if self.takes_key() else self


def keyed(fn: Callable[..., Any], what: str) -> Callable[[str], ToolCall]:
    """How `fn` is called with an idempotency key: by name where it has such a parameter, else as its only required
    argument, else without, as where nothing is known of it. TypeError where it wants more, or is no function."""
    require_callable(fn, what)
    parameters = (_parameters(fn) or {}).values()
    if any(each.name == KEY_PARAMETER for each in parameters):
        return lambda key: ToolCall(fn, (), {KEY_PARAMETER: key})
    required = [each for each in parameters if each.default is each.empty and each.kind not in _VARIADIC]
    if len(required) > 1 or any(each.kind is each.KEYWORD_ONLY for each in required):
        raise TypeError(f"{what} may take the idempotency key and nothing else; give the rest with a lambda")
    return (lambda key: ToolCall(fn, (key,))) if required else (lambda _key: ToolCall(fn))


def spread(fn: Callable[..., Any], args: Any) -> ToolCall:
    """`fn` called with arguments that stand in one value; one that is known to take nothing is called so."""
    require_callable(fn, "fn")
    parameters = _parameters(fn)
    if parameters is not None and not parameters:
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


def _parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """None = not known, as of some functions written in C."""
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return None


def require_callable(fn: object, what: str) -> None:
    """TypeError for what cannot be called."""
    if not callable(fn):
        raise TypeError(f"{what} takes a function, not {fn!r}")


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

    A renewal that fails is followed by the next one, unless the claim is lost: completing it will tell. So it outlives
    a daemon that is away for less than its term.

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
            with suppress(Exception):  # the client was closed
                while not ended.wait(interval_s):
                    try:
                        self._run(renew())
                    except ClaimLost:
                        return
                    except StatewardError:
                        continue

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
    """On the event loop, plain functions on a thread of their own, so that they do not hold it. Renews from a task.

    A plain function cannot be cancelled: its claim is renewed until it has ended, so that nobody calls it meanwhile.
    """

    def __init__(self, run: Callable[[Operation[None]], Awaitable[None]]) -> None:
        self._run = run

    def call(self, tool: ToolCall, renew: Callable[[], Operation[None]], interval_s: float) -> Operation[Outcome]:
        """Calls it."""
        outcome: Outcome = yield Await(self._settled(tool, renew, interval_s))
        return outcome

    async def _settled(self, tool: ToolCall, renew: Callable[[], Operation[None]], interval_s: float) -> Outcome:
        async def keep() -> None:
            with suppress(Exception):  # the client was closed
                while True:
                    await asyncio.sleep(interval_s)
                    try:
                        await self._run(renew())
                    except ClaimLost:
                        return
                    except StatewardError:
                        continue

        renewal, working = asyncio.create_task(keep()), _OnThread(tool)
        try:
            result = tool() if tool.is_async else await asyncio.to_thread(working)
            return Outcome(EffectState.DONE, await result if inspect.isawaitable(result) else result)
        except Exception as error:  # noqa: BLE001  raised on, when it is recorded
            return Outcome.of(error)
        finally:
            working.when_over(renewal.cancel)


class _OnThread:
    """A function that is called on another thread, or not at all any more. Made on the event loop."""

    def __init__(self, tool: ToolCall) -> None:
        self._tool = tool
        self._loop = asyncio.get_running_loop()
        self._turn = threading.Lock()  # who takes it first decides whether the function is called
        self._ended = self._loop.create_future()

    def __call__(self) -> Any:
        if not self._turn.acquire(blocking=False):
            return None  # nobody waits for it any more
        try:
            return self._tool()
        finally:
            with suppress(RuntimeError):  # the event loop was closed
                self._loop.call_soon_threadsafe(self._ended.set_result, None)

    def when_over(self, call: Callable[[], Any]) -> None:
        """Calls it, on the event loop, once the function does not run and will not."""
        if self._turn.acquire(blocking=False) or self._ended.done():
            call()
        else:
            self._ended.add_done_callback(lambda _: call())
