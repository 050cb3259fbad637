"""Facts about the daemon and about the data that it stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any

from stateward.fromproto import FromProto, read_fields, read_reason
from stateward.models import Durability


@dataclass(frozen=True)
class LimitUse(FromProto):
    """A limit that the daemon's operator has set, and how much of it is used."""

    limit: str
    """Which limit, such as "streams" of a client or "bytes" of a namespace."""
    subject: str
    """The principal or the namespace."""
    maximum: int
    used: int


@dataclass(frozen=True)
class ServerInfo(FromProto):
    """Version, features and limits of the daemon."""

    version: str
    format: int
    features: frozenset[str]
    max_state_bytes: int
    max_message_bytes: int
    request_id_window_entries: int
    request_id_window: timedelta
    default_durability: Durability | int | None
    key_id: str
    warnings: tuple[str, ...]
    start_time: datetime
    not_ready: tuple[str, ...]
    """Why the daemon is not ready, a line for each cause; empty = it is ready."""
    wire: str
    """How the client reaches the daemon: "grpc" or "frames"."""
    limits: tuple[LimitUse, ...]
    """The limits of this client, and of its namespace; empty = there are none."""
    principal: str
    """Who this client is to the daemon; empty = it may do everything, or the daemon is older."""
    reads_part: bool
    """Whether lists and counts of the client's namespace leave out threads that it may not read, if there are any."""


@dataclass(frozen=True)
class ArchiveStats(FromProto):
    """How far the archive is behind this disk, and its requests and bytes since the daemon's start."""

    dirty_threads: int
    """Threads with entries that are not archived."""
    lag_entries: int
    lag_bytes: int
    lag: timedelta | None
    """How long ago the oldest of them was committed; None = everything is archived."""
    away: bool
    """True if the bucket does not answer now."""
    error: str
    """The bucket's newest error; empty = none."""
    heads: int
    objects: int
    head_bytes: int
    object_bytes: int
    entry_bytes: int
    requests: int
    owned_threads: int
    orphans: int
    rolled_back: int
    """Threads whose HEAD in the bucket is older than the entries that were archived."""


@dataclass(frozen=True)
class Stats(FromProto):
    """Counts since the daemon's start, and sizes now."""

    threads: int
    saves: int
    entries: int
    commits: int
    entry_bytes: int
    snapshot_bytes: int
    snapshots: int
    used_bytes: int
    file_bytes: int
    map_bytes: int
    queued_writes: int
    cache_bytes: int
    cache_limit_bytes: int
    watches: int
    background_failures: int
    blob_bytes: int
    draining: bool
    """True if the daemon accepts no new work, until the drain is undone."""
    archive: ArchiveStats | None
    """None = there is no archive."""
    limits: tuple[LimitUse, ...]
    """The limits of namespaces of which most is used, fullest first; empty = there are none."""
    limit_refusals: Mapping[str, int]
    """Calls that a limit has refused since the start, by limit."""


class Verdict(IntEnum):
    """How something that was examined is."""

    OK = 1
    WARNING = 2
    """It works, but somebody should look at it."""
    FAILED = 3
    """It does not work, or puts data at risk."""
    SKIPPED = 4
    """It could not be examined."""


@dataclass(frozen=True)
class Diagnosis(FromProto):
    """One thing that the daemon examined, with advice."""

    check: str
    """What was examined: "disk", "key", "bucket" and so on."""
    verdict: Verdict | int | None
    summary: str
    advice: str
    """What to do about it; empty = nothing."""
    facts: Mapping[str, str]
    """Figures by name, with the unit at the end of the name."""


@dataclass(frozen=True)
class Diagnoses(FromProto):
    """What the daemon found, and its wall clock when it answered."""

    diagnoses: tuple[Diagnosis, ...]
    time: datetime


@dataclass(frozen=True)
class Finding(FromProto):
    """Damage in the store. `version` and `sequence` 0 = none."""

    reason: str
    """The ErrorReason without its prefix: "CORRUPT" or "KEY_UNAVAILABLE"; of the archive also "ARCHIVE_UNAVAILABLE"."""
    namespace: str
    thread: str
    uid: str
    version: int
    sequence: int
    message: str

    @classmethod
    def from_proto(cls, message: Any) -> Finding:
        """Reads the message."""
        return read_fields(cls, message, reason=read_reason(message.reason))


@dataclass(frozen=True)
class DeletedKey(FromProto):
    """A thread that was deleted, and what is left of its data key."""

    uid: str
    namespace: str
    """Empty = not known."""
    thread: str
    """Empty = not known."""
    delete_time: datetime | None
    exists: bool
    """True if a wrapped copy of the key was found."""
    may_have_versions: bool
    """True if the bucket keeps old versions of objects, and the deleted key may be among them."""


@dataclass(frozen=True)
class Compaction(FromProto):
    """What a compaction did."""

    before_bytes: int
    """Of the data file."""
    after_bytes: int
    pause: timedelta
    """How long writes waited."""
    old_file_removed: bool
    """Whether the old file was overwritten and removed. False if another program still has it open."""


@dataclass(frozen=True)
class Rekeyed(FromProto):
    """A thread under another data key."""

    old_uid: str
    """32 hex digits."""
    uid: str
    entries: int
    """Entries of the journal that were sealed anew."""


@dataclass(frozen=True)
class VerifyProgress(FromProto):
    """Progress of a verification, with the newest finding."""

    records: int = field(metadata={"proto": "progress.items"})
    threads: int = field(metadata={"proto": "progress.threads"})
    finding: Finding | None
    deleted_key: DeletedKey | None = None
    """Only with `deleted_keys`."""


@dataclass(frozen=True)
class DrainResult(FromProto):
    """Result of a drain."""

    detached_threads: int
    """Threads that this call released."""
    dirty_threads: int
    """Threads with data that only this machine has; without an archive, all threads. 0 = the machine may be removed."""
    ready: bool
    """False = the daemon accepts no new work."""
