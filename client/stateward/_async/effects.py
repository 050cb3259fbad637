"""`thread.effects`: calls of tools, which are made once and whose results are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeVar, Unpack, overload

from stateward._frames import ends_at_the_caller
from stateward._io.aio.session import AsyncSession
from stateward._io.aio.tools import Decorator, Tool, tools_of
from stateward._operations import caching
from stateward._operations import effects as operations
from stateward._operations.caching import CacheOptions, CachePlan
from stateward._operations.effects import EffectOptions, Plan
from stateward._operations.steps import Operation, ThreadRef
from stateward._operations.tools import Tools, bind_arguments, keyed, spread
from stateward.effects import Effect, RecordedEffect
from stateward.models import Durability
from stateward.options import ThreadOptions

R = TypeVar("R")


@ends_at_the_caller
class AsyncEffects:
    """The effects of a thread: results of calls that must happen once, such as a payment."""

    def __init__(self, session: AsyncSession, ref: ThreadRef) -> None:
        self._session = session
        self._ref = ref

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._ref.thread!r})"

    @overload  # asyncio
    async def run(self, key: str, fn: Callable[..., Awaitable[R]], **options: Unpack[EffectOptions]) -> R: ...
    @overload  # asyncio
    async def run(self, key: str, fn: Callable[..., R], **options: Unpack[EffectOptions]) -> R: ...
    async def run(self, key: str, fn: Tool[R], **options: Unpack[EffectOptions]) -> R:
        """Calls `fn` under a claim on `key`, and keeps its result: later calls with the key return the kept result.

        `fn` gets the idempotency key, which is the same for all attempts, if it has a parameter `idempotency_key` or
        exactly one required parameter. Otherwise it is called without arguments.

        Raises what `fn` raises; later calls then raise EffectFailed. If a process died during the call, `check` finds
        out what happened. Without `check` the function is called again if it is `idempotent`; otherwise the call raises
        EffectUncertain. Raises EffectInProgress if another caller holds the claim for longer than `wait`. Raises
        ClaimLost if another caller took the claim; the error has the result if `fn` was called.

        After KeyboardInterrupt and SystemExit nobody knows what `fn` did. The claim then stays until its term ends, or
        until this agent starts again with the same `holder`.
        """
        plan = Plan(key, keyed(fn, "fn"), options)
        result: R = await self._session.run(self._run(plan, tools_of(self._session)))
        return result

    @overload  # asyncio
    async def cached(
        self, tool: str, args: Any, fn: Callable[..., Awaitable[R]], **options: Unpack[CacheOptions]
    ) -> R: ...
    @overload  # asyncio
    async def cached(self, tool: str, args: Any, fn: Callable[..., R], **options: Unpack[CacheOptions]) -> R: ...
    async def cached(self, tool: str, args: Any, fn: Tool[R], **options: Unpack[CacheOptions]) -> R:
        """Returns the result of a tool that only reads, kept under the tool's name and the hash of `args`.

        Calls `fn` if no result is kept, and keeps its result, but not its errors. Concurrent calls read once. `args` is
        any JSON value: `fn` gets a mapping as keyword arguments, a list as positional arguments, and anything else as
        its only argument. A `fn` without parameters gets nothing.
        """
        plan = CachePlan(tool, args, spread(fn, args), options)
        result: R = await self._session.run(self._cached(plan, tools_of(self._session)))
        return result

    def wrap(self, key: Callable[..., str], **options: Unpack[EffectOptions]) -> Decorator:
        """Returns `run` as a decorator: `@thread.effects.wrap(lambda order: f"pay:{order}")`.

        `key` gets the arguments of each call and returns the key of the effect. The function gets the idempotency key
        if it has a parameter `idempotency_key`.
        """

        def start(fn: Callable[..., Any], args: Any, kwargs: Any, tools: Tools) -> Operation[Any]:
            return self._run(operations.plan_call(key, fn, args, kwargs, options), tools)

        return Decorator(self._session, start)

    def memoized(self, tool: str = "", **options: Unpack[CacheOptions]) -> Decorator:
        """Returns `cached` as a decorator. `tool` is the function's name by default. Default arguments are part of the
        hash."""

        def start(fn: Callable[..., Any], args: Any, kwargs: Any, tools: Tools) -> Operation[Any]:
            call, bound = bind_arguments(fn, args, kwargs)
            return self._cached(CachePlan(tool or fn.__name__, bound, call, options), tools)

        return Decorator(self._session, start)

    def list(
        self, anchor: str | None = None, *, names: Iterable[str] = (), key: str = "", values: bool = True
    ) -> AsyncIterator[RecordedEffect]:
        """Lists recorded effects in the order of their sort keys, page by page; `anchor` None = those of all anchors.

        `names` and `key` select effects. `values=False` leaves the results out.
        """
        request = operations.list_effects(self._ref, anchor, names, key, values)
        return self._session.read_list(operations.read_effects, request)

    async def put(
        self,
        effects: Iterable[Effect],
        *,
        durability: Durability | str | None = None,
        create: ThreadOptions | None = None,
    ) -> int:
        """Records at most 1,000 results without claims, all or none. Returns how many were not recorded before.

        Raises ClaimLost if another caller holds the claim on one of them. `save(state, effects=…)` records results
        together with a version.
        """
        return await self._session.run(operations.put_effects(self._ref, effects, durability, create))

    async def delete(
        self, anchor: str, keys: Iterable[str] | None = None, *, durability: Durability | str | None = None
    ) -> int:
        """Deletes effects of an anchor with their values, and returns how many there were; `keys` None = all of them.

        At most 1,000 keys; keys without an effect are passed over. Effects are deleted in whatever state they are: the
        holder of a claim gets ClaimLost when its call ends. Raises LeaseHeld, ThreadNotFound or UidMismatch.
        """
        return await self._session.run(operations.delete_effects(self._ref, anchor, keys, durability))

    def _run(self, plan: Plan, tools: Tools) -> Operation[Any]:
        session = self._session
        return operations.effect(self._ref, session.holder.to_proto(), plan, tools, session.daemon)

    def _cached(self, plan: CachePlan, tools: Tools) -> Operation[Any]:
        session = self._session
        return caching.cached(self._ref, session.holder.to_proto(), plan, tools, session.daemon)
