"""AdminService."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import grpc.aio

from stateward.v1.admin_service_pb2 import (
    CompactRequest,
    CompactResponse,
    DiagnoseRequest,
    DiagnoseResponse,
    Diagnosis,
    DrainRequest,
    DrainResponse,
    GetServerInfoRequest,
    GetServerInfoResponse,
    GetStatsRequest,
    GetStatsResponse,
    LimitUse,
    RekeyThreadRequest,
    RekeyThreadResponse,
    VerifyRequest,
    VerifyResponse,
)
from stateward.v1.checkpoint_pb2 import Durability
from stateward_sidecar.clock import Clock
from stateward_sidecar.codec.edits import check_name
from stateward_sidecar.errors import InvalidField
from stateward_sidecar.measures import events
from stateward_sidecar.security import CHANGED
from stateward_sidecar.service.admission.grants import ANYBODY
from stateward_sidecar.service.admission.weight import ITEMS_MAX
from stateward_sidecar.service.calls.calls import Calls
from stateward_sidecar.service.calls.evidence import note_call
from stateward_sidecar.service.calls.localcall import LocalCall
from stateward_sidecar.service.calls.method import caller_of_call
from stateward_sidecar.service.checks import check
from stateward_sidecar.service.serving.shutdown import GRACE_S_MAX, Drain
from stateward_sidecar.storage.engine import FORMAT
from stateward_sidecar.store.thread.context import REQUEST_WINDOW_ENTRIES, REQUEST_WINDOW_S
from stateward_sidecar.store.thread.usage import Used
from stateward_sidecar.telemetry import failures

FEATURES = ("blobs", "calls", "effects", "leases", "records", "signals", "workspaces", "writer")
# How many limits of namespaces the stats show.
FULLEST = 10
# How long before its caller's deadline a drain answers.
MARGIN_S, MARGIN_SHARE = 0.5, 0.1


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts about the daemon. Only the answers of its callables change."""

    version: str
    key_id: str
    default_durability: Durability
    warnings: tuple[str, ...]
    start_time_us: int
    # Whether clients of this host can speak frames.
    has_frames: Callable[[], bool]
    # Why the daemon is not ready at present.
    list_reasons: Callable[[], list[str]]
    # Examines daemon and machine; True also probes the bucket. Takes some seconds.
    examine: Callable[[bool], list[Diagnosis]]


