"""EffectService."""

from __future__ import annotations

from functools import partial

import grpc.aio

from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED
from stateward.v1.effect_service_pb2 import (
    BeginEffectRequest,
    BeginEffectResponse,
    CompleteEffectRequest,
    CompleteEffectResponse,
    DeleteEffectsRequest,
    DeleteEffectsResponse,
    ListEffectsRequest,
    ListEffectsResponse,
    PutEffectsRequest,
    PutEffectsResponse,
    RenewEffectRequest,
    RenewEffectResponse,
)
from stateward_sidecar.service.calls.calls import Calls
from stateward_sidecar.service.calls.ownership import timeout_s
from stateward_sidecar.service.checks import check, checkparts
from stateward_sidecar.service.methods import must_exist

# Approximate space of an entry and its rows, with the pages that they touch.
ENTRY_BYTES = 16384


class EffectService:
    """Claims and results of tool calls."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._effects = calls.store.effects

    async def begin_effect(self, request: BeginEffectRequest, context: grpc.aio.ServicerContext) -> BeginEffectResponse:
        check.check_write(request)
        checkparts.check_begin(request)
        ownership = self._calls.ownership
        strongest = DURABILITY_ARCHIVED if ownership.archive is not None else DURABILITY_COMMITTED
        required = request.options.durability or strongest
        is_archived = ownership.asks_for_archived(required)

        async def begin() -> BeginEffectResponse:
            waits_s = timeout_s(context) if is_archived else 0.0
            return await self._calls.write(self._effects.begin(request, waits_s), context, size_bytes=ENTRY_BYTES)

        answer = await ownership.write(
            request.namespace, request.thread, begin, must_exist=must_exist(request), is_archived=is_archived
        )
        if is_archived and answer.claim_token:
            try:
                await ownership.reach(request, answer.receipt, context)
            finally:
                self._effects.answered(request, answer)
        answer.required_durability = required
        return answer

    async def complete_effect(
        self, request: CompleteEffectRequest, context: grpc.aio.ServicerContext
    ) -> CompleteEffectResponse:
        check.check_write(request)
        checkparts.check_complete(request)

        size = ENTRY_BYTES + request.ByteSize()
        write = partial(self._calls.write, self._effects.complete(request), context, size_bytes=size)
        return await self._calls.ownership.write_one(request, write, context)

    async def renew_effect(self, request: RenewEffectRequest, context: grpc.aio.ServicerContext) -> RenewEffectResponse:
        check.check_place(request)
        checkparts.check_renew(request)

        async def renew() -> RenewEffectResponse:
            verb = self._effects.renew(request)
            return await self._calls.write(verb, context, size_bytes=ENTRY_BYTES, frees_space=True)

        # A renewal writes nothing. Neither a bucket that is away nor a full disk may end a claim whose tool is at work.
        return await self._calls.ownership.write(request.namespace, request.thread, renew, must_exist=True)

    async def put_effects(self, request: PutEffectsRequest, context: grpc.aio.ServicerContext) -> PutEffectsResponse:
        check.check_write(request)
        checkparts.check_put(request)

        size = ENTRY_BYTES * len(request.effects) + request.ByteSize()
        write = partial(self._calls.write, self._effects.put(request), context, size_bytes=size)
        return await self._calls.ownership.write_one(request, write, context)

    async def list_effects(self, request: ListEffectsRequest, context: grpc.aio.ServicerContext) -> ListEffectsResponse:
        check.check_place(request)
        checkparts.check_list(request)
        request.page_size = check.check_page(request.page_size)
        return await self._calls.ownership.read(
            request.namespace, request.thread, lambda: self._calls.scan(self._calls.store.effect_list.read, request)
        )

    async def delete_effects(
        self, request: DeleteEffectsRequest, context: grpc.aio.ServicerContext
    ) -> DeleteEffectsResponse:
        check.check_write(request)
        checkparts.check_delete(request)

        async def delete() -> DeleteEffectsResponse:
            return await self._calls.work(self._calls.store.effect_deleter.delete, request)

        return await self._calls.ownership.write_one(request, delete, context)
