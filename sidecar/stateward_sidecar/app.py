"""The composition root: makes the parts, runs them, and stops them in order."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from google.protobuf.descriptor import ServiceDescriptor

from stateward._version import VERSION, install_command
from stateward.v1 import (
    admin_service_pb2,
    archive_service_pb2,
    backup_service_pb2,
    blob_service_pb2,
    call_service_pb2,
    checkpoint_service_pb2,
    effect_service_pb2,
    lease_service_pb2,
    record_service_pb2,
    signal_service_pb2,
    thread_service_pb2,
    workspace_service_pb2,
    writer_service_pb2,
)
from stateward.v1.admin_service_pb2 import Diagnosis
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED, Durability
from stateward_sidecar import notify, security, spans
from stateward_sidecar.addresses import TLS_MARK, check_listeners, has_tls, sockets_of
from stateward_sidecar.bucket.base import Bucket
from stateward_sidecar.bucket.open import open_bucket
from stateward_sidecar.bucket.retrying import Patience
from stateward_sidecar.clock import Clock
from stateward_sidecar.errors import StartError
from stateward_sidecar.measures import Measures, Wires
from stateward_sidecar.security import CHANGED, EXPOSED
from stateward_sidecar.service.admission.callers import Callers
from stateward_sidecar.service.admission.held import HeldGate
from stateward_sidecar.service.admission.memory import Room, keep_memory_together, make_room
from stateward_sidecar.service.admission.order import Turns
from stateward_sidecar.service.api.admin import AdminService, ServerFacts
from stateward_sidecar.service.api.archive import ArchiveService
from stateward_sidecar.service.api.backup import BackupService
from stateward_sidecar.service.api.blobs import BlobService
from stateward_sidecar.service.api.checkpoints import CheckpointService
from stateward_sidecar.service.api.effects import EffectService
from stateward_sidecar.service.api.leases import LeaseService, Leasing
from stateward_sidecar.service.api.records import RecordService
from stateward_sidecar.service.api.signals import SignalService
from stateward_sidecar.service.api.threads import ThreadService
from stateward_sidecar.service.api.workspaces import WorkspaceService
from stateward_sidecar.service.api.writers import WriterService
from stateward_sidecar.service.calls.calls import Calls, Delivery, Gather
from stateward_sidecar.service.calls.feed import Feed
from stateward_sidecar.service.calls.ownership import Ownership
from stateward_sidecar.service.calls.streamed import CallService, verbs_of
from stateward_sidecar.service.serving.readiness import (
    ARCHIVE,
    DATA,
    DISK,
    DRAINING,
    KEY,
    Check,
    Readiness,
    check_archive,
    check_data,
    check_key,
    check_room,
)
from stateward_sidecar.service.serving.server import Server
from stateward_sidecar.service.serving.shutdown import Drain, Idle
from stateward_sidecar.service.serving.shutdown import stop as stop_in_order
from stateward_sidecar.service.serving.tls import Tls
from stateward_sidecar.settings import Settings, guards_of
from stateward_sidecar.storage.auditlog import AuditLog
from stateward_sidecar.storage.certificates import certificate_files
from stateward_sidecar.storage.engine import DATA_FILE, FORMAT
from stateward_sidecar.storage.exposure import find_exposures, refuse_exposed
from stateward_sidecar.storage.files import UsersLock, announce, sync_path, withdraw
from stateward_sidecar.storage.keysource import Key, open_key
from stateward_sidecar.storage.keywraps import is_wrapped_by, opens_roots
from stateward_sidecar.storage.secretfiles import create_key_file, fingerprint
from stateward_sidecar.store.store import KEYS_FILE, Store, StoreOptions
from stateward_sidecar.store.thread.cache import default_cache_bytes, memory_limit_bytes
from stateward_sidecar.store.thread.context import Limits
from stateward_sidecar.telemetry import failures, log
from stateward_sidecar.tracebacks import told

if TYPE_CHECKING:
    from stateward_sidecar.archive.archive import Archive
    from stateward_sidecar.archive.opening import Opening
    from stateward_sidecar.metrics.listener import Metrics
    from stateward_sidecar.tracing import OtelTracer

EXIT_OK, EXIT_DISK_FAILED = 0, 70
# How long the last spans may take on their way to the collector.
TRACES_END_S = 1.0
# How long a stop waits until the archive knows it.
SIGN_OUT_S = 1.0
# How often a sidecar that could not say that it runs tries it again.
SIGN_AGAIN_S = 5.0
# Each connection, blob and request is one.
OPEN_FILES = 1 << 14
# New objects between two runs of the cycle collector. Python's 700 is a few saves.
GC_THRESHOLD = 5_000
# How long a worker that computes may keep the interpreter from the event loop. With the default of 5 ms, each step of a
# save beside a crowd of lists waits for that long.
SWITCH_S = 0.001
# How long a start waits for the count of what namespaces take.
COUNT_S = 10.0
# How often the daemon looks for held threads that are to be locked.
LOCK_LOOK_S = 5.0
# For one request with its retries. The schedule repeats ships, and callers repeat calls.
BUCKET_PATIENCE = Patience(deadline_s=8.0)
CHECK_PATIENCE = Patience(deadline_s=3.0)  # somebody waits for `--check`
# File systems whose data are lost with the machine or the container.
VOLATILE = ("tmpfs", "ramfs", "overlay")
_RIGHT_KEY = (
    "put the key file there that the archive was made with, or name it with STATEWARD_KEY_FILE or --key-file; or give "
    "another --archive"
)


async def run(settings: Settings) -> NoReturn:
    """Runs the daemon until it is asked to stop, then ends the process. Raises StartError."""
    _allow_open_files()
    keep_memory_together()
    sys.setswitchinterval(SWITCH_S)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_note_unheard)
    stop = asyncio.Event()
    failure: list[BaseException] = []

    def on_fatal(error: BaseException) -> None:
        log.error("the disk failed in the middle of a commit: stopping", error=told(error))
        failure.append(error)
        loop.call_soon_threadsafe(stop.set)

    tracer = _open_traces(settings)
    audit = _open_audit(settings)
    parts = _make_parts(settings, loop, on_fatal, audit)
    parts.store.context.writer.is_traced = tracer is not None
    targets = await _start(parts, settings, loop)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    _say_ready(parts, settings, targets)
    sweeping = asyncio.create_task(_sweep(parts.store, settings.sweep_interval_s))
    watching = asyncio.create_task(parts.readiness.watch())
    locking = asyncio.create_task(_lock(parts.store, settings.held_for_s))
    idling = asyncio.create_task(_end_when_idle(parts, settings, stop))
    signing = asyncio.create_task(_sign_in_again(parts))
    await stop.wait()
    withdraw(settings.data_dir)
    idling.cancel()
    log.info("stopping", grace_s=settings.grace_s)
    sweeping.cancel()
    watching.cancel()
    locking.cancel()
    parts.feed.close()
    parts.writers.close()
    parts.streamed.close()
    if failure:
        # LMDB is in an unknown state, so nothing touches it any more. The file is intact at the next start.
        await parts.server.stop(0)
        _end(EXIT_DISK_FAILED, audit)
    if parts.metrics is not None:
        await loop.run_in_executor(None, parts.metrics.close)
    signing.cancel()
    await stop_in_order(parts.server, parts.store, parts.archive, settings.grace_s, partial(_sign_out, parts))
    if tracer is not None:
        with suppress(TimeoutError):
            async with asyncio.timeout(TRACES_END_S):
                await loop.run_in_executor(None, tracer.close)
    log.info("stopped")
    _end(EXIT_DISK_FAILED if failure else EXIT_OK, audit)


def check(settings: Settings) -> int:
    """Examines what can be examined without starting, and prints a line of JSON for each diagnosis. Returns 1 if
    something failed."""
    from google.protobuf.json_format import MessageToDict

    from stateward_sidecar.doctor.examine import examine_settings

    code = 0
    for found in examine_settings(settings, warnings_of(settings), partial(_open_bucket, settings, CHECK_PATIENCE)):
        print(json.dumps(MessageToDict(found, preserving_proto_field_name=True)), flush=True)
        code = max(code, int(found.verdict == Diagnosis.VERDICT_FAILED))
    return code


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of the daemon."""

    key: Key
    store: Store
    readiness: Readiness
    metrics: Metrics | None
    opening: Opening | None
    archive: Archive | None
    feed: Feed
    writers: WriterService
    streamed: CallService
    server: Server
    room: Room
    warnings: tuple[str, ...]