class AdminService:
    """Shows the state of the server, verifies its data, examines its machine, and drains it."""

    def __init__(self, calls: Calls, facts: ServerFacts, count_watches: Callable[[], int], drain: Drain) -> None:
        self._calls = calls
        self._store = calls.store
        self._facts = facts
        self._count_watches = count_watches
        self._drain = drain
        self._examining = asyncio.Lock()

    async def get_server_info(
        self, request: GetServerInfoRequest, context: grpc.aio.ServicerContext
    ) -> GetServerInfoResponse:
        facts, limits = self._facts, self._store.context.limits
        answer = GetServerInfoResponse(
            version=facts.version, format=FORMAT, max_state_bytes=limits.state_bytes,
            max_message_bytes=limits.message_bytes, request_id_window_entries=REQUEST_WINDOW_ENTRIES,
            default_durability=facts.default_durability, key_id=facts.key_id, warnings=facts.warnings,
            features=FEATURES, max_request_items=ITEMS_MAX, not_ready=facts.list_reasons(),
            wire=_wire_of(context),
            limits=[LimitUse(**used._asdict()) for used in self._limits_of(request.namespace)],
        )  # fmt: skip
        caller = caller_of_call.get()
        if caller is not None and caller.principal is not ANYBODY:
            answer.principal = caller.principal.name
            answer.reads_part = not caller.principal.may_read_all(request.namespace or check.DEFAULT_NAMESPACE)
        if self._calls.ownership.archive is not None:
            answer.features.append("archive")
        if facts.has_frames():
            answer.features.append("frames")
        answer.request_id_window.FromSeconds(REQUEST_WINDOW_S)
        answer.start_time.FromMicroseconds(facts.start_time_us)
        return answer

    def _limits_of(self, namespace: str) -> Iterator[Used]:
        """Yields the limits of the caller, and those of a namespace of which the caller may read every thread:
        what is used tells how many there are."""
        if namespace:
            check_name(namespace, "namespace")
        namespace, caller = namespace or check.DEFAULT_NAMESPACE, caller_of_call.get()
        if caller is not None and caller.principal.allowance is not None:
            yield from caller.principal.allowance.used()
        if caller is None or caller.principal.may_read_all(namespace):
            yield from self._store.context.usage.of(namespace)

    async def get_stats(self, request: GetStatsRequest, context: grpc.aio.ServicerContext) -> GetStatsResponse:
        store = self._store.context
        counters = store.counters
        used, file_bytes = store.engine.sizes()
        archive = self._calls.ownership.archive
        return GetStatsResponse(
            threads=await self._calls.read(self._store.count_threads), saves=counters.saves, entries=counters.entries,
            commits=store.writer.commits, entry_bytes=counters.entry_bytes, snapshot_bytes=counters.snapshot_bytes,
            snapshots=counters.snapshots, used_bytes=used, file_bytes=file_bytes, map_bytes=store.engine.map_bytes,
            queued_writes=store.writer.queued, cache_bytes=store.cache.used_bytes,
            cache_limit_bytes=store.cache.limit_bytes, watches=self._count_watches(),
            background_failures=failures.count, blob_bytes=await self._calls.look(store.blob_files.size_bytes),
            draining=not self._calls.ownership.gate.is_open,
            limits=[LimitUse(**used._asdict()) for used in await self._calls.look(store.usage.fullest, FULLEST)],
            limit_refusals=events.limits,
            archive=await self._calls.read(archive.stats) if archive is not None else None,
        )  # fmt: skip

    async def verify(self, request: VerifyRequest, context: grpc.aio.ServicerContext) -> AsyncIterator[VerifyResponse]:
        if request.thread:
            check.check_place(request)
        elif request.namespace:
            check_name(request.namespace, "namespace")
        if request.deleted_keys and request.thread:
            raise InvalidField("deleted_keys", "is about all threads; leave `thread` empty")
        steps = self._store.verifier.verify(request)
        while True:
            async with self._calls.sending_next(steps) as answer:
                if answer is None:
                    return
                yield answer

    async def compact(self, request: CompactRequest, context: grpc.aio.ServicerContext) -> CompactResponse:
        done = await asyncio.get_running_loop().run_in_executor(self._store.background, self._store.compactor.compact)
        answer = CompactResponse(
            before_bytes=done.before_bytes, after_bytes=done.after_bytes, old_file_removed=done.is_removed
        )
        answer.pause.FromMicroseconds(round(done.pause_s * 1e6))
        return answer

    async def rekey_thread(
        self, request: RekeyThreadRequest, context: grpc.aio.ServicerContext
    ) -> RekeyThreadResponse:
        check.check_place(request)
        name, uid, archive = (request.namespace, request.thread), request.expected_uid, self._calls.ownership.archive
        if archive is not None:
            done = await self._calls.ownership.block(name, archive.rekey, *name, uid)
        else:
            run = asyncio.get_running_loop().run_in_executor
            done = await run(self._store.background, self._store.rekeyer.rekey, *name, uid)
        old_uid, new_uid = done.old_uid.hex(), done.uid.hex()
        note_call(CHANGED, "a thread has another key", "RekeyThread", context, uid=new_uid, old_uid=old_uid)
        return RekeyThreadResponse(old_uid=old_uid, uid=new_uid, entries=done.entries)

    async def diagnose(self, request: DiagnoseRequest, context: grpc.aio.ServicerContext) -> DiagnoseResponse:
        async with self._examining:
            run = asyncio.get_running_loop().run_in_executor
            answer = DiagnoseResponse(diagnoses=await run(None, self._facts.examine, request.probe_bucket))
        answer.time.FromMicroseconds(Clock().now_us())
        return answer

    async def drain(self, request: DrainRequest, context: grpc.aio.ServicerContext) -> DrainResponse:
        if request.undo:
            return await self._drain.undo()
        grace_s = self._drain.grace_s
        if request.HasField("grace"):
            grace_s = request.grace.seconds + request.grace.nanos / 1e9
            if not 0 <= grace_s <= GRACE_S_MAX:
                raise InvalidField("grace", f"{grace_s:g} s is not between 0 and {GRACE_S_MAX:g} s")
        remaining = context.time_remaining()
        if remaining is not None:
            grace_s = min(grace_s, max(remaining - min(MARGIN_S, remaining * MARGIN_SHARE), 0.0))
        return await self._drain.begin(grace_s)


def _wire_of(context: grpc.aio.ServicerContext) -> str:
    if isinstance(context, LocalCall):
        return "frames"
    return "grpc+tls" if b"ssl" in context.auth_context().get("transport_security_type", ()) else "grpc"
