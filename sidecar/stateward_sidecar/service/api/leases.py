"""LeaseService, and the wait for a lease, which it shares with the writers' streams."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import grpc.aio

from stateward.v1.checkpoint_pb2 import DURABILITY_COMMITTED
from stateward.v1.lease_service_pb2 import (
    AcquireLeaseRequest,
    AcquireLeaseResponse,
    ReleaseLeaseRequest,
    ReleaseLeaseResponse,
    RenewLeaseRequest,
    RenewLeaseResponse,
)
from stateward.v1.write_pb2 import Receipt
from stateward_sidecar.errors import LeaseHeld, ShuttingDown, ThreadNotFound
from stateward_sidecar.service.calls.calls import Calls
from stateward_sidecar.service.calls.ownership import timeout_s
from stateward_sidecar.service.checks import check, checkparts
from stateward_sidecar.service.methods import must_exist
from stateward_sidecar.store.journal.admitting import expected_uid

# Approximate space of an entry, with the pages that it touches.
ENTRY_BYTES = 16384
# A waiting call tries again after this time, because the holder may have been restarted.
LOOK_S = 5.0


class Leasing:
    """Grants leases to waiting calls, in no particular order."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._leases = calls.store.leases
        self._waiting: dict[tuple[str, str], set[asyncio.Event]] = defaultdict(set)
        self._is_stopping = False

    def close(self) -> None:
        """Ends all waits at once with ShuttingDown, because the daemon stops."""
        self._is_stopping = True
        for waiting in self._waiting.values():
            for freed in waiting:
                freed.set()

    async def acquire(
        self, request: AcquireLeaseRequest, context: grpc.aio.ServicerContext | None
    ) -> AcquireLeaseResponse:
        """Takes the lease. Waits for it as long as the request says, then raises LeaseHeld."""
        loop = asyncio.get_running_loop()
        until = loop.time() + request.wait.ToMicroseconds() / 1e6
        place, freed = (request.namespace, request.thread), asyncio.Event()
        self._waiting[place].add(freed)
        try:
            while True:
                freed.clear()
                try:
                    return await self._acquire(request, context)
                except LeaseHeld as error:
                    left_s = until - loop.time()
                    if self._is_stopping:
                        raise ShuttingDown("the daemon is stopping; the lease was not granted") from None
                    if left_s <= 0:
                        raise
                    ends_in_s = float(error.metadata["remaining_s"]) + 0.001
                    try:
                        async with asyncio.timeout(min(left_s, ends_in_s, LOOK_S)):
                            await freed.wait()
                    except TimeoutError:
                        pass
        finally:
            self._waiting[place].discard(freed)
            if not self._waiting[place]:
                del self._waiting[place]

    async def _acquire(
        self, request: AcquireLeaseRequest, context: grpc.aio.ServicerContext | None
    ) -> AcquireLeaseResponse:
        ownership = self._calls.ownership
        is_archived = ownership.asks_for_archived(request.options.durability)

        async def acquire() -> AcquireLeaseResponse:
            waits_s = timeout_s(context) if is_archived else 0.0
            return await self._calls.write(self._leases.acquire(request, waits_s), context, size_bytes=ENTRY_BYTES)

        answer = await ownership.write(
            request.namespace, request.thread, acquire, must_exist=must_exist(request), is_archived=is_archived
        )
        if is_archived:
            try:
                await ownership.reach(request, answer.receipt, context)
            finally:
                self._leases.answered(request, answer)
        return answer

    async def release(
        self, request: ReleaseLeaseRequest, context: grpc.aio.ServicerContext | None
    ) -> ReleaseLeaseResponse:
        """Gives a lease back, if it is still held. It need not be archived unless the request says so: a bucket that is
        away must keep nobody from letting go."""
        request.options.durability = request.options.durability or DURABILITY_COMMITTED
        if await self.is_over(request, request.options.lease_token):
            return ReleaseLeaseResponse(receipt=Receipt())

        async def release() -> ReleaseLeaseResponse:
            write = self._leases.release(request)
            answer = await self._calls.write(write, None, size_bytes=ENTRY_BYTES, frees_space=True)
            for freed in self._waiting.get((request.namespace, request.thread), ()):
                freed.set()
            return answer

        try:
            return await self._calls.ownership.write_one(request, release, context)
        except ThreadNotFound:  # the archive has no such thread, and so no lease
            if request.options.expected_uid:
                raise
            return ReleaseLeaseResponse(receipt=Receipt())

    async def is_over(self, request: RenewLeaseRequest | ReleaseLeaseRequest, token: int) -> bool:
        """Whether this process gave the thread up and its copy says that the lease was given back or taken.

        Then the thread is not taken again from its new owner just to learn that.
        """
        if self._calls.ownership.is_held(request.namespace, request.thread):
            return False
        return await self._calls.read(self._is_over, request, token)

    def _is_over(self, request: RenewLeaseRequest | ReleaseLeaseRequest, token: int) -> bool:
        store = self._calls.store
        with store.context.engine.read() as txn:
            found = store.threads.find(txn, request.namespace, request.thread)
        if found is None or expected_uid(request) not in ("", found.identity.uid_text):
            return False
        newest = found.head.lease
        return token < newest.token or (token == newest.token and not newest.HasField("holder"))


class LeaseService:
    """Grants, renews and releases leases."""

    def __init__(self, calls: Calls, leasing: Leasing) -> None:
        self._calls = calls
        self._store = calls.store
        self._leasing = leasing

    async def acquire_lease(
        self, request: AcquireLeaseRequest, context: grpc.aio.ServicerContext
    ) -> AcquireLeaseResponse:
        check.check_write(request)
        checkparts.check_acquire(request)
        return await self._leasing.acquire(request, context)

    async def renew_lease(self, request: RenewLeaseRequest, context: grpc.aio.ServicerContext) -> RenewLeaseResponse:
        check.check_place(request)
        checkparts.check_token(request.lease_token, "lease_token", required=True)

        async def run() -> RenewLeaseResponse:
            return RenewLeaseResponse(lease=await self._calls.read(self._store.leases.renew_by_name, request))

        if await self._leasing.is_over(request, request.lease_token):
            return await run()  # raises LeaseHeld
        return await self._calls.ownership.write(request.namespace, request.thread, run, must_exist=True)

    async def release_lease(
        self, request: ReleaseLeaseRequest, context: grpc.aio.ServicerContext
    ) -> ReleaseLeaseResponse:
        check.check_write(request)
        return await self._leasing.release(request, context)
