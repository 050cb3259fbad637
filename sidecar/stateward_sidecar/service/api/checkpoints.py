"""CheckpointService."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import grpc.aio
import lmdb

from stateward.v1.checkpoint_service_pb2 import (
    BatchSaveRequest,
    BatchSaveResponse,
    DiffCheckpointsRequest,
    DiffCheckpointsResponse,
    GetCheckpointRequest,
    GetCheckpointResponse,
    HydrateRequest,
    ListCheckpointsRequest,
    ListCheckpointsResponse,
    ReadHistoryRequest,
    ReadHistoryResponse,
    ReadLogRequest,
    ReadOrder,
    SaveRequest,
    SaveResponse,
)
from stateward_sidecar.codec.edits import Named
from stateward_sidecar.errors import Corrupt, HistoryElsewhere, InvalidField, StatewardError, Unclaimed
from stateward_sidecar.service.admission.memory import FREE_ANSWER_BYTES, Reserved
from stateward_sidecar.service.calls.calls import Calls
from stateward_sidecar.service.calls.feed import Feed, await_page, read_page
from stateward_sidecar.service.calls.method import reading_of
from stateward_sidecar.service.calls.ownership import Place
from stateward_sidecar.service.calls.saving import Saving
from stateward_sidecar.service.checks import check
from stateward_sidecar.service.checks.check import check_read_log
from stateward_sidecar.service.checks.checkparts import check_labels
from stateward_sidecar.service.checks.checkrecords import check_filters
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.thread.paging import PAGE_BYTES
from stateward_sidecar.store.versions.save import SaveWrite

T = TypeVar("T")


class CheckpointService:
    """Saves and reads versions."""

    def __init__(self, calls: Calls, feed: Feed) -> None:
        self._calls = calls
        self._feed = feed
        self._store = calls.store
        self._saving = Saving(calls)

    async def save(self, request: SaveRequest, context: grpc.aio.ServicerContext) -> SaveResponse:
        named = await self._saving.check(request)
        ownership = self._calls.ownership
        is_archived = ownership.asks_for_archived(request.options.durability)
        refusal: StatewardError | None = None

        async def save_now() -> SaveResponse:
            late = self._saving.begin_late(request, named)
            save = late or await self._saving.prepare(request, named)
            save.refusal = refusal
            answer = await self._calls.write(
                save.run, context, size_bytes=save.size_bytes, is_retry=save.is_retry,
                prepare=save.prepare_late if late is not None else None,
            )  # fmt: skip
            self._saving.after(save)
            return answer

        if ownership.archive is None:
            return await save_now()
        places = [Place(request.namespace, request.thread, bool(request.options.expected_uid), is_archived)]
        if request.HasField("guard"):
            guard = Place(request.namespace, request.guard.thread, must_exist=True)
            refusal = await ownership.try_hold(guard)
            places += [guard] if refusal is None else []
        answer = await ownership.write_all(places, save_now)
        if is_archived:
            await ownership.reach(request, answer.receipt, context)
        return answer

    async def batch_save(self, request: BatchSaveRequest, context: grpc.aio.ServicerContext) -> BatchSaveResponse:
        named = check.check_batch(request)
        ownership = self._calls.ownership
        is_archived = [
            _named(index, ownership.asks_for_archived, item.options.durability)
            for index, item in enumerate(request.saves)
        ]
        places: dict[tuple[str, str], Place] = {}
        refusals: dict[int, StatewardError] = {}
        for index, item in enumerate(request.saves):
            key = item.namespace, item.thread
            before = places.get(key, Place(*key, bool(item.options.expected_uid), item=_item(index)))
            places[key] = before._replace(
                is_archived=before.is_archived or is_archived[index],
                must_exist=before.must_exist or bool(item.options.expected_uid),
            )
            if item.HasField("guard"):
                guard = Place(item.namespace, item.guard.thread, must_exist=True, item=_item(index))
                refusal = await ownership.try_hold(guard)
                if refusal is None:
                    places.setdefault((guard.namespace, guard.thread), guard)
                else:
                    refusals[index] = refusal

        async def save_all() -> BatchSaveResponse:
            return await self._batch_save(request, named, refusals, context)

        if ownership.archive is None:
            answer = await save_all()
        else:
            answer = await ownership.write_all(list(places.values()), save_all)
        for index, item in enumerate(request.saves):
            if is_archived[index]:
                await ownership.reach(item, answer.saves[index].receipt, context)
        return answer

    async def _batch_save(
        self,
        request: BatchSaveRequest,
        named: Sequence[Sequence[Named]],
        refusals: Mapping[int, StatewardError],
        context: grpc.aio.ServicerContext,
    ) -> BatchSaveResponse:
        saves: list[SaveWrite] = []
        ahead = Counter[tuple[str, str]]()
        for index, (item, each) in enumerate(zip(request.saves, named, strict=True)):
            key = item.namespace, item.thread
            try:
                saves.append(await self._saving.prepare(item, each, ahead[key]))
            except StatewardError as error:
                raise check.in_item(error, _item(index)) from None
            saves[-1].refusal = refusals.get(index)
            ahead[key] += 1

        def run(txn: lmdb.Transaction, batch: Batch) -> BatchSaveResponse:
            answer, unclaimed = BatchSaveResponse(), dict[tuple[str, str], StatewardError]()
            for index, save in enumerate(saves):
                name = save.namespace, save.request.thread
                if name in unclaimed:
                    continue
                try:
                    answer.saves.append(save.run(txn, batch))
                except Unclaimed as error:  # no name is claimed if another item must fail
                    unclaimed[name] = check.in_item(error, _item(index))
                except StatewardError as error:
                    raise check.in_item(error, _item(index)) from None
            for first in unclaimed.values():
                raise first
            return answer

        size_bytes = sum(save.size_bytes for save in saves)
        answer = await self._calls.write(
            run, context, size_bytes=size_bytes, is_alone=True,
            is_retry=lambda txn, batch: all(save.is_retry(txn, batch) for save in saves),
        )  # fmt: skip
        for save in saves:
            self._saving.after(save)
        return answer

    async def hydrate(self, request: HydrateRequest, context: grpc.aio.ServicerContext) -> bytes | Reserved:
        check.check_hydrate(request)
        ownership, reader = self._calls.ownership, self._store.reader

        async def read(max_bytes: int) -> bytes:
            return await ownership.read(
                request.namespace, request.thread, lambda: self._calls.load(reader.hydrate, request, max_bytes)
            )

        found = None
        if ownership.is_fresh(request.namespace, request.thread):
            with suppress(StatewardError):  # a worker reads again, and may wait for a commit under way
                found = reader.find_hot(request)
        if found is None:
            return await self._calls.reserve(reader.cold_bytes(request), read)

        async def make(max_bytes: int) -> bytes:
            return reader.answer(request, found, max_bytes)

        return await self._calls.reserve(min(found.tree.size_bytes, request.max_bytes or PAGE_BYTES), make)

    async def get_checkpoint(
        self, request: GetCheckpointRequest, context: grpc.aio.ServicerContext
    ) -> GetCheckpointResponse:
        check.check_place(request)
        if request.HasField("version"):
            check.check_ref(request.version, "version")
        found = await self._calls.ownership.read(
            request.namespace, request.thread, lambda: self._calls.read(self._store.reader.get, request)
        )
        return GetCheckpointResponse(checkpoint=found)

    async def list_checkpoints(
        self, request: ListCheckpointsRequest, context: grpc.aio.ServicerContext
    ) -> ListCheckpointsResponse:
        check.check_place(request, all_allowed=True)
        check_labels(request.labels, "labels")
        check_filters(request.filters)
        check.check_statuses(request.statuses)
        request.page_size = check.check_page(request.page_size)
        if request.HasField("before"):
            check.check_ref(request.before, "before")
            if request.thread == check.ALL_THREADS:
                raise InvalidField("before", "names a version of one thread and is not allowed with all threads")
        check.check_contents(request)
        if request.thread == check.ALL_THREADS:
            may_read = reading_of(request.namespace)
            return await self._calls.scan_visible(self._store.lister.checkpoints, request, "checkpoints", may_read)
        read = self._calls.load if request.include_states else self._calls.scan
        return await self._calls.ownership.read(
            request.namespace, request.thread, lambda: read(self._store.lister.checkpoints, request)
        )

    async def read_history(
        self, request: ReadHistoryRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[ReadHistoryResponse]:
        check.check_place(request)
        if request.HasField("version"):
            check.check_ref(request.version, "version")
        if request.HasField("oldest"):
            check.check_ref(request.oldest, "oldest")
        if request.order not in ReadOrder.values():
            raise InvalidField("order", f"{request.order} is unknown")
        if request.HasField("projection"):
            check.check_projection(request.projection)
        steps: Iterator[Callable[[], ReadHistoryResponse | None]] = iter(())

        def find_first() -> ReadHistoryResponse | None:
            nonlocal steps
            steps = self._store.reader.history(request, self._store.read)
            first = next(steps, None)
            return first() if first is not None else None

        async def up_to_date(step: Callable[[], T]) -> T:
            return await self._calls.ownership.read(request.namespace, request.thread, lambda: self._calls.look(step))

        async def go_on(step: Callable[[], ReadHistoryResponse | None]) -> ReadHistoryResponse | None:
            try:
                return await self._calls.look(step)
            except (HistoryElsewhere, Corrupt):  # an ancestor is in the archive only, or can be had from there
                return await up_to_date(step)

        async with self._calls.sending(partial(up_to_date, find_first)) as first:
            if first is not None:
                yield first
        for step in steps:
            async with self._calls.sending(partial(go_on, step)) as answer:
                if answer is None:
                    return
                yield answer

    async def read_log(self, request: ReadLogRequest, context: grpc.aio.ServicerContext) -> bytes | Reserved:
        check_read_log(request)
        if request.HasField("wait"):
            page = await await_page(self._calls, self._feed, request, context)
            if page.size_bytes <= FREE_ANSWER_BYTES:
                return page.wire()
            request.ClearField("wait")  # there is an answer: read it again when there is memory for it

        async def read(max_bytes: int) -> bytes:
            request.max_bytes = max_bytes or request.max_bytes
            return (await read_page(self._calls, request)).wire()

        return await self._calls.reserve(self._store.log_reader.page_bytes(request), read)

    async def diff_checkpoints(
        self, request: DiffCheckpointsRequest, context: grpc.aio.ServicerContext
    ) -> DiffCheckpointsResponse:
        check.check_place(request)
        if request.HasField("base"):
            check.check_ref(request.base, "base", zero_allowed=True)
        if request.HasField("target"):
            check.check_ref(request.target, "target")
        check.check_max_bytes(request.max_bytes)
        return await self._calls.ownership.read(
            request.namespace, request.thread, lambda: self._calls.load(self._store.reader.diff, request)
        )


def _item(index: int) -> str:
    return f"saves[{index}]"


def _named(index: int, rule: Callable[[int], bool], value: int) -> bool:
    """Returns the result of a rule for an item of a batch. Errors name the item."""
    try:
        return rule(value)
    except StatewardError as error:
        raise check.in_item(error, _item(index)) from None