def _find_root(settings: Settings, opening: Opening | None, given: Key | None) -> tuple[bytes, Key]:
    """Returns the root key of the archive that an empty directory goes on with, or that another key wraps since a
    rotation (b"" = none), and the key that opens it.

    Raises StartError before the directory has data, which would bind the next start."""
    root = b""
    if opening is not None and (settings.data_dir / KEYS_FILE).exists():
        assert given is not None
        root = _fetch_rotated(opening, settings, given)
    elif opening is not None:
        root = opening.fetch_root(given.data if given is not None else b"")
    opened = given or Key(_make_key(settings, root))
    if root and not opens_roots(root, opened.data):
        raise StartError(
            f"KEY_UNAVAILABLE: the key {fingerprint(opened.data)} in {settings.key} does not open the archive "
            f"{settings.archive}; {_RIGHT_KEY}"
        )
    return root, opened


def _make_parts(
    settings: Settings,
    loop: asyncio.AbstractEventLoop,
    on_fatal: Callable[[BaseException], None],
    audit: AuditLog | None = None,
) -> _Parts:
    feed = Feed(loop)
    delivery = Delivery(loop, feed.on_commit)
    refuse_exposed(settings)  # nothing is made if this or the next line fails
    callers, tls = _find_guards(settings)
    given_key = _find_key(settings)  # asks a service perhaps
    bucket = _open_bucket(settings)
    opening = _begin_archive(bucket, settings) if bucket is not None else None
    root, opened = _find_root(settings, opening, given_key)
    key = opened.data
    memory_bytes = settings.memory_bytes or memory_limit_bytes()
    cache_bytes = settings.cache_bytes or default_cache_bytes(memory_bytes)
    room = make_room(memory_bytes, cache_bytes)
    store = Store(
        StoreOptions(
            directory=settings.data_dir, key=key, root=root, map_bytes=settings.map_bytes,
            cache_bytes=cache_bytes, fetch=opening.fetch_namespace if opening is not None else None,
            limits=Limits(
                state_bytes=settings.max_state_bytes, message_bytes=settings.max_state_bytes,
                workspace_bytes=settings.max_workspace_bytes,
            ),
        ),
        delivery.deliver, on_fatal,
    )  # fmt: skip
    store.context.reserve = partial(room.reserve, loop)
    store.threads.on_change = feed.note
    if callers is not None:
        callers.on_namespaces = store.limit_namespaces
        store.limit_namespaces(callers.namespaces)
    archive, commands = opening.make(store) if opening is not None else (None, None)
    durability = DURABILITY_ARCHIVED if settings.default_durability == "archived" else DURABILITY_COMMITTED
    turns = Turns(loop)
    held = HeldGate(store, archive)
    ownership = Ownership(store, archive, durability, held)
    calls = Calls(store, Gather(loop, store.context.writer), ownership, room.answers, turns)
    measures = Measures() if settings.metrics is not None else None
    if measures is not None:
        _measure(measures, store, archive, calls)

    async def set_ready(is_ready: bool) -> None:
        await server.set_ready(is_ready)

    async def set_draining(is_draining: bool) -> None:
        await readiness.hold(DRAINING, "the daemon takes no new work" if is_draining else "")

    is_next = opening.is_key if opening is not None else None
    readiness = Readiness(_make_checks(settings, store, archive, key, durability, is_next), set_ready)
    warnings = warnings_of(settings)

    def examine(probes_bucket: bool) -> list[Diagnosis]:
        from stateward_sidecar.doctor.examine import examine_running  # loaded when somebody asks

        probed = opening.bucket if opening is not None and probes_bucket else None
        reasons = readiness.list_reasons()
        return list(
            examine_running(settings, store, fingerprint(key), reasons, warnings, probed, audit, server.unopened)
        )

    facts = ServerFacts(
        version=VERSION, key_id=fingerprint(key), default_durability=durability, warnings=warnings,
        start_time_us=Clock().now_us(), has_frames=lambda: server.has_frames, list_reasons=readiness.list_reasons,
        examine=examine,
    )  # fmt: skip
    drain = Drain(store, ownership, settings.grace_s, set_draining)
    leasing = Leasing(calls)
    writers = WriterService(calls, leasing)
    modules = {
        checkpoint_service_pb2: CheckpointService(calls, feed),
        thread_service_pb2: ThreadService(calls, feed),
        blob_service_pb2: BlobService(calls),
        workspace_service_pb2: WorkspaceService(calls),
        effect_service_pb2: EffectService(calls),
        record_service_pb2: RecordService(calls),
        lease_service_pb2: LeaseService(calls, leasing),
        signal_service_pb2: SignalService(calls),
        writer_service_pb2: writers,
        admin_service_pb2: AdminService(calls, facts, lambda: feed.listeners, drain),
        archive_service_pb2: ArchiveService(calls, commands),
        backup_service_pb2: BackupService(calls, room.requests),
    }
    services: dict[ServiceDescriptor, object] = {_service_of(module): each for module, each in modules.items()}
    streamed = services[_service_of(call_service_pb2)] = CallService(calls, turns, verbs_of(services))
    server = Server(
        services,
        settings.max_state_bytes, ownership.gate, room, turns, measures.calls if measures is not None else None,
        callers, gather=calls.gather if settings.has_frames else None,
        listeners=len(settings.listen), tls=tls,
        held=held,
    )  # fmt: skip
    metrics = None
    if measures is not None and settings.metrics is not None:
        metrics = _open_metrics(
            settings.metrics, measures, store, archive, lambda: server.open_calls, lambda: server.wires,
            lambda: turns.waiting, lambda: feed.listeners,
            lambda: {cause: bool(why) for cause, why in readiness.reasons.items()},
        )  # fmt: skip
    return _Parts(opened, store, readiness, metrics, opening, archive, feed, writers, streamed, server, room, warnings)


