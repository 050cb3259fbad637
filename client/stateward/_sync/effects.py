"""`thread.effect` and `thread.cached`: tools that are called once."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast

from stateward import _caching, _effects, _recording
from stateward._caching import CacheOptions
from stateward._effects import EffectOptions
from stateward._operations import Await, Operation
from stateward._tools import AwaitedTools, BlockingTools, Tools, bind_arguments
from stateward.effects import Effect, RecordedEffect
from stateward.models import Durability, ThreadOptions

if TYPE_CHECKING:
    from stateward._sync import Client, Thread

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class ThreadEffects:
    """Methods of `Thread`."""

    def effect(self, key: str, fn: Callable[..., R], **options: Unpack[EffectOptions]) -> R:
        """Calls `fn` and keeps its result; whoever asks for this key again gets that, after any crash too.

        `fn` is given the idempotency key, the same for all attempts, where it has a parameter `idempotency_key`, or one
        required parameter of any name; otherwise it is called without arguments.

        If it raises, that is recorded: later calls raise EffectFailed. If nobody saw its call end, `check` finds out
        what happened, else it is called again where it is `idempotent`, else EffectUncertain is raised. While somebody
        else is at it this waits, at most `wait` seconds; then EffectInProgress. ClaimLost where the claim was taken
        while `fn` worked: its result is in the error.

        After KeyboardInterrupt and SystemExit nobody knows what `fn` did: the claim stays until its term ends, or this
        agent is started again under the same `holder`.
        """
        thread = cast("Thread", self)
        result: R = thread._run(self._effect(_effects.plan(key, fn, options), _blocking(thread._client)))
        return result

    def cached(self, tool: str, args: Any, fn: Callable[..., R], **options: Unpack[CacheOptions]) -> R:
        """The result of a tool that only reads, kept under its name and the hash of `args`: `fn` is called once.

        `args` is whatever JSON can say: a mapping is given to `fn` by name, a list by position, anything else alone; a
        `fn` without parameters is called without. Errors are not kept. Concurrent calls read once.
        """
        thread = cast("Thread", self)
        result: R = thread._run(self._read(_caching.plan_read(tool, args, fn, options), _blocking(thread._client)))
        return result

    def effectful(
        self, key: Callable[..., str], **options: Unpack[EffectOptions]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """`effect` as a decorator: `@thread.effectful(lambda order: f"pay:{order}")`; `key` gets what the call gets.

        The function is given the idempotency key where it has a parameter of that name.
        """

        def start(fn: Callable[..., Any], args: Any, kwargs: Any, tools: Tools) -> Operation[Any]:
            return self._effect(_effects.plan_call(key, fn, args, kwargs, options), tools)

        return self._decorator(start)

    def memoized(self, tool: str = "", **options: Unpack[CacheOptions]) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """`cached` as a decorator; `tool` is the function's name unless it is given. Defaults count as given."""

        def start(fn: Callable[..., Any], args: Any, kwargs: Any, tools: Tools) -> Operation[Any]:
            call, bound = bind_arguments(fn, args, kwargs)
            return self._read(_caching.CachePlan(tool or fn.__name__, bound, call, options), tools)

        return self._decorator(start)

    def effects(
        self, anchor: str | None = None, *, names: Iterable[str] = (), key: str = "", values: bool = True
    ) -> Iterator[RecordedEffect]:
        """What tools did, in the order of sort keys; None = of all anchors. Read page by page."""
        thread = cast("Thread", self)
        request = _recording.list_effects(thread._ref, anchor, names, key, values)
        found: Iterator[RecordedEffect] = thread._client._read_list(_recording.read_effects, request)
        return found

    def put_effects(
        self,
        effects: Iterable[Effect],
        *,
        durability: Durability | str | None = None,
        create: ThreadOptions | None = None,
    ) -> int:
        """Records results without claims, all or none, at most 1,000; how many were not there before.

        ClaimLost where somebody is at one of them. `save(state, effects=…)` records them together with a version.
        """
        thread = cast("Thread", self)
        return thread._run(_recording.put_effects(thread._ref, effects, durability, create))

    def _effect(self, plan: _effects.Plan, tools: Tools) -> Operation[Any]:
        thread = cast("Thread", self)
        return _effects.effect(thread._ref, thread._client._identity.to_proto(), plan, tools)

    def _read(self, plan: _caching.CachePlan, tools: Tools) -> Operation[Any]:
        thread = cast("Thread", self)
        return _caching.cached(thread._ref, thread._client._identity.to_proto(), plan, tools)

    def _decorator(self, start: Callable[..., Operation[Any]]) -> Callable[[Callable[P, R]], Callable[P, R]]:
        client = cast("Thread", self)._client

        def decorate(fn: Callable[P, R]) -> Callable[P, R]:
            if inspect.iscoroutinefunction(fn):

                @functools.wraps(fn)
                async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
                    tools = AwaitedTools(functools.partial(_finish, client))
                    return await _finish(client, start(fn, args, kwargs, tools))

                return cast("Callable[P, R]", awaited)

            @functools.wraps(fn)
            def called(*args: P.args, **kwargs: P.kwargs) -> R:
                result: R = client._run(start(fn, args, kwargs, _blocking(client)))
                return result

            return called

        return decorate


def _blocking(client: Client) -> Tools:
    return BlockingTools(client._run)


async def _finish(client: Client, operation: Operation[T]) -> T:
    """Drives an operation of a blocking client from an event loop, for a decorated coroutine function."""
    from stateward._async_io import drive  # noqa: PLC0415  costs gRPC's asyncio half

    async def perform(step: Any) -> Any:
        return await step.awaitable if isinstance(step, Await) else await asyncio.to_thread(client._perform, step)

    return await drive(client._with_retries(operation), perform)
