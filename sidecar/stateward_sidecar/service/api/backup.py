"""BackupService."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, TypeVar

import grpc.aio

from stateward.v1.backup_service_pb2 import (
    ExportThreadRequest,
    ExportThreadResponse,
    ImportBegin,
    ImportThreadRequest,
    ImportThreadResponse,
)
from stateward.v1.thread_pb2 import ThreadInfo as ThreadMessage
from stateward_sidecar.errors import DeadlineExceeded, InvalidField, QueueFull, ThreadExists, ThreadNotFound, Unclaimed
from stateward_sidecar.service.admission.memory import Budget
from stateward_sidecar.service.admission.streams import SLOW_FROM_S, Places
from stateward_sidecar.service.calls.calls import Calls
from stateward_sidecar.service.calls.method import BYTE_SHARE, hide, reading_of
from stateward_sidecar.service.calls.status import as_expected
from stateward_sidecar.service.checks import check
from stateward_sidecar.service.checks.checkbackup import check_import, check_part
from stateward_sidecar.store.copies.importing import Import
from stateward_sidecar.store.journal.views import receipt_of_thread

T = TypeVar("T")
# The most imports at once. Each holds a version and its parent in memory, and a worker for one step at a time.
IMPORTS_MAX = 2
# A client that stalls for this long between two messages loses its place.
IDLE_S = 60.0
# Imports with larger versions run one after another, because a version needs several times its size until it is
# written.
LARGE_BYTES = 4 << 20
NAME_WAIT_S, NAME_POLL_S = 10.0, 0.05


class BackupService:
    """Exports and imports threads."""

    def __init__(self, calls: Calls, memory: Budget) -> None:
        """``memory``: the budget of large requests."""
        self._memory = memory
        self._large = asyncio.Lock()
        self._calls = calls
        self._store = calls.store
        self._places = Places(IMPORTS_MAX, "threads are being restored")

    async def export_thread(
        self, request: ExportThreadRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[ExportThreadResponse]:
        check.check_place(request)
        steps = await self._calls.ownership.read(
            request.namespace, request.thread, lambda: self._calls.read(self._store.exporter.open, request)
        )
        is_hidden = False
        while True:
            async with self._calls.sending_next(steps) as answer:
                if answer is None:
                    return
                is_hidden = _hide_origin(answer, reading_of(request.namespace), is_hidden=is_hidden)
                yield answer

    async def import_thread(
        self, requests: AsyncIterator[ImportThreadRequest], context: grpc.aio.ServicerContext
    ) -> ImportThreadResponse:
        with self._places.enter() as place:
            requests = place.watch(requests)
            first = await _next(requests)
            if first is None or not first.HasField("begin"):
                raise InvalidField("begin", "is required in the first message")
            check_import(first.begin)
            with self._calls.ownership.gate:  # a drain waits for the import
                is_archived = self._calls.ownership.asks_for_archived(first.begin.options.durability)
                answer = await self._import(first.begin, requests, first)
        if is_archived:  # without a place: another import may have it while this one waits for the archive
            await self._calls.ownership.reach(first.begin, answer.receipt, context)
        hide(answer.thread, reading_of(first.begin.namespace))
        return answer

    async def _import(
        self, begin: ImportBegin, requests: AsyncIterator[ImportThreadRequest], first: ImportThreadRequest
    ) -> ImportThreadResponse:
        known = await self._known(begin)
        if known is not None:
            return _answer(known, replayed=True)
        ownership = self._calls.ownership
        is_claimed = await ownership.hold(begin.namespace, begin.thread, must_exist=False)
        try:
            try:
                made = await self._begin(begin)
            except Unclaimed:  # another import of the name failed meanwhile, and gave it back
                is_claimed = await ownership.hold(begin.namespace, begin.thread, must_exist=False)
                made = await self._begin(begin)
            return await self._make(begin, made, requests, first)
        except (Exception, asyncio.CancelledError):
            if is_claimed:
                ownership.give_back(begin.namespace, begin.thread)
            raise

    async def _make(
        self, begin: ImportBegin, made: Import, requests: AsyncIterator[ImportThreadRequest],
        first: ImportThreadRequest,
    ) -> ImportThreadResponse:  # fmt: skip
        try:
            await self._take_all(made, requests, first)
            return _answer(await self._work(made.finish), replayed=False)
        except ThreadExists:
            await self._discard(made)
            known = await self._known(begin)  # a retry may have made the thread meanwhile
            if known is None:
                raise
            return _answer(known, replayed=True)
        except BaseException:
            await self._discard(made)
            raise

    async def _take_all(
        self, made: Import, requests: AsyncIterator[ImportThreadRequest], first: ImportThreadRequest
    ) -> None:
        message: ImportThreadRequest | None = first
        share, is_alone = self._memory.grant(0), False
        try:
            while message is not None:
                for part in message.parts:
                    check_part(part)
                await self._work(made.take, message.parts)
                is_large = made.held_bytes > LARGE_BYTES
                if is_large and not is_alone:
                    is_alone = await self._be_alone()
                # At most half, because the next messages of this import need room as well.
                share.settle(min(BYTE_SHARE * made.held_bytes, self._memory.total_bytes // 2) if is_large else 0)
                message = await _next(requests)
                if message is not None and message.HasField("begin"):
                    raise InvalidField("begin", "is allowed only in the first message")
        finally:
            share.close()
            if is_alone:
                self._large.release()

    async def _be_alone(self) -> bool:
        """Waits until no other import has a large version. One that brings its bytes too slowly is ended."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(SLOW_FROM_S):
                    return await self._large.acquire()
            self._places.refuse_slowest()

    async def _begin(self, begin: ImportBegin) -> Import:
        """Begins a thread. Waits if an import of the name that was cut off, or a copy, is still under way."""
        end = time.monotonic() + NAME_WAIT_S
        while True:
            made = self._step(self._store.importer.begin, begin)
            try:
                return await asyncio.shield(made)
            except asyncio.CancelledError:  # nobody will use the begun thread
                made.add_done_callback(self._give_up)
                raise
            except QueueFull:
                if time.monotonic() > end or self._calls.ownership.gate.is_ended:
                    raise
                await asyncio.sleep(NAME_POLL_S)

    async def _known(self, begin: ImportBegin) -> ThreadMessage | None:
        """Returns the thread that this request made before. Raises ThreadExists if another thread has the name, and
        UidMismatch if the request expects another uid, or any if there is no thread."""

        async def look() -> ThreadMessage | None:
            return await self._calls.read(self._store.importer.known, begin)

        try:
            return await self._calls.ownership.read(begin.namespace, begin.thread, look)
        except ThreadNotFound as error:  # the archive has no such thread
            if begin.options.expected_uid:
                raise as_expected(error, begin) from None
            return None

    def _give_up(self, made: asyncio.Future[Import]) -> None:
        if not made.cancelled() and made.exception() is None:
            self._step(made.result().discard)

    async def _discard(self, made: Import) -> None:
        await asyncio.shield(self._step(made.discard))

    async def _work(self, verb: Callable[..., T], *arguments: Any) -> T:
        """Runs a step to its end, even if the caller leaves, so that the next step does not meet it at work."""
        step = self._step(verb, *arguments)
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            await asyncio.wait([step])
            raise

    def _step(self, verb: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        # Not on the background workers: a copy there may wait for this thread's name, and this step would wait for it.
        return asyncio.get_running_loop().run_in_executor(self._store.workers, verb, *arguments)


async def _next(requests: AsyncIterator[ImportThreadRequest]) -> ImportThreadRequest | None:
    try:
        async with asyncio.timeout(IDLE_S):
            return await anext(requests, None)
    except TimeoutError:
        raise DeadlineExceeded(f"no message came for {IDLE_S:g} s; nothing was kept") from None


def _answer(made: ThreadMessage, *, replayed: bool) -> ImportThreadResponse:
    return ImportThreadResponse(receipt=receipt_of_thread(made, replayed=replayed), thread=made)


def _hide_origin(answer: ExportThreadResponse, may_read: Callable[[str], bool] | None, *, is_hidden: bool) -> bool:
    """Removes the name of the thread that the exported one is a copy of, if the caller may not read that thread.
    Returns whether it does, or did before (``is_hidden``): then the hash of the call that made the copy goes, too."""
    if may_read is None:
        return False
    for part in answer.parts:
        if part.thread.HasField("forked_from") and not may_read(part.thread.forked_from.thread):
            part.thread.ClearField("forked_from")
            is_hidden = True
        if is_hidden and part.version.checkpoint.sequence == 1:
            part.version.ClearField("request")
    return is_hidden
