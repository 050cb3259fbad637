"""What `client.archive` tells: where the archive is, what is in it, and how far long work on it has come."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from stateward.admin import ArchiveStats, Finding
from stateward.models import FromProto, ThreadInfo, read_fields, read_optional, read_time
from stateward.v1 import archive_service_pb2


@dataclass(frozen=True)
class ArchiveStatus:
    """Where the archive is, and how it does."""

    url: str
    archive_id: str
    """Its identity; empty = not known yet."""
    owner_id: str
    """The --owner-id of this sidecar."""
    stats: ArchiveStats
    interval: timedelta
    """How often what is committed is archived."""
    lease: timedelta
    """For how long a thread must not change before another sidecar may take it."""

    @classmethod
    def from_proto(cls, message: archive_service_pb2.GetArchiveResponse) -> ArchiveStatus:
        """From the answer that has it."""
        return read_fields(
            cls,
            message,
            stats=ArchiveStats.from_proto(message.stats),
            interval=message.interval.ToTimedelta(),
            lease=message.lease.ToTimedelta(),
        )


@dataclass(frozen=True)
class ArchivedThread:
    """One thread in the archive."""

    thread: ThreadInfo | None
    """As its owner archived it last; None = `problem` says why."""
    detached: bool
    """True where its owner gave it up."""
    object_bytes: int
    """Bytes of its objects."""
    archive_time: datetime | None
    """When it was archived last, by its owner's clock; None = not known."""
    problem: str
    """What hinders reading it; empty = nothing."""

    @classmethod
    def from_proto(cls, message: archive_service_pb2.ListArchiveResponse) -> ArchivedThread:
        """From its message."""
        return read_fields(
            cls,
            message,
            thread=read_optional(message, "thread", ThreadInfo.from_proto),
            archive_time=read_optional(message, "archive_time", read_time),
        )


@dataclass(frozen=True)
class ArchiveVerifyProgress:
    """How far a verification of the archive is, and what it just found."""

    threads: int
    objects: int
    read_bytes: int
    finding: Finding | None
    done: bool

    @classmethod
    def from_proto(cls, message: archive_service_pb2.VerifyArchiveResponse) -> ArchiveVerifyProgress:
        """From its message."""
        finding = read_optional(message, "finding", Finding.from_proto)
        return read_fields(cls, message, read_bytes=message.bytes, finding=finding)


@dataclass(frozen=True)
class RestoreProgress:
    """How far a restore is: threads looked at of those there are, and what was put on this disk."""

    total_threads: int
    threads: int
    entries: int
    read_bytes: int
    thread: str
    """The thread that was looked at last."""
    problem: str
    """Why that one was not restored; empty = it was, or was here before."""
    done: bool

    @classmethod
    def from_proto(cls, message: archive_service_pb2.RestoreArchiveResponse) -> RestoreProgress:
        """From its message."""
        return read_fields(cls, message, read_bytes=message.bytes)


@dataclass(frozen=True)
class GarbageProgress(FromProto):
    """How far a collection of garbage is, and which object it removed (or would remove) just now."""

    threads: int
    objects: int
    removed: int
    removed_bytes: int
    key: str
    """Name of the object in the bucket; empty = only progress."""
    done: bool


@dataclass(frozen=True)
class Repair:
    """A thread that was repaired, and what was found and done about it, for a person."""

    thread: ThreadInfo
    findings: tuple[str, ...]

    @classmethod
    def from_proto(cls, message: archive_service_pb2.RepairThreadResponse) -> Repair:
        """From its message."""
        return cls(ThreadInfo.from_proto(message.thread), tuple(message.findings))