def _find_guards(settings: Settings) -> tuple[Callers | None, Tls | None]:
    """Returns who may call, and the certificates of ports. Raises StartError, also for a port that is not allowed."""
    guards = guards_of(settings)
    check_listeners(settings.listen, guards)
    files = certificate_files(settings)
    taken = sockets_of(settings.listen)
    callers = Callers(settings.token_file, settings.access_file, taken) if guards.has_callers else None
    return callers, Tls(files) if files is not None else None


def _service_of(module: Any) -> ServiceDescriptor:
    found: ServiceDescriptor = next(iter(module.DESCRIPTOR.services_by_name.values()))
    return found


def _make_checks(
    settings: Settings, store: Store, archive: Archive | None, key: bytes, durability: Durability,
    is_next: Callable[[str], bool] | None,
) -> dict[str, Check]:  # fmt: skip
    checks = {
        DISK: check_room(store.context.engine, store.context.writer),
        DATA: check_data(store.context.engine),
        KEY: check_key(settings.key, key, is_next),
    }
    if archive is not None:
        checks[ARCHIVE] = check_archive(archive, durability)
    return checks


def _measure(measures: Measures, store: Store, archive: Archive | None, calls: Calls) -> None:
    """Gives the parts what they measure themselves with."""
    context = store.context
    context.writer.measures = measures.writer
    context.cache.measures = measures.store
    context.keystore.syncs = measures.writer.key_syncs
    context.blob_files.syncs = measures.store.blob_syncs
    calls.measures = measures.calls
    if archive is not None:
        archive.state.wire.measures = measures.bucket


