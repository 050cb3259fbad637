"""RecordService."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import grpc.aio

from stateward.v1.record_service_pb2 import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    GetRecordsRequest,
    GetRecordsResponse,
    ListRecordPrefixesRequest,
    ListRecordPrefixesResponse,
    ListRecordsRequest,
    ListRecordsResponse,
    PutRecordsRequest,
    PutRecordsResponse,
)
from stateward_sidecar.errors import Corrupt, KeyUnavailable, QuotaExceeded, StatewardError, ThreadNotFound
from stateward_sidecar.service.calls.calls import Calls
from stateward_sidecar.service.calls.method import message_bytes
from stateward_sidecar.service.calls.status import foreseen
from stateward_sidecar.service.checks import check, checkrecords
from stateward_sidecar.store.items.recordlist import Page
from stateward_sidecar.store.items.recordputs import ENTRY_BYTES, ROW_BYTES, makes_records, put_nothing, size_of


class RecordService:
    """Small values with keys."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._puts = calls.store.record_puts
        self._list = calls.store.record_list
        self._mover = calls.store.record_mover

    async def put_records(self, request: PutRecordsRequest, context: grpc.aio.ServicerContext) -> PutRecordsResponse:
        check.check_write(request)
        checkrecords.check_put(request)
        ownership, size_bytes = self._calls.ownership, size_of(request, message_bytes.get())
        is_archived = ownership.asks_for_archived(request.options.durability)

        async def put() -> PutRecordsResponse:
            await self._prepare(request.namespace, request.thread)
            try:
                answer = await self._calls.write(self._puts.put(request), context, size_bytes=size_bytes)
            except QuotaExceeded:  # expired records count until a sweep deletes them
                await self._calls.work(self._calls.store.sweeper.expire_records, request.namespace, request.thread)
                answer = await self._calls.write(self._puts.put(request), context, size_bytes=size_bytes)
            self._mover.consider(request.namespace, request.thread)
            return answer

        must_exist = not makes_records(request) or bool(request.options.expected_uid)
        try:
            answer = await ownership.write(
                request.namespace, request.thread, put, must_exist=must_exist, is_archived=is_archived
            )
        except ThreadNotFound:
            if not must_exist or request.options.expected_uid:
                raise
            return put_nothing(request)
        if is_archived:
            await ownership.reach(request, answer.receipt, context)
        return answer

    async def get_records(self, request: GetRecordsRequest, context: grpc.aio.ServicerContext) -> GetRecordsResponse:
        check.check_place(request)
        checkrecords.check_get(request)

        async def get() -> Page:
            with suppress(Corrupt, KeyUnavailable):  # a commit under way may look like damage: a worker looks again
                page = self._list.get_hot(request)
                if page is not None:
                    return page
            return await self._calls.scan(self._list.get, request)

        page = await self._read(request, get, context)
        answer = page.answer
        assert isinstance(answer, GetRecordsResponse)
        return answer

    async def list_records(self, request: ListRecordsRequest, context: grpc.aio.ServicerContext) -> ListRecordsResponse:
        check.check_place(request)
        checkrecords.check_list(request)
        request.page_size = check.check_page(request.page_size)

        async def read() -> Page:
            return await self._calls.scan(self._list.read, request)

        page = await self._read(request, read, context)
        answer = page.answer
        assert isinstance(answer, ListRecordsResponse)
        return answer

    async def list_record_prefixes(
        self, request: ListRecordPrefixesRequest, context: grpc.aio.ServicerContext
    ) -> ListRecordPrefixesResponse:
        check.check_place(request)
        checkrecords.check_prefixes(request)
        request.page_size = check.check_page(request.page_size)

        async def read() -> ListRecordPrefixesResponse:
            return await self._calls.scan(self._list.prefixes, request)

        try:
            return await self._calls.ownership.read(request.namespace, request.thread, read)
        except ThreadNotFound:  # the archive has no such thread either
            return ListRecordPrefixesResponse()

    async def delete_records(
        self, request: DeleteRecordsRequest, context: grpc.aio.ServicerContext
    ) -> DeleteRecordsResponse:
        check.check_write(request)
        checkrecords.check_delete(request)

        async def delete() -> DeleteRecordsResponse:
            read = await self._calls.read(self._list.to_delete, request)
            run = self._puts.delete(request, read)
            size_bytes = ENTRY_BYTES + ROW_BYTES * len(read.revisions)
            answer = await self._calls.write(run, context, size_bytes=size_bytes, frees_space=True)
            self._mover.consider(request.namespace, request.thread)
            return answer

        return await self._calls.ownership.write_one(request, delete, context)

    async def _prepare(self, namespace: str, thread: str) -> None:
        """Compares many rows with the head's sum on a worker, because the writer would be held for as long."""
        if self._list.needs_check(namespace, thread):
            await self._calls.read(self._list.check, namespace, thread)

    async def _read(
        self, request: GetRecordsRequest | ListRecordsRequest, read: Callable[[], Awaitable[Page]],
        context: grpc.aio.ServicerContext,
    ) -> Page:  # fmt: skip
        """Reads, and begins the TTL of the records anew if the request asks for it and it is due."""
        ownership, namespace, thread = self._calls.ownership, request.namespace, request.thread
        try:
            page = await ownership.read(namespace, thread, read)
        except ThreadNotFound:  # the archive has no such thread either
            return Page(ListRecordsResponse() if isinstance(request, ListRecordsRequest) else GetRecordsResponse())
        if not request.refresh_ttl or not page.due:
            return page

        async def refresh() -> dict[str, int]:
            size_bytes = ENTRY_BYTES + ROW_BYTES * len(page.due)
            run = self._puts.refresh(namespace, thread, page.uid, page.due)
            times = await self._calls.write(run, context, size_bytes=size_bytes)
            self._mover.consider(namespace, thread)
            return times

        try:
            page.take_times(await ownership.write(namespace, thread, refresh, must_exist=True))
        except StatewardError as error:  # never in place of what was read: the records keep their times
            foreseen(error, "refresh")
        return page
