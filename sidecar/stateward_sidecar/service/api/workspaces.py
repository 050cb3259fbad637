"""WorkspaceService."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, TypeVar

import grpc.aio
import lmdb

from stateward.v1.workspace_service_pb2 import (
    DiffTreesRequest,
    DiffTreesResponse,
    FindMissingRequest,
    FindMissingResponse,
    ObjectsBegin,
    ReadObjectsRequest,
    ReadObjectsResponse,
    ReadTreeRequest,
    ReadTreeResponse,
    StatWorkspaceRequest,
    StatWorkspaceResponse,
    WriteObjectsRequest,
    WriteObjectsResponse,
)
from stateward_sidecar.errors import DeadlineExceeded, InvalidField, OutcomeUnknown, StatewardError
from stateward_sidecar.service.admission.streams import Places
from stateward_sidecar.service.calls.calls import INLINE_BYTES_MAX, Calls
from stateward_sidecar.service.calls.making import ENTRY_BYTES, thread_of
from stateward_sidecar.service.calls.status import saying_expected
from stateward_sidecar.service.checks import check
from stateward_sidecar.service.checks.checktrees import (
    check_choice,
    check_digests,
    check_objects,
    check_read_tree,
)
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.trees.incoming import open_objects
from stateward_sidecar.store.trees.objectwrite import FullPack, ObjectsWrite

T = TypeVar("T")
# The most writes at once. Each holds a message, its objects in clear, and a piece of two packs.
WRITES_MAX = 16
# A client that stalls for this long between two messages loses its place.
IDLE_S = 60.0


class WorkspaceService:
    """Keeps the files that agents work on."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._store = calls.store
        self._places = Places(WRITES_MAX, "writes of objects are under way")
        self._commits: set[asyncio.Task[WriteObjectsResponse]] = set()

    async def find_missing(
        self, request: FindMissingRequest, context: grpc.aio.ServicerContext
    ) -> FindMissingResponse:
        check.check_place(request)
        check_digests(request)
        return await self._calls.ownership.read(
            request.namespace, request.thread, lambda: self._calls.read(self._store.trees.find_missing, request)
        )

    async def write_objects(
        self, requests: AsyncIterator[WriteObjectsRequest], context: grpc.aio.ServicerContext
    ) -> WriteObjectsResponse:
        with self._places.enter() as place:
            requests = place.watch(requests)
            begin = await self._begin(requests)
            is_archived = self._calls.ownership.asks_for_archived(begin.options.durability)
            with saying_expected(begin):
                thread = await thread_of(self._calls, begin, context)
                answer = await self._write(self._store.begin_objects(thread, begin), requests)
        if is_archived:
            # Without a place: another upload may have it while this one waits for the archive.
            await self._calls.ownership.reach(begin, answer.receipt, context)
        return answer

    async def read_tree(self, request: ReadTreeRequest, context: grpc.aio.ServicerContext) -> ReadTreeResponse:
        check.check_place(request)
        if request.HasField("version"):
            check.check_ref(request.version, "version")
        has_version = request.HasField("version")
        check_choice(request.tree, "tree", has_version=has_version, version_field="version")
        check_read_tree(request)
        check.check_max_bytes(request.max_bytes)
        return await self._calls.ownership.read(
            request.namespace, request.thread, lambda: self._calls.load(self._store.trees.read, request)
        )

    async def read_objects(
        self, request: ReadObjectsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[ReadObjectsResponse]:
        check.check_place(request)
        check_digests(request)
        steps = await self._calls.ownership.read(
            request.namespace, request.thread, lambda: self._calls.read(self._store.trees.objects, request)
        )
        while True:
            async with self._calls.sending_next(steps) as answer:
                if answer is None:
                    return
                yield answer

    async def diff_trees(
        self, request: DiffTreesRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[DiffTreesResponse]:
        check.check_place(request)
        for name in ("base", "target"):
            if request.HasField(name):
                check.check_ref(getattr(request, name), name)
            tree = getattr(request, f"{name}_tree")
            check_choice(tree, f"{name}_tree", has_version=request.HasField(name), version_field=name)
        steps = await self._calls.ownership.read(
            request.namespace, request.thread, lambda: self._calls.read(self._store.trees.diff, request)
        )
        while True:
            async with self._calls.sending_next(steps) as answer:
                if answer is None:
                    return
                yield answer

    async def stat_workspace(
        self, request: StatWorkspaceRequest, context: grpc.aio.ServicerContext
    ) -> StatWorkspaceResponse:
        check.check_place(request)
        return await self._calls.ownership.read(
            request.namespace, request.thread, lambda: self._calls.scan(self._store.trees.stat, request)
        )

    async def _begin(self, requests: AsyncIterator[WriteObjectsRequest]) -> ObjectsBegin:
        first = await _next(requests)
        if first is None or first.WhichOneof("part") != "begin":
            raise InvalidField("begin", "is required in the first message")
        try:
            check.check_write(first.begin)
        except StatewardError as error:
            raise check.in_item(error, "begin") from None
        return first.begin

    async def _write(
        self, write: ObjectsWrite, requests: AsyncIterator[WriteObjectsRequest]
    ) -> WriteObjectsResponse:
        total = write.answer
        try:
            while (message := await _next(requests)) is not None:
                if message.WhichOneof("part") != "objects":
                    raise InvalidField("objects", "is required in all messages but the first")
                objects = message.objects.objects
                check_objects(objects, "objects.objects")
                opened = await self._calls.look(open_objects, objects, "objects.objects")
                await self._commit_all(write, await self._work(write.add, opened))
            await self._commit_all(write, await self._work(write.finish))
            if not total.receipt.sequence:
                answer = await self._written(write, partial(self._calls.write, write.touch, None))
                total.receipt.CopyFrom(answer.receipt)
        finally:
            await asyncio.shield(self._work(write.end))
        return total

    async def _commit_all(self, write: ObjectsWrite, packs: list[FullPack]) -> None:
        for at, full in enumerate(packs):
            # From here on only the writer knows whether a row names the file. So the wait goes on even if the caller
            # leaves.
            commit = asyncio.ensure_future(self._commit(write, full))
            self._commits.add(commit)
            commit.add_done_callback(self._commits.discard)
            try:
                answer = await asyncio.shield(commit)
            except BaseException:
                for rest in packs[at + 1 :]:
                    await asyncio.shield(self._work(write.discard_pack, rest))
                raise
            write.answer.receipt.CopyFrom(answer.receipt)
            write.answer.stored_bytes += answer.stored_bytes

    async def _commit(self, write: ObjectsWrite, full: FullPack) -> WriteObjectsResponse:
        is_kept = False
        try:
            run: Callable[[lmdb.Transaction, Batch], WriteObjectsResponse] = partial(write.commit, full)
            # On the writer's thread: the rows of thousands of objects would keep the loop from other calls.
            size_bytes = max(full.content.size_bytes + 2 * ENTRY_BYTES, INLINE_BYTES_MAX + 1)
            # Alone: else an entry of the same transaction would be archived only with the pack.
            answer = await self._written(
                write, lambda: self._calls.write(run, None, size_bytes=size_bytes, is_alone=True)
            )
            is_kept = True
            return answer
        except OutcomeUnknown:
            is_kept = True  # perhaps; the next start removes the file if no row names it
            raise
        finally:
            if not is_kept:
                await self._work(write.discard_pack, full)

    async def _written(self, write: ObjectsWrite, verb: Callable[[], Any]) -> WriteObjectsResponse:
        """Runs the write of an entry. An upload takes long, so this process may have given the thread up since."""
        identity = write.thread.identity
        answer: WriteObjectsResponse = await self._calls.ownership.write(
            identity.namespace, identity.name, verb, must_exist=True
        )
        return answer

    async def _work(self, verb: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._store.disk, verb, *args)


async def _next(requests: AsyncIterator[WriteObjectsRequest]) -> WriteObjectsRequest | None:
    try:
        async with asyncio.timeout(IDLE_S):
            return await anext(requests, None)
    except TimeoutError:
        raise DeadlineExceeded(f"no message came for {IDLE_S:g} s; what was not complete is gone") from None
