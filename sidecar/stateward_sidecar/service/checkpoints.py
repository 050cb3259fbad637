"""CheckpointService."""

from __future__ import annotations

from collections.abc import AsyncIterator

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
            check.check_save(request, is_known=thread is not None)
        else:
            await self._calls.read(check.check_save, request)
        save = SaveWrite(self._store.context, self._store.threads, request)
        if thread is None or not is_small or not save.prepare_hot(thread):
            await self._prepare(save)
        answer = await self._calls.write(save.run, context, size_bytes=save.size_bytes, is_retry=save.is_retry)
        self._consider_snapshot(save)
        return answer

    async def batch_save(self, request: BatchSaveRequest, context: grpc.aio.ServicerContext) -> BatchSaveResponse:
        check.check_batch(request)
        saves = [SaveWrite(self._store.context, self._store.threads, item) for item in request.saves]
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
        if self._store.reader.is_hot(request):
            return self._store.read(self._store.reader.hydrate, request)
        return await self._calls.read(self._store.reader.hydrate, request)

    async def get_checkpoint(
        self, request: GetCheckpointRequest, context: grpc.aio.ServicerContext
    ) -> GetCheckpointResponse:
        check.check_place(request)
        if request.HasField("version"):
            check.check_ref(request.version, "version")
        return GetCheckpointResponse(checkpoint=await self._calls.read(self._store.reader.get, request))

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
        return await self._calls.read(self._store.lister.checkpoints, request)

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
        while (answer := await self._calls.step(steps)) is not None:
            yield answer

    async def diff_checkpoints(
        self, request: DiffCheckpointsRequest, context: grpc.aio.ServicerContext
    ) -> DiffCheckpointsResponse:
        check.check_place(request)
        if request.HasField("from"):
            check.check_ref(getattr(request, "from"), "from", zero_allowed=True)
        if request.HasField("to"):
            check.check_ref(request.to, "to")
        check.check_max_bytes(request.max_bytes)
        return await self._calls.read(self._store.reader.diff, request)

    async def _prepare(self, save: SaveWrite) -> None:
        """Prepares a save that takes reading or long work."""
        await self._calls.read(self._prepare_now, save)

    def _prepare_now(self, save: SaveWrite) -> None:
        with self._store.context.engine.read() as txn:
            save.prepare(txn, self._store.threads.find(txn, save.namespace, save.request.thread))

    def _consider_snapshot(self, save: SaveWrite) -> None:
        if save.draft is not None:
            self._store.snapshots.consider(save.draft.thread, save.branch)