def _open_traces(settings: Settings) -> OtelTracer | None:
    if not settings.traces:
        return None
    try:  # loaded only for those who use it
        from stateward_sidecar.tracing import OtelTracer
    except ImportError as error:
        raise StartError(
            f"--traces needs a package that is missing ({error.name}); run: {install_command('otel')}"
        ) from None
    tracer = OtelTracer(settings.traces, VERSION, settings.owner_id)
    spans.tracer = tracer
    return tracer


def _open_metrics(
    address: tuple[str, int],
    measures: Measures,
    store: Store,
    archive: Archive | None,
    open_calls: Callable[[], int],
    wires: Callable[[], Wires],
    waiting_calls: Callable[[], tuple[int, int]],
    watches: Callable[[], int],
    not_ready: Callable[[], dict[str, bool]],
) -> Metrics:
    try:  # loaded only for those who use it
        from stateward_sidecar.metrics.listener import Metrics
        from stateward_sidecar.metrics.sources import Sources
    except ImportError as error:
        raise StartError(
            f"--metrics needs a package that is missing ({error.name}); run: {install_command('metrics')}"
        ) from None
    sources = Sources(measures, store, archive, VERSION, FORMAT, open_calls, wires, waiting_calls, watches, not_ready)
    return Metrics(address, sources)


