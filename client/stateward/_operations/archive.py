"""Operations on the archive as a whole."""

from __future__ import annotations

from stateward._operations.steps import Call, Operation
from stateward._operations.streams import ProgressReader
from stateward.archive import (
    ArchivedThread,
    ArchiveStatus,
    ArchiveVerifyProgress,
    GarbageProgress,
    Repair,
    RestoreProgress,
)
from stateward.arguments import instance, message
from stateward.durations import Duration, span
from stateward.v1 import archive_service_pb2 as service

# The daemon reads the thread's whole history from disk and writes it again.
REPAIR_TIMEOUT_S = 600.0


def status() -> Operation[ArchiveStatus]:
    """Reads the location and the status of the archive."""
    return ArchiveStatus.from_proto((yield Call("GetArchive", service.GetArchiveRequest())))


def list_threads(namespace: str, *, index: bool, elsewhere: bool) -> ProgressReader[ArchivedThread]:
    """Lists all threads in the archive."""
    request = message(
        service.ListArchiveRequest, {"namespace": namespace, "index": index, "elsewhere": elsewhere}
    )
    return ProgressReader("ListArchive", request, ArchivedThread.from_proto)


def verify(
    namespace: str, thread: str | None, data_percent: float, deleted_keys: bool
) -> ProgressReader[ArchiveVerifyProgress]:
    """Checks the archive and reports its faults."""
    if not 0 <= instance(data_percent, "data_percent", (int, float), "a number") <= 100:
        raise ValueError(f"data_percent is {data_percent}, but must be between 0 and 100")
    request = message(
        service.VerifyArchiveRequest,
        {"namespace": namespace, "thread": thread, "data_percent": data_percent, "deleted_keys": deleted_keys},
    )
    return ProgressReader("VerifyArchive", request, ArchiveVerifyProgress.from_proto)


def restore(namespace: str, thread: str | None, *, dry_run: bool) -> ProgressReader[RestoreProgress]:
    """Restores threads of the archive to this disk."""
    request = message(service.RestoreArchiveRequest, {"namespace": namespace, "thread": thread, "dry_run": dry_run})
    return ProgressReader("RestoreArchive", request, RestoreProgress.from_proto)


def collect(namespace: str, *, dry_run: bool, older_than: Duration | None) -> ProgressReader[GarbageProgress]:
    """Deletes unneeded objects from the bucket."""
    grace = None if older_than is None else span(older_than, "older_than")
    request = message(service.CollectGarbageRequest, {"namespace": namespace, "dry_run": dry_run, "grace": grace})
    return ProgressReader("CollectGarbage", request, GarbageProgress.from_proto)


def repair(namespace: str, thread: str, *, dry_run: bool) -> Operation[Repair]:
    """Writes a thread's HEAD again, from this disk."""
    request = message(service.RepairThreadRequest, {"namespace": namespace, "thread": thread, "dry_run": dry_run})
    return Repair.from_proto((yield Call("RepairThread", request, deadline_s=REPAIR_TIMEOUT_S)))
