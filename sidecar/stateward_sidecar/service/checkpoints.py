"""CheckpointService."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import grpc.aio
import lmdb

from stateward.v1.checkpoint_service_pb2 import (
    BatchSaveRequest,
    BatchSaveResponse,
    DiffCheckpointsRequest,
    DiffCheckpointsResponse,
    Direction,
    GetCheckpointRequest,
    GetCheckpointResponse,
    HydrateRequest,
    ListCheckpointsRequest,
    ListCheckpointsResponse,
    ReadHistoryRequest,
    ReadHistoryResponse,
    SaveRequest,
    SaveResponse,
)
from stateward_sidecar.codec.edits import Named
from stateward_sidecar.errors import InvalidField, StatewardError
from stateward_sidecar.service import check
from stateward_sidecar.service.calls import Calls
from stateward_sidecar.storage.writer import Batch
from stateward_sidecar.store.save import SaveWrite

# A smaller save is prepared on the event loop: handing it to a worker would cost more.
INLINE_BYTES_MAX = 64 << 10


class CheckpointService:
    """Saving and reading versions."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._store = calls.store

    async def save(self, request: SaveRequest, context: grpc.aio.ServicerContext) -> SaveResponse:
        thread = self._store.threads.cached(request.namespace or check.DEFAULT_NAMESPACE, request.thread)
        is_small = request.ByteSize() <= INLINE_BYTES_MAX
        if is_small:
            named = check.check_save(request, is_known=thread is not None)
        else:
            named = await self._calls.read(check.check_save, request)
        holding = self._calls.holding
        is_archived = holding.is_wanted(request.durability)

        async def save_now() -> SaveResponse:
            known = self._store.threads.cached(request.namespace, request.thread)
            save = SaveWrite(self._store.context, self._store.threads, request, named)
            if known is None or not is_small or not save.prepare_hot(known):
                await self._prepare(save)
            answer = await self._calls.write(save.run, context, size_bytes=save.size_bytes, is_retry=save.is_retry)
            self._consider_snapshot(save)
            return answer

        if holding.archive is None:
            return await save_now()
        answer = await holding.write(request.namespace, request.thread, save_now, is_archived=is_archived)
        if is_archived:
            await self._archive(answer, request, context)
        return answer

    async def _archive(self, answer: SaveResponse, request: SaveRequest, context: grpc.aio.ServicerContext) -> None:
        """Waits until a save is archived, or as long as its caller can."""
        answer.durability, answer.archived_sequence = await self._calls.holding.archived(
            request.namespace, request.thread, answer.sequence, context
        )

    async def batch_save(self, request: BatchSaveRequest, context: grpc.aio.ServicerContext) -> BatchSaveResponse:
        named = check.check_batch(request)
        holding = self._calls.holding
        wanted = [_named(index, holding.is_wanted, item.durability) for index, item in enumerate(request.saves)]

        async def save_all(left: int = len(request.saves)) -> BatchSaveResponse:
            """Holds one thread after the other, then saves."""
            if left == 0:
                return await self._batch_save(request, named, context)
            item = request.saves[left - 1]
            try:
                return await holding.write(
                    item.namespace, item.thread, lambda: save_all(left - 1), is_archived=wanted[left - 1]
                )
            except StatewardError as error:
                raise error if "item" in error.metadata else check.in_item(error, f"saves[{left - 1}]") from None

        answer = await (save_all() if holding.archive is not None else save_all(0))
        for index, item in enumerate(request.saves):
            if wanted[index]:
                await self._archive(answer.saves[index], item, context)
        return answer

    async def _batch_save(
        self, request: BatchSaveRequest, named: Sequence[Sequence[Named]], context: grpc.aio.ServicerContext
    ) -> BatchSaveResponse:
        store = self._store
        saves = [
            SaveWrite(store.context, store.threads, item, each) for item, each in zip(request.saves, named, strict=True)
        ]
        for index, save in enumerate(saves):
            try:
                thread = self._store.threads.cached(save.namespace, save.request.thread)
                if thread is None or save.request.ByteSize() > INLINE_BYTES_MAX or not save.prepare_hot(thread):
                    await self._prepare(save)
            except StatewardError as error:
                raise check.in_item(error, f"saves[{index}]") from None

        def run(txn: lmdb.Transaction, batch: Batch) -> BatchSaveResponse:
            answer = BatchSaveResponse()
            for index, save in enumerate(saves):
                try:
                    answer.saves.append(save.run(txn, batch))
                except StatewardError as error:
                    raise check.in_item(error, f"saves[{index}]") from None
            return answer

        size_bytes = sum(save.size_bytes for save in saves)
        answer = await self._calls.write(
            run, context, size_bytes=size_bytes, is_alone=True,
            is_retry=lambda txn, batch: all(save.is_retry(txn, batch) for save in saves),
        )  # fmt: skip
        for save in saves:
            self._consider_snapshot(save)
        return answer

    async def hydrate(self, request: HydrateRequest, context: grpc.aio.ServicerContext) -> bytes:
        check.check_hydrate(request)
        holding = self._calls.holding
        if self._store.reader.is_hot(request) and holding.is_held(request.namespace, request.thread):
            return self._store.read(self._store.reader.hydrate, request)
        return await holding.read(
            request.namespace, request.thread, lambda: self._calls.read(self._store.reader.hydrate, request)
        )

    async def get_checkpoint(
        self, request: GetCheckpointRequest, context: grpc.aio.ServicerContext
    ) -> GetCheckpointResponse:
        check.check_place(request)
        if request.HasField("version"):
            check.check_ref(request.version, "version")
        found = await self._calls.holding.read(
            request.namespace, request.thread, lambda: self._calls.read(self._store.reader.get, request)
        )
        return GetCheckpointResponse(checkpoint=found)

    async def list_checkpoints(
        self, request: ListCheckpointsRequest, context: grpc.aio.ServicerContext
    ) -> ListCheckpointsResponse:
        check.check_place(request, all_allowed=True)
        check.check_labels(request.labels, "labels")
        check.check_statuses(request.statuses)
        request.page_size = check.check_page(request.page_size)
        if request.HasField("before"):
            check.check_ref(request.before, "before")
            if request.thread == check.ALL_THREADS:
                raise InvalidField("before", "names a version of one thread and does not go with all threads")
        if request.thread == check.ALL_THREADS:
            return await self._calls.read(self._store.lister.checkpoints, request)
        return await self._calls.holding.read(
            request.namespace, request.thread, lambda: self._calls.read(self._store.lister.checkpoints, request)
        )

    async def read_history(
        self, request: ReadHistoryRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[ReadHistoryResponse]:
        check.check_place(request)
        if request.HasField("version"):
            check.check_ref(request.version, "version")
        if request.from_version < 0:
            raise InvalidField("from_version", f"{request.from_version} is negative")
        if request.direction not in Direction.values():
            raise InvalidField("direction", f"{request.direction} is unknown")
        if request.HasField("projection"):
            check.check_projection(request.projection)
        steps = self._store.reader.history(request, self._store.read)

        async def begin() -> ReadHistoryResponse | None:
            nonlocal steps
            steps = self._store.reader.history(request, self._store.read)
            return await self._calls.step(steps)

        answer = await self._calls.holding.read(request.namespace, request.thread, begin)
        while answer is not None:
            yield answer
            answer = await self._calls.step(steps)

    async def diff_checkpoints(
        self, request: DiffCheckpointsRequest, context: grpc.aio.ServicerContext
    ) -> DiffCheckpointsResponse:
        check.check_place(request)
        if request.HasField("from"):
            check.check_ref(getattr(request, "from"), "from", zero_allowed=True)
        if request.HasField("to"):
            check.check_ref(request.to, "to")
        check.check_max_bytes(request.max_bytes)
        return await self._calls.holding.read(
            request.namespace, request.thread, lambda: self._calls.read(self._store.reader.diff, request)
        )

    async def _prepare(self, save: SaveWrite) -> None:
        """Prepares a save that takes reading or long work."""
        await self._calls.read(self._prepare_now, save)

    def _prepare_now(self, save: SaveWrite) -> None:
        with self._store.context.engine.read() as txn:
            save.prepare(txn, self._store.threads.find(txn, save.namespace, save.request.thread))

    def _consider_snapshot(self, save: SaveWrite) -> None:
        if save.draft is not None:
            self._store.snapshots.consider(save.draft.thread, save.branch)


def _named(index: int, rule: Callable[[int], bool], value: int) -> bool:
    """What a rule says of an item of a batch; its errors name the item."""
    try:
        return rule(value)
    except StatewardError as error:
        raise check.in_item(error, f"saves[{index}]") from None
