"""What `client.archive` tells: where the archive is, what is in it, and how far long work on it has come."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from stateward.admin import ArchiveStats, Finding
from stateward.models import ThreadInfo, read_time
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
        return cls(
            url=message.url,
            archive_id=message.archive_id,
            owner_id=message.owner_id,
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
        return cls(
            thread=ThreadInfo.from_proto(message.thread) if message.HasField("thread") else None,
            detached=message.detached,
            object_bytes=message.object_bytes,
            archive_time=read_time(message.archive_time) if message.HasField("archive_time") else None,
            problem=message.problem,
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
        finding = Finding.from_proto(message.finding) if message.HasField("finding") else None
        return cls(message.threads, message.objects, message.bytes, finding, message.done)


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
        return cls(
            total_threads=message.total_threads,
            threads=message.threads,
            entries=message.entries,
            read_bytes=message.bytes,
            thread=message.thread,
            problem=message.problem,
            done=message.done,
        )


@dataclass(frozen=True)
class GarbageProgress:
    """How far a collection of garbage is, and which object it removed (or would remove) just now."""

    threads: int
    objects: int
    removed: int
    removed_bytes: int
    key: str
    """Name of the object in the bucket; empty = only progress."""
    done: bool

    @classmethod
    def from_proto(cls, message: archive_service_pb2.CollectGarbageResponse) -> GarbageProgress:
        """From its message."""
        return cls(**{name: getattr(message, name) for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Repair:
    """A thread that was repaired, and what was found and done about it, for a person."""

    thread: ThreadInfo
    findings: tuple[str, ...]

    @classmethod
    def from_proto(cls, message: archive_service_pb2.RepairThreadResponse) -> Repair:
        """From its message."""
        return cls(ThreadInfo.from_proto(message.thread), tuple(message.findings))