async def _start(parts: _Parts, settings: Settings, loop: asyncio.AbstractEventLoop) -> list[str]:
    """Starts everything. Returns the targets on which the daemon listens. On an error, closes what was opened."""
    store, archive = parts.store, parts.archive
    try:
        targets = [parts.server.listen(url) for url in settings.listen]
        parts.server.listen_own()
        store.start()
        if archive is not None and parts.opening is not None:
            await loop.run_in_executor(None, parts.opening.join, store, parts.key)
            archive.start()
            await loop.run_in_executor(None, parts.opening.sign_in, store, archive)
        await parts.readiness.look()
        if store.counting is not None:  # until it ends, the limits of namespaces do not hold
            await asyncio.wait([asyncio.wrap_future(store.counting)], timeout=COUNT_S)
        await parts.server.start()
        if parts.metrics is not None:
            parts.metrics.start()
    except BaseException:
        if parts.metrics is not None:
            parts.metrics.close()
        if archive is not None:
            archive.close()
        store.close()
        raise
    return targets


async def _sign_in_again(parts: _Parts) -> None:
    """Says in the archive that this sidecar runs, if the archive did not answer at the start."""
    if parts.opening is None or parts.archive is None:
        return
    while not parts.opening.is_known:
        await asyncio.sleep(SIGN_AGAIN_S)
        try:
            await asyncio.get_running_loop().run_in_executor(None, parts.opening.sign_in, parts.store, parts.archive)
        except Exception:  # noqa: BLE001  (the next round tries again)
            failures.note("sign in")


async def _sign_out(parts: _Parts) -> None:
    """Says in the archive that this sidecar has stopped, or what it has not archived."""
    if parts.opening is None or parts.archive is None:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(SIGN_OUT_S):
            await asyncio.get_running_loop().run_in_executor(
                None, parts.opening.sign_out, parts.store, parts.archive
            )


def _say_ready(parts: _Parts, settings: Settings, targets: list[str]) -> None:
    exposed = exposures_of(settings)
    for warning in parts.warnings:
        if warning in exposed:
            security.note(EXPOSED, warning)
        else:
            log.warning(warning)
    log.info(
        "ready",
        owner=settings.owner_id,
        listen=" ".join(targets),
        data_dir=settings.data_dir,
        version=VERSION,
        key=fingerprint(parts.key.data),
        **({"metrics": parts.metrics.url} if parts.metrics is not None else {}),
    )
    _spare_collector()
    _announce(settings, targets)
    print(f"stateward-sidecar ready on {' '.join(targets)} (data {settings.data_dir})", flush=True)


