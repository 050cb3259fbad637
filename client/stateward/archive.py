"""What `client.archive` returns: where the archive is, what it contains, and the progress of long commands on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from stateward.admin import ArchiveStats, DeletedKey, Finding
from stateward.fromproto import FromProto
from stateward.models import ThreadInfo


@dataclass(frozen=True)
class ArchiveStatus(FromProto):
    """Where the archive is, and how far it is behind this disk."""

    url: str
    archive_id: str
    """Identity of the archive; empty = not known yet."""
    owner_id: str
    """The --owner-id of this sidecar."""
    stats: ArchiveStats
    interval: timedelta
    """How often the daemon archives what is committed."""
    lease: timedelta
    """How long a thread must be unchanged before another sidecar may take it."""


@dataclass(frozen=True)
class ArchivedThread(FromProto):
    """One thread in the archive."""

    thread: ThreadInfo | None
    """The thread as its owner archived it last; None = unreadable, see `problem`."""
    detached: bool
    """True if its owner gave the thread up."""
    object_bytes: int
    """Size of HEAD, and of the objects that HEAD itself names."""
    archive_time: datetime | None
    """When the thread was archived last, by its owner's clock; None = unknown."""
    problem: str
    """Why the thread cannot be read; empty = it can."""


@dataclass(frozen=True)
class ArchiveVerifyProgress(FromProto):
    """Progress of a verification of the archive, with the newest finding."""

    threads: int = field(metadata={"proto": "progress.threads"})
    objects: int = field(metadata={"proto": "progress.items"})
    read_bytes: int = field(metadata={"proto": "progress.bytes"})
    finding: Finding | None
    deleted_key: DeletedKey | None = None
    """Only with `deleted_keys`."""


@dataclass(frozen=True)
class RestoreProgress(FromProto):
    """Progress of a restore: how many threads were looked at, and how much was written to this disk."""

    total_threads: int = field(metadata={"proto": "progress.total_threads"})
    threads: int = field(metadata={"proto": "progress.threads"})
    entries: int
    read_bytes: int = field(metadata={"proto": "progress.bytes"})
    thread: str
    """The thread that was looked at last."""
    problem: str
    """Why that thread was not restored; empty = it was restored, or was on this disk already."""


@dataclass(frozen=True)
class GarbageProgress(FromProto):
    """Progress of a garbage collection, with the object that it removed (or would remove) last."""

    threads: int = field(metadata={"proto": "progress.threads"})
    objects: int = field(metadata={"proto": "progress.items"})
    removed: int
    removed_bytes: int
    key: str
    """Name of the object in the bucket; empty = this item tells progress only."""
    failed: int
    """Threads so far whose garbage was not removed."""
    problem: str
    """Why the garbage of a thread was not removed, and where the thread lies in the bucket; empty = no such thread."""


@dataclass(frozen=True)
class Repair(FromProto):
    """A repaired thread, and sentences that say what was found and done."""

    thread: ThreadInfo
    findings: tuple[str, ...]
