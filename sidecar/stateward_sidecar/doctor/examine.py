"""All examinations of a running daemon, and those that need none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from stateward.v1.admin_service_pb2 import Diagnosis
from stateward_sidecar.bucket.base import Bucket
from stateward_sidecar.doctor.bucket import check_bucket, check_uploads
from stateward_sidecar.doctor.diagnosis import failed, fine, skipped, warning
from stateward_sidecar.doctor.disk import (
    check_access_file,
    check_directory,
    check_disk,
    check_key_source,
    check_space,
    check_token_file,
)
from stateward_sidecar.doctor.machine import check_limits, check_memory
from stateward_sidecar.doctor.network import check_ports
from stateward_sidecar.errors import StartError
from stateward_sidecar.measures import events
from stateward_sidecar.settings import Settings
from stateward_sidecar.storage.auditlog import AuditLog
from stateward_sidecar.store.store import Store
from stateward_sidecar.telemetry import failures

LOW_SHARE = 0.1
# A reader that is further behind keeps pages from being used again: the file grows with every commit.
BEHIND_MAX = 10_000
# How many namespaces that are full are told.
FULL_SHOWN = 5


def examine_running(
    settings: Settings,
    store: Store,
    key: str,
    reasons: list[str],
    warnings: tuple[str, ...],
    bucket: Bucket | None,
    audit: AuditLog | None,
    unopened: Mapping[Path, str],
) -> Iterator[Diagnosis]:
    """Yields what a running daemon finds. ``key``: its fingerprint. ``bucket``: None = it is not probed. ``unopened``:
    sockets of principals that could not be opened, and why."""
    for reason in reasons:
        yield failed("ready", f"not ready: {reason}", "See docs/monitoring.md for what each cause means.")
    if not reasons:
        yield fine("ready", "the daemon is ready")
    yield from examine_machine(settings, key)
    if settings.access_file is not None:
        yield from _check_sockets(unopened)
    yield _check_map(store)
    yield _check_readers(store)
    yield from _check_quotas(store)
    yield from _check_events()
    if audit is not None:
        yield _check_audit(audit)
    yield from _repeat(warnings)
    if bucket is not None:
        yield from _check_archive(bucket, settings.archive)
    elif not settings.archive:
        yield skipped("bucket", "there is no archive: the data are lost with this disk")


def examine_settings(
    settings: Settings, warnings: tuple[str, ...], open_bucket: Callable[[], Bucket | None]
) -> Iterator[Diagnosis]:
    """Yields what can be found without a daemon."""
    yield from examine_machine(settings, "")
    yield from _repeat(warnings)
    try:
        bucket = open_bucket()
    except StartError as error:
        yield failed("bucket", error.message, "Correct --archive.")
        return
    if bucket is None:
        yield skipped("bucket", "there is no archive: the data are lost with this disk")
        return
    try:
        yield from _check_archive(bucket, settings.archive)
    finally:
        bucket.close()


def _check_archive(bucket: Bucket, url: str) -> Iterator[Diagnosis]:
    yield from check_bucket(bucket)
    if uploads := check_uploads(url):
        yield uploads


def examine_machine(settings: Settings, key: str) -> Iterator[Diagnosis]:
    """Yields what concerns disk, files and limits."""
    allows_exposed = settings.allows_exposed
    yield from check_directory(settings.data_dir, allows_exposed=allows_exposed)
    yield check_key_source(
        settings.key, settings.data_dir, key, allows_exposed=allows_exposed, has_archive=bool(settings.archive)
    )
    yield check_token_file(settings.token_file, settings.access_file, allows_exposed=allows_exposed)
    yield check_access_file(settings.access_file, settings.listen, allows_exposed=allows_exposed)
    yield check_ports(settings)
    place = _existing(settings.data_dir)
    yield check_disk(place)
    yield check_space(place)
    yield from check_limits(settings)
    yield from check_memory(settings)


def _repeat(warnings: tuple[str, ...]) -> Iterator[Diagnosis]:
    """Yields the warnings of the start; the advice of each stands behind its last semicolon."""
    for text in warnings:
        said, _, advice = text.rpartition("; ")
        if said:  # else it is about a file that has a diagnosis of its own
            yield warning("settings", said, f"{advice[0].upper()}{advice[1:]}.")


def _existing(directory: Path) -> Path:
    """Returns the directory, or the nearest one above it that exists."""
    return next(each for each in (directory, *directory.parents) if each.is_dir())


def _check_sockets(unopened: Mapping[Path, str]) -> Iterator[Diagnosis]:
    for path, why in unopened.items():
        yield failed(
            "sockets", f"its principal cannot call: {why}",
            "The daemon tries it again every few seconds. The next start fails with it.", path=path,
        )  # fmt: skip
    if not unopened:
        yield fine("sockets", "all sockets of principals are open")


def _check_map(store: Store) -> Diagnosis:
    engine = store.context.engine
    used, _ = engine.sizes()
    facts = {"used_bytes": used, "map_bytes": engine.map_bytes}
    said = f"{100 * used / engine.map_bytes:.0f} % of the map are used"
    if used > (1 - LOW_SHARE) * engine.map_bytes:
        return warning("space", said, "Start the daemon with a larger --map-size, which reserves no disk.", **facts)
    return fine("space", said, **facts)


def _check_readers(store: Store) -> Diagnosis:
    env = store.context.engine.env
    dead = env.reader_check()
    readers = [line.split() for line in env.readers().splitlines()[1:]]
    newest = int(env.info()["last_txnid"])
    behind = max((newest - int(each[2]) for each in readers if len(each) == 3 and each[2].isdigit()), default=0)
    facts = {"behind_transactions": behind, "dead_readers": dead}
    if behind > BEHIND_MAX:
        return warning(
            "readers", f"a reader of the data file is {behind} commits behind, so no freed page is reused",
            "Find the program that reads the file (mdb_copy, a backup, a stopped process) and let it end.", **facts,
        )  # fmt: skip
    return fine("readers", f"the oldest reader of the data file is {behind} commits behind", **facts)


def _check_quotas(store: Store) -> Iterator[Diagnosis]:
    usage = store.context.usage
    if not usage.is_on:
        return
    if not usage.is_counted:
        yield warning(
            "quotas", "what namespaces take is still being counted, so their limits do not hold yet",
            "Wait for the end of the count.",
        )  # fmt: skip
        return
    full = [used for used in usage.fullest(FULL_SHOWN) if used.used >= (1 - LOW_SHARE) * used.maximum]
    for used in full:
        yield warning(
            "quotas", f"namespace {used.subject!r} takes {used.used:,} of {used.maximum:,} {used.limit}",
            "Delete or prune something there, or raise the limit in the file of --access.", used=used.used,
            maximum=used.maximum,
        )  # fmt: skip
    if not full:
        yield fine("quotas", "no namespace is near its limits")


def _check_audit(audit: AuditLog) -> Diagnosis:
    lost = {"lost_events": events.audit_lost}
    if audit.why:
        return failed(
            "audit_log", f"{audit.path} cannot be written: {audit.why}; security events wait, and then are lost",
            "Make room, or let the daemon's user write there. No call waits for it.", **lost,
        )  # fmt: skip
    if events.audit_lost:
        return warning(
            "audit_log", f"{audit.path} lacks {events.audit_lost} security events, because it could not be written",
            "Some of them are in the daemon's log. A line of the file says where they are missing.", **lost,
        )  # fmt: skip
    return fine("audit_log", f"security events are in {audit.path}", **lost)


def _check_events() -> Iterator[Diagnosis]:
    if failures.count:
        yield warning(
            "failures", f"{failures.count} background tasks failed unexpectedly since the start",
            "The log has each with its traceback; report it.", background_failures=failures.count,
        )  # fmt: skip
    if events.unopened:
        yield failed(
            "failures", f"stored bytes failed authentication {events.unopened} times since the start",
            "The bytes were changed at rest: `stateward verify` looks on the disk, `stateward archive verify "
            "--read-data 100` in the bucket.", unopened=events.unopened,
        )  # fmt: skip
    if not failures.count and not events.unopened:
        yield fine("failures", "no unexpected failures since the start")