def _announce(settings: Settings, targets: list[str]) -> None:
    """Tells clients where the daemon is: those that look into its data directory, and the one that waits for it."""
    target = next((each for each in targets if each.startswith("unix:")), targets[0]).removesuffix(TLS_MARK)
    started = datetime.fromtimestamp(Clock().now_us() / 1e6, UTC).isoformat()
    try:
        announce(
            settings.data_dir,
            {
                "pid": os.getpid(), "start_time": started, "target": target, "version": VERSION,
                "idle_exit_s": settings.idle_exit_s, "archive": settings.archive,
            },
        )  # fmt: skip
    except OSError as error:  # a full disk; deletions make room
        log.warning("cannot write daemon.json: stateward.open() does not find this daemon", error=error.strerror)
    notify.tell(settings.ready_fd, f"ready {target}")


async def _end_when_idle(parts: _Parts, settings: Settings, stop: asyncio.Event) -> None:
    if not settings.idle_exit_s:
        return

    async def count_dirty() -> int:
        if parts.archive is None:
            return 0
        # Nobody ships a locked thread before a client comes who has its key.
        work = partial(parts.store.read, partial(parts.archive.leaver.count_dirty, with_locked=False))
        return await asyncio.get_running_loop().run_in_executor(parts.store.workers, work)

    await Idle(settings.idle_exit_s, parts.server, UsersLock(settings.data_dir), count_dirty).wait()
    stop.set()


def _open_audit(settings: Settings) -> AuditLog | None:
    """Opens the audit log if there is one. It gets every event from now on. Raises StartError."""
    if settings.audit_log is None:
        return None
    audit = AuditLog(settings.audit_log)
    security.add_sink(audit.put)
    audit.put({"event": "started", "said": "the daemon starts", "version": VERSION, "pid": os.getpid()})
    return audit


def _end(code: int, audit: AuditLog | None) -> NoReturn:
    """Ends the process at once. The interpreter's own exit waits for every thread, also for one that hangs."""
    security.denials.settle(now=True)
    if audit is not None:
        audit.put({"event": "stopped", "said": "the daemon stops", "code": code})
        audit.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _open_bucket(settings: Settings, patience: Patience | None = None) -> Bucket | None:
    if not settings.archive:
        return None
    must_exist = settings.archive_must_exist
    return open_bucket(settings.archive, os.environ, Clock(), patience or BUCKET_PATIENCE, must_exist=must_exist)


def _begin_archive(bucket: Bucket, settings: Settings) -> Opening:
    from stateward_sidecar.archive.opening import Opening

    return Opening(bucket, settings)


