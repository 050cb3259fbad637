"""ThreadService."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc.aio

from stateward.v1.checkpoint_pb2 import DURABILITY_COMMITTED
from stateward.v1.thread_service_pb2 import (
    DeleteTagRequest,
    DeleteTagResponse,
    DeleteThreadRequest,
    DeleteThreadResponse,
    ForkThreadRequest,
    ForkThreadResponse,
    GetThreadRequest,
    GetThreadResponse,
    ListThreadsRequest,
    ListThreadsResponse,
    PruneThreadRequest,
    PruneThreadResponse,
    SetTagRequest,
    SetTagResponse,
    UpdateThreadRequest,
    UpdateThreadResponse,
    WaitDurableRequest,
    WaitDurableResponse,
    WatchRequest,
    WatchResponse,
)
from stateward_sidecar.codec.edits import check_name
from stateward_sidecar.errors import InvalidField, VersionNotFound
from stateward_sidecar.service import check
from stateward_sidecar.service.calls import Calls
from stateward_sidecar.service.feed import Feed
from stateward_sidecar.store.views import view_thread

# About what a small entry takes, with the pages it touches.
SMALL_WRITE_BYTES = 16384


class ThreadService:
    """Threads as a whole."""

    def __init__(self, calls: Calls, feed: Feed) -> None:
        self._calls = calls
        self._store = calls.store
        self._feed = feed

    async def get_thread(self, request: GetThreadRequest, context: grpc.aio.ServicerContext) -> GetThreadResponse:
        check.check_place(request)

        def get() -> GetThreadResponse:
            with self._store.context.engine.read() as txn:
                thread = self._store.threads.get(txn, request.namespace, request.thread)
            return GetThreadResponse(thread=view_thread(thread))

        return await self._calls.read(get)

    async def list_threads(self, request: ListThreadsRequest, context: grpc.aio.ServicerContext) -> ListThreadsResponse:
        check.check_namespace(request)
        check.check_labels(request.labels, "labels")
        check.check_statuses(request.statuses)
        for field in ("updated_after", "updated_before"):
            if request.HasField(field):
                check.check_time(getattr(request, field), field)
        request.page_size = check.check_page(request.page_size)
        return await self._calls.read(self._store.lister.threads, request)

    async def fork_thread(self, request: ForkThreadRequest, context: grpc.aio.ServicerContext) -> ForkThreadResponse:
        check.check_place(request)
        if not request.new_thread or request.new_thread == check.ALL_THREADS:
            raise InvalidField("new_thread", 'is required, and must not be "-"')
        check_name(request.new_thread, "new_thread")
        if request.HasField("version"):
            check.check_ref(request.version, "version")
        if request.whole and (request.HasField("version") or request.branch):
            raise InvalidField("whole", "copies all versions: leave version and branch out")
        if request.HasField("create"):
            check.check_options(request.create, "create")
        return ForkThreadResponse(thread=await self._calls.work(self._store.forker.fork, request))

    async def prune_thread(self, request: PruneThreadRequest, context: grpc.aio.ServicerContext) -> PruneThreadResponse:
        check.check_place(request)
        what = request.WhichOneof("what")
        if what is None:
            raise InvalidField("what", "is required: set versions, older_than or keep_latest_per_branch")
        if what == "versions" and not 1 <= len(request.versions.versions) <= check.PRUNE_VERSIONS_MAX:
            raise InvalidField("versions", f"must name 1 to {check.PRUNE_VERSIONS_MAX} versions")
        if what == "older_than":
            check.check_duration(request.older_than, "older_than")
        if what == "keep_latest_per_branch" and request.keep_latest_per_branch < 1:
            raise InvalidField("keep_latest_per_branch", f"{request.keep_latest_per_branch} is less than 1")
        return await self._calls.write(self._store.pruner.prune(request), context, frees_space=True)

    async def delete_thread(
        self, request: DeleteThreadRequest, context: grpc.aio.ServicerContext
    ) -> DeleteThreadResponse:
        check.check_place(request)
        check.check_durability(request.durability)
        return await self._calls.write(self._store.deleter.delete(request), context, frees_space=True)

    async def update_thread(
        self, request: UpdateThreadRequest, context: grpc.aio.ServicerContext
    ) -> UpdateThreadResponse:
        check.check_place(request)
        check.check_mask(request.update_mask.paths)
        check.check_options(request.options, "options")
        return await self._calls.write(self._store.settings.update(request), context, size_bytes=SMALL_WRITE_BYTES)

    async def set_tag(self, request: SetTagRequest, context: grpc.aio.ServicerContext) -> SetTagResponse:
        check.check_place(request)
        check.check_tag(request.tag)
        if request.HasField("version"):
            check.check_ref(request.version, "version")
        if request.HasField("expected_tagged_version") and request.expected_tagged_version < 0:
            raise InvalidField("expected_tagged_version", f"{request.expected_tagged_version} is negative")
        return await self._calls.write(self._store.settings.set_tag(request), context, size_bytes=SMALL_WRITE_BYTES)

    async def delete_tag(self, request: DeleteTagRequest, context: grpc.aio.ServicerContext) -> DeleteTagResponse:
        check.check_place(request)
        check.check_tag(request.tag)
        return await self._calls.write(self._store.settings.delete_tag(request), context, frees_space=True)

    async def watch(self, request: WatchRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[WatchResponse]:
        check.check_place(request, all_allowed=True)
        check.check_labels(request.labels, "labels")
        if request.HasField("after_sequence"):
            if request.after_sequence < 0:
                raise InvalidField("after_sequence", f"{request.after_sequence} is negative")
            if request.thread == check.ALL_THREADS:
                raise InvalidField("after_sequence", "counts in one thread; use after_cursor with all threads")
        with self._feed.listen() as listener:
            watch = await self._calls.read(self._store.watcher.open, request)
            yield WatchResponse(cursor=watch.position)
            while not watch.is_over:
                seen = listener.committed
                before = watch.cursor
                events = await self._calls.read(self._store.watcher.read, watch)
                if events:
                    yield WatchResponse(events=events, cursor=watch.position)
                elif watch.cursor == before and not watch.is_over:
                    await listener.wait_beyond(seen)

    async def wait_durable(self, request: WaitDurableRequest, context: grpc.aio.ServicerContext) -> WaitDurableResponse:
        check.check_place(request)
        check.check_durability(request.durability)
        if request.sequence < 1:
            raise InvalidField("sequence", f"{request.sequence} is no place in the journal; they count from 1")

        def look() -> int:
            with self._store.context.engine.read() as txn:
                return self._store.threads.get(txn, request.namespace, request.thread).head.tip_sequence

        tip = await self._calls.read(look)
        if request.sequence > tip:
            raise VersionNotFound(
                f"thread {request.thread!r} has no journal entry {request.sequence}; its newest is {tip}",
                thread=request.thread, sequence=request.sequence,
            )  # fmt: skip
        return WaitDurableResponse(durability=DURABILITY_COMMITTED, sequence=tip)
