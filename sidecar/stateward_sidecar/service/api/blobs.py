"""BlobService."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import grpc.aio
import lmdb

from stateward.storage.v1.head_pb2 import BlobRow
from stateward.storage.v1.journal_pb2 import BlobRecord
from stateward.v1.blob_service_pb2 import (
    BlobBegin,
    ReadBlobRequest,
    ReadBlobResponse,
    StatBlobRequest,
    StatBlobResponse,
    WriteBlobRequest,
    WriteBlobResponse,
)
from stateward.v1.checkpoint_pb2 import DURABILITY_COMMITTED
from stateward_sidecar.codec.blob import SEGMENT_BYTES
from stateward_sidecar.errors import (
    ArchiveUnavailable,
    DeadlineExceeded,
    InvalidField,
    OutcomeUnknown,
)
from stateward_sidecar.service.admission.streams import Places
from stateward_sidecar.service.calls.calls import Calls
from stateward_sidecar.service.calls.making import ENTRY_BYTES, thread_of
from stateward_sidecar.service.calls.ownership import CHECK_WAIT_S
from stateward_sidecar.service.calls.status import saying_expected
from stateward_sidecar.service.checks import check
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.blobs.blobwrite import BlobWrite
from stateward_sidecar.store.thread.thread import Thread

T = TypeVar("T")
# The most writes at once. Each holds one or two segments in memory.
WRITES_MAX = 64
# A client that stalls for this long between two messages loses its place.
IDLE_S = 60.0


class BlobService:
    """Writes and reads bytes that are too large for a state."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._store = calls.store
        self._places = Places(WRITES_MAX, "blobs are being written")
        self._commits: set[asyncio.Task[WriteBlobResponse]] = set()

    async def write_blob(
        self, requests: AsyncIterator[WriteBlobRequest], context: grpc.aio.ServicerContext
    ) -> WriteBlobResponse:
        with self._places.enter() as place:
            requests = place.watch(requests)
            begin = await self._begin(requests)
            is_archived = self._calls.ownership.asks_for_archived(begin.options.durability)
            with saying_expected(begin):
                thread = await thread_of(self._calls, begin, context)
                answer, lost = await self._known(begin, begin.sha256, thread, context)
                answer = answer or await self._write(begin, thread, requests, lost, context)
        receipt = answer.receipt
        # The archive has the entry, and did not say whether it still has the bytes: see ``_known``.
        is_unproven = receipt.durability == DURABILITY_COMMITTED and receipt.sequence <= receipt.archived_sequence
        if is_archived and not is_unproven:
            # Without a place: another upload may have it while this one waits for the archive.
            await self._calls.ownership.reach(begin, receipt, context)
        return answer

    async def read_blob(
        self, request: ReadBlobRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[ReadBlobResponse]:
        check.check_place(request)
        check.check_sha256(request.blob.sha256, "blob.sha256")
        if request.offset < 0:
            raise InvalidField("offset", f"{request.offset} is negative")
        if request.length < 0:
            raise InvalidField("length", f"{request.length} is negative")
        steps = await self._calls.ownership.read(
            request.namespace, request.thread, lambda: self._calls.read(self._store.blobs.read, request)
        )
        for step in steps:
            async with self._calls.sending(partial(self._calls.look, step)) as answer:
                yield answer

    async def stat_blob(self, request: StatBlobRequest, context: grpc.aio.ServicerContext) -> StatBlobResponse:
        check.check_place(request)
        check.check_sha256(request.sha256, "sha256")
        return await self._calls.ownership.read(
            request.namespace, request.thread, lambda: self._calls.read(self._store.blobs.stat, request)
        )

    async def _begin(self, requests: AsyncIterator[WriteBlobRequest]) -> BlobBegin:
        first = await _next(requests)
        if first is None or first.WhichOneof("part") != "begin":
            raise InvalidField("begin", "is required in the first message")
        check.check_blob_begin(first.begin)
        return first.begin

    async def _known(
        self, begin: BlobBegin, sha256: bytes, thread: Thread, context: grpc.aio.ServicerContext
    ) -> tuple[WriteBlobResponse | None, BlobRecord | None]:
        """Returns the answer if the thread has the bytes already, else None. If the thread has the blob and its bytes
        are lost, the blob is returned as well: the new one takes its place."""
        blobs = self._store.blobs
        row = await self._calls.read(blobs.find_written, thread, begin, sha256) if sha256 else None
        if row is None:
            return None, None
        is_here, is_there = await self._look(thread, row)
        if not is_here and not is_there:
            return None, row.record
        renew = blobs.renew(thread, row, ships=is_there is False)
        answer = await self._written(thread, lambda: self._calls.write(renew, context, size_bytes=ENTRY_BYTES))
        if answer is not None and not is_there:
            answer.receipt.durability = DURABILITY_COMMITTED
        return answer, None

    async def _look(self, thread: Thread, row: BlobRow) -> tuple[bool, bool | None]:
        """Returns whether this disk has the bytes of a blob, and whether the archive has them. None = the archive need
        not have them yet, or does not answer. If the archive is not known to have them, the file is read."""
        blobs = self._store.blobs
        is_here = await self._work(blobs.is_here, thread, row)
        is_there = await self._ask_archive(thread, row, is_here=is_here)
        if is_here and not is_there:
            is_here = await self._work(blobs.is_sound, thread, row)
        return is_here, is_there

    async def _ask_archive(self, thread: Thread, row: BlobRow, *, is_here: bool) -> bool | None:
        blobs, archive = self._store.blobs, self._calls.ownership.archive
        if archive is None or not blobs.is_archived(thread, row):
            return None
        name, sha256 = (thread.identity.namespace, thread.name), bytes(row.record.sha256)
        try:
            async with asyncio.timeout(CHECK_WAIT_S if is_here else None):
                return await self._calls.ownership.block((*name, sha256), archive.has_blob, *name, row.record)
        except (ArchiveUnavailable, TimeoutError):
            return None

    async def _write(
        self, begin: BlobBegin, thread: Thread, requests: AsyncIterator[WriteBlobRequest], lost: BlobRecord | None,
        context: grpc.aio.ServicerContext,
    ) -> WriteBlobResponse:  # fmt: skip
        write = self._store.blobs.begin_write(thread, begin)
        try:
            await self._work(write.finish, await self._take(write, requests))
            assert write.record is not None
            if lost is None:  # the bytes were not announced, or came meanwhile
                known, lost = await self._known(begin, write.record.sha256, thread, context)
                if known is not None:
                    await self._work(write.discard)
                    return known
            write.lost = lost
        except BaseException:
            await asyncio.shield(self._work(write.discard))
            raise
        # From here on only the writer knows whether a row names the file. So the wait goes on even if the caller
        # leaves.
        commit = asyncio.ensure_future(self._commit(write))
        self._commits.add(commit)
        commit.add_done_callback(self._commits.discard)
        return await asyncio.shield(commit)

    async def _take(self, write: BlobWrite, requests: AsyncIterator[WriteBlobRequest]) -> bytes:
        """Passes the bytes on in segments. Returns the rest."""
        pending = bytearray()
        while (message := await _next(requests)) is not None:
            if message.WhichOneof("part") != "data":
                raise InvalidField("data", "is required in all messages but the first")
            pending += message.data
            while len(pending) >= SEGMENT_BYTES:
                segment = bytes(pending[:SEGMENT_BYTES])
                del pending[:SEGMENT_BYTES]
                await self._work(write.add, segment)
        return bytes(pending)

    async def _commit(self, write: BlobWrite) -> WriteBlobResponse:
        is_kept = False
        try:
            run: Callable[[lmdb.Transaction, Batch], WriteBlobResponse] = partial(write.commit, self._store.threads)
            answer = await self._written(
                # Else an entry of the same transaction would be archived only with the blob.
                write.thread, lambda: self._calls.write(run, None, size_bytes=ENTRY_BYTES, is_alone=write.is_large)
            )  # fmt: skip
            is_kept = not answer.existed
            return answer
        except OutcomeUnknown:
            is_kept = True  # perhaps; the next start removes the file if no row names it
            raise
        finally:
            if not is_kept:
                await self._work(write.discard)

    async def _written(self, thread: Thread, write: Callable[[], Awaitable[T]]) -> T:
        """Runs the write of an entry. An upload takes long, so this process may have given the thread up since."""
        return await self._calls.ownership.write(thread.identity.namespace, thread.name, write, must_exist=True)

    async def _work(self, verb: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._store.disk, verb, *args)


async def _next(requests: AsyncIterator[WriteBlobRequest]) -> WriteBlobRequest | None:
    try:
        async with asyncio.timeout(IDLE_S):
            return await anext(requests, None)
    except TimeoutError:
        raise DeadlineExceeded(f"no message came for {IDLE_S:g} s; nothing was kept") from None