def _note_unheard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Notes a failure on the loop that nobody waits for: of a callback, or of a forgotten task."""
    del loop
    error = context.get("exception")
    try:
        raise error if isinstance(error, Exception) else RuntimeError
    except Exception as raised:  # noqa: BLE001  (raised for the log)
        # asyncio's words, up to the first object: without an exception they are all that is known.
        said = {} if raised is error else {"said": str(context["message"]).partition("<")[0].strip()}
        failures.note("event loop", **said)


async def _sweep(store: Store, interval_s: float) -> None:
    while interval_s:
        await asyncio.sleep(interval_s)
        try:
            await asyncio.get_running_loop().run_in_executor(store.background, store.sweeper.sweep)
        except Exception:  # noqa: BLE001  (the next round tries again)
            failures.note("sweep")


async def _lock(store: Store, held_for_s: float) -> None:
    """Locks held threads some time after their last call."""
    while True:
        await asyncio.sleep(min(LOCK_LOOK_S, held_for_s / 4))
        try:
            await asyncio.get_running_loop().run_in_executor(None, store.lock_held, held_for_s)
        except Exception:  # noqa: BLE001  (the next round tries again)
            failures.note("lock")


def _find_key(settings: Settings) -> Key | None:
    """Returns the key; None if there is no key file, and one may be made. Raises StartError."""
    has_data = (settings.data_dir / DATA_FILE).exists() or (settings.data_dir / KEYS_FILE).exists()
    path = settings.key.path
    if has_data or path is None or settings.key.kind != "file":
        return open_key(settings.key)
    is_shared = bool(settings.archive) and not settings.archive.startswith("file:")
    if path.exists():
        key = open_key(settings.key)
        sync_path(path.parent)  # an earlier start may have died before its key file was durable
        return key
    if is_shared and not settings.accept_local_key:
        raise StartError(
            f"there is no key file {path}. A key file made here would be lost with this machine; without "
            "it nobody can read the archive. If the archive has data already, put its key file there. Else make a key "
            "file with `stateward keys new`, keep a copy, and pass it with --key-file or STATEWARD_KEY_FILE; or start "
            "with --accept-local-key"
        )
    return None


def _fetch_rotated(opening: Opening, settings: Settings, key: Key) -> bytes:
    """Returns the root as this key wraps it in the archive, if another one wraps it in the data; else nothing. Raises
    StartError."""
    if is_wrapped_by(settings.data_dir / KEYS_FILE, key.data):
        return b""
    try:
        root = opening.fetch_root(key.data)
    except StartError as error:
        raise StartError(
            f"KEY_UNAVAILABLE: the key {fingerprint(key.data)} does not open the data in {settings.data_dir}, and "
            f"whether it is the next one is not known: {error.message}"
        ) from None
    if not root or not opens_roots(root, key.data):
        return b""
    security.note(CHANGED, "another key opens the archive, and these data from now on", key=fingerprint(key.data))
    return root


def _make_key(settings: Settings, root: bytes) -> bytes:
    """Makes the key file. Raises StartError, and makes none, if the archive has a ``root``: a new key cannot open
    it."""
    path = settings.key.path
    assert path is not None
    if root:
        raise StartError(
            f"KEY_UNAVAILABLE: there is no key file {path}, and the archive {settings.archive} has data "
            f"already; {_RIGHT_KEY}"
        )
    key = create_key_file(path)
    sync_path(path.parent)
    security.note(
        CHANGED, "made a new key file; keep a copy of it, or the data is lost with this machine", tell=log.warning,
        key_file=str(path), key=fingerprint(key),
    )  # fmt: skip
    return key


def _spare_collector() -> None:
    """Hides the objects of the start, which stay for ever, from the cycle collector, and runs the collector less."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


def _allow_open_files() -> None:
    """Raises the limit of open files, which many systems set to 1,024 for programs that use `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def warnings_of(settings: Settings) -> tuple[str, ...]:
    """Returns warnings about these settings for the operator."""
    found = exposures_of(settings)
    kind = _file_system(settings.data_dir)
    if kind in VOLATILE and not settings.archive:
        found.append(
            f"the data directory is on {kind}, which is lost with the machine or container; use a disk or an archive"
        )
    return tuple(found)


def exposures_of(settings: Settings) -> list[str]:
    """Returns the warnings that tell what these settings lay open."""
    guards = guards_of(settings)
    found = [
        f"every user and container that reaches {url} can read, change and delete all threads: a port asks "
        "for no token; set --token-file or --access, or use a unix socket, which only its owner and group can open"
        for url in settings.listen
        if not url.startswith("unix:") and not guards.has_callers
        and not (url.endswith(TLS_MARK) and guards.has_client_ca)
    ]
    if guards.has_client_ca and not guards.has_callers and has_tls(settings.listen):
        found.append(
            f"everybody with a certificate of {settings.tls_client_ca} can read, change and delete all threads; set "
            "--access to say who may do what, or use a CA that signs for nobody else"
        )
    if settings.is_debuggable:
        found.append(
            "--debuggable: every program of this user can read the daemon's memory, which has keys, tokens and states, "
            "and a crash may write it to a file; start the daemon without this flag when you are done"
        )
    found.extend(exposed.warning for exposed in find_exposures(settings))
    return found


def _file_system(directory: Path) -> str:
    """Returns the type of the file system of a directory; empty if it is unknown."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    best = ("", "")
    for line in lines:
        left, _, right = line.partition(" - ")
        point = left.split()[4]
        if (directory == Path(point) or Path(point) in directory.parents) and len(point) >= len(best[0]):
            best = (point, right.split()[0])
    return best[1]
