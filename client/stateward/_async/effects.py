"""`thread.effect` and `thread.cached` for asyncio. The twin of `_sync_effects`, which has the docs."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, ParamSpec, Unpack, cast

from stateward import _caching, _effects, _recording, _sync_effects
from stateward._caching import CacheOptions
from stateward._effects import EffectOptions
from stateward._shell import documented_as
from stateward._tools import AwaitedTools, Tools, bind_arguments
from stateward.effects import Effect, RecordedEffect
from stateward.models import Durability, ThreadOptions

if TYPE_CHECKING:
    from stateward._async import AsyncThread

P = ParamSpec("P")


@documented_as(_sync_effects.ThreadEffects)
class AsyncThreadEffects:
    """Methods of `AsyncThread`. Functions may be coroutine functions or plain ones, which run on a thread."""

    async def effect(self, key: str, fn: Callable[..., Any], **options: Unpack[EffectOptions]) -> Any:
        return await self._run_effect(_effects.plan(key, fn, options))

    async def cached(self, tool: str, args: Any, fn: Callable[..., Any], **options: Unpack[CacheOptions]) -> Any:
        return await self._run_read(_caching.plan_read(tool, args, fn, options))

    def effectful(
        self, key: Callable[..., str], **options: Unpack[EffectOptions]
    ) -> Callable[[Callable[P, Any]], Callable[P, Awaitable[Any]]]:
        def decorate(fn: Callable[P, Any]) -> Callable[P, Awaitable[Any]]:
            @functools.wraps(fn)
            async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
                return await self._run_effect(_effects.plan_call(key, fn, args, kwargs, options))

            return awaited

        return decorate

    def memoized(
        self, tool: str = "", **options: Unpack[CacheOptions]
    ) -> Callable[[Callable[P, Any]], Callable[P, Awaitable[Any]]]:
        def decorate(fn: Callable[P, Any]) -> Callable[P, Awaitable[Any]]:
            @functools.wraps(fn)
            async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
                call, bound = bind_arguments(fn, args, kwargs)
                return await self._run_read(_caching.CachePlan(tool or fn.__name__, bound, call, options))

            return awaited

        return decorate

    def effects(
        self, anchor: str | None = None, *, names: Iterable[str] = (), key: str = "", values: bool = True
    ) -> AsyncIterator[RecordedEffect]:
        thread = cast("AsyncThread", self)
        request = _recording.list_effects(thread._ref, anchor, names, key, values)
        found: AsyncIterator[RecordedEffect] = thread._client._read_list(_recording.read_effects, request)
        return found

    async def put_effects(
        self,
        effects: Iterable[Effect],
        *,
        durability: Durability | str | None = None,
        create: ThreadOptions | None = None,
    ) -> int:
        thread = cast("AsyncThread", self)
        return await thread._run(_recording.put_effects(thread._ref, effects, durability, create))

    async def _run_effect(self, plan: _effects.Plan) -> Any:
        thread = cast("AsyncThread", self)
        return await thread._run(_effects.effect(thread._ref, thread._client._identity.to_proto(), plan, self._tools()))

    async def _run_read(self, plan: _caching.CachePlan) -> Any:
        thread = cast("AsyncThread", self)
        return await thread._run(_caching.cached(thread._ref, thread._client._identity.to_proto(), plan, self._tools()))

    def _tools(self) -> Tools:
        return AwaitedTools(cast("AsyncThread", self)._client._run)
