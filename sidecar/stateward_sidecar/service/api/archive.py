"""ArchiveService: commands for people. Long commands run step by step on the archive's threads."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Generator, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import grpc.aio

from stateward.storage.v1.archive_pb2 import ArchiveFormat
from stateward.v1.archive_service_pb2 import (
    CollectGarbageRequest,
    CollectGarbageResponse,
    GetArchiveRequest,
    GetArchiveResponse,
    ListArchiveRequest,
    ListArchiveResponse,
    RepairThreadRequest,
    RepairThreadResponse,
    RestoreArchiveRequest,
    RestoreArchiveResponse,
    VerifyArchiveRequest,
    VerifyArchiveResponse,
)
from stateward_sidecar.codec.edits import check_name
from stateward_sidecar.errors import InvalidField
from stateward_sidecar.service.calls.calls import Calls
from stateward_sidecar.service.checks import check
from stateward_sidecar.storage import layout

if TYPE_CHECKING:  # a daemon without an archive does not load it
    from stateward_sidecar.archive.archive import Archive
    from stateward_sidecar.archive.commands import Commands

T = TypeVar("T")
_OVER = object()
GRACE_S_MAX = 315_576_000_000


class ArchiveService:
    """Lists, checks, restores and repairs the archive."""

    def __init__(self, calls: Calls, commands: Commands | None) -> None:
        self._calls = calls
        self._commands = commands

    async def get_archive(self, request: GetArchiveRequest, context: grpc.aio.ServicerContext) -> GetArchiveResponse:
        archive = self._calls.ownership.need()
        options = archive.state.options
        answer = GetArchiveResponse(
            url=options.url, archive_id=await self._calls.read(self._archive_id), owner_id=options.owner_id,
            stats=await self._calls.read(archive.stats),
        )  # fmt: skip
        answer.interval.FromMicroseconds(round(options.interval_s * 1e6))
        answer.lease.FromMicroseconds(round(options.lease_s * 1e6))
        return answer

    def _archive_id(self) -> str:
        with self._calls.store.context.engine.read() as txn:
            row = txn.get(layout.ARCHIVE_KEY)
            return ArchiveFormat.FromString(bytes(row)).archive_id.hex() if row is not None else ""

    async def list_archive(
        self, request: ListArchiveRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[ListArchiveResponse]:
        archive, commands = self._need()
        _check_namespace(request.namespace)
        async for answer in _steps(archive, commands.list(request)):
            yield answer

    async def verify_archive(
        self, request: VerifyArchiveRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[VerifyArchiveResponse]:
        archive, commands = self._need()
        _check_place(request)
        if math.isnan(request.data_percent) or not 0 <= request.data_percent <= 100:
            raise InvalidField("data_percent", f"{request.data_percent:g} is not between 0 and 100")
        if request.deleted_keys and (request.thread or request.data_percent):
            raise InvalidField("deleted_keys", "is about all threads, and reads no data")
        async for answer in _steps(archive, commands.verify(request)):
            yield answer

    async def restore_archive(
        self, request: RestoreArchiveRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[RestoreArchiveResponse]:
        archive, commands = self._need()
        _check_place(request)
        async for answer in _steps(archive, commands.restore(request)):
            yield answer

    async def collect_garbage(
        self, request: CollectGarbageRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[CollectGarbageResponse]:
        archive, commands = self._need()
        _check_namespace(request.namespace)
        if request.HasField("grace") and not 0 <= request.grace.seconds + request.grace.nanos / 1e9 <= GRACE_S_MAX:
            raise InvalidField("grace", "is negative, or too long")
        async for answer in _steps(archive, commands.collect(request)):
            yield answer

    async def repair_thread(
        self, request: RepairThreadRequest, context: grpc.aio.ServicerContext
    ) -> RepairThreadResponse:
        _, commands = self._need()
        check.check_place(request)
        name = request.namespace, request.thread
        return await self._calls.ownership.block(name, commands.repair, request)

    def _need(self) -> tuple[Archive, Commands]:
        """Returns the archive and its commands. Raises NoArchive."""
        archive = self._calls.ownership.need()
        assert self._commands is not None
        return archive, self._commands


def _check_namespace(namespace: str) -> None:
    if namespace:
        check_name(namespace, "namespace")


def _check_place(request: VerifyArchiveRequest | RestoreArchiveRequest) -> None:
    if request.thread:
        check.check_place(request)
    else:
        _check_namespace(request.namespace)


async def _steps(archive: Archive, steps: Iterator[T | None]) -> AsyncIterator[T]:
    """Runs one step after the other on the archive's threads. None is a step without an answer.

    If the caller leaves, the running step is the last one.
    """
    assert isinstance(steps, Generator)
    step: Future[object] = archive.lanes.calls.submit(next, steps, _OVER)
    try:
        while (answer := await asyncio.wrap_future(step)) is not _OVER:
            if answer is not None:
                yield answer  # type: ignore[misc]
            step = archive.lanes.calls.submit(next, steps, _OVER)
    finally:
        # A running generator cannot be closed, and closing one may take a while.
        step.add_done_callback(lambda _: _close(archive, steps))


def _close(archive: Archive, steps: Generator[object, None, None]) -> None:
    with suppress(RuntimeError):  # the daemon is stopping
        archive.lanes.calls.submit(steps.close)
