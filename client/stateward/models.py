"""Versions, threads and their options: frozen dataclasses, each read from its message by `from_proto`.

Times are timezone-aware UTC, lengths of time timedelta, digests bytes, labels plain dicts (do not change them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from functools import cached_property
from typing import Any, Self, TypedDict, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from stateward import values
from stateward.durations import Duration
from stateward.options import ThreadOptions
from stateward.signals import Question
from stateward.v1 import checkpoint_pb2, lease_pb2, state_pb2, thread_pb2, thread_service_pb2


class Status(IntEnum):
    """The state of the agent's work."""

    RUNNING = 1
    WAITING = 2
    PAUSED = 3
    COMPLETED = 4
    FAILED = 5
    CANCELLED = 6


class Durability(IntEnum):
    """What a write survives: COMMITTED a crash of process or machine, ARCHIVED also the loss of the machine."""

    COMMITTED = 1
    ARCHIVED = 2


class Access(IntEnum):
    """How this sidecar may use a thread of the archive."""

    OWNED = 1
    """This sidecar owns the thread and writes it."""
    REMOTE = 2
    """Another sidecar wrote the thread last, or this one gave it up. The first write here attaches the thread."""
    ORPHAN = 3
    """Entries that were committed here after another sidecar had taken the thread. They can be read and forked."""


_Choice = TypeVar("_Choice", Status, Durability, Access)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
T = TypeVar("T")


def choice_number(kind: type[_Choice], choice: _Choice | str | int | None) -> int:
    """Returns the number of an enum's member, given as member, number or name in any case; None = 0, unspecified."""
    if choice is None:
        return 0
    if isinstance(choice, str):
        try:
            return kind[choice.upper()]
        except KeyError:
            raise ValueError(f"{choice!r} is none of {', '.join(kind.__members__)}") from None
    return kind(choice)


def status_numbers(statuses: Iterable[Status | str | int]) -> list[int]:
    """Returns the numbers of a list of statuses."""
    return [choice_number(Status, status) for status in statuses]


def read_member(kind: type[_Choice], number: int) -> _Choice | int | None:
    """Returns the member; None if unspecified, and the number itself if this client does not know it."""
    try:
        return kind(number) if number else None
    except ValueError:
        return number


def read_time(stamp: Timestamp) -> datetime:
    """Returns a time in UTC. It saves five Python calls of `ToDatetime`, on the path of every save."""
    return _EPOCH + timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)


def read_map(field: Mapping[str, T]) -> dict[str, T]:
    """Returns a map field as a dict. Most are empty, and copying one takes four Python calls."""
    return dict(field) if field else {}


class FromProto:
    """A dataclass whose fields have the names of a message's fields."""

    @classmethod
    def from_proto(cls, message: Message) -> Self:
        """From its message."""
        return read_fields(cls, message)


def read_fields(kind: Callable[..., T], message: Message, **read: Any) -> T:
    """Makes a dataclass from the fields of the same names in a message. `read` are those that are read otherwise."""
    names = kind.__dataclass_fields__.keys() - read.keys()  # type: ignore[attr-defined]
    return kind(**{name: getattr(message, name) for name in names}, **read)


def read_optional(message: Message, name: str, read: Callable[[Any], T]) -> T | None:
    """A field of a message; None if it is not set."""
    return read(getattr(message, name)) if message.HasField(name) else None


@dataclass(frozen=True)
class Checkpoint:
    """One version of a thread, without its state."""

    namespace: str
    thread: str
    uid: str
    version: int
    parent_version: int
    branch: str
    checkpoint_id: str
    digest: bytes
    status: Status | int | None
    status_detail: str
    step: int | None
    schema_version: int
    labels: Mapping[str, str]
    metrics: Mapping[str, float]
    create_time: datetime
    edit_bytes: int
    """Size of the edits that made the version, uncompressed."""
    stored_bytes: int
    """Size at rest, compressed and sealed, without snapshots."""
    sequence: int
    durability: Durability | int | None
    wait_id: str
    replayed: bool = False
    """Only in the answer to a save: the daemon had answered this request before, and wrote nothing."""
    metadata_value: state_pb2.Value | None = field(default=None, repr=False)
    question: Question | None = None
    """What a waiting agent asks; None = nothing."""

    @cached_property
    def metadata(self) -> Any:
        """The opaque value that was given with the save, decoded; None = none."""
        return None if self.metadata_value is None else values.decode(self.metadata_value, "metadata")

    @classmethod
    def from_proto(cls, message: checkpoint_pb2.Checkpoint, *, replayed: bool = False) -> Checkpoint:
        """Reads the message; `replayed` is taken from the answer to a save."""
        return cls(
            namespace=message.namespace,
            thread=message.thread,
            uid=message.uid,
            version=message.version,
            parent_version=message.parent_version,
            branch=message.branch,
            checkpoint_id=message.checkpoint_id,
            digest=message.digest,
            status=read_member(Status, message.status),
            status_detail=message.status_detail,
            step=message.step if message.HasField("step") else None,
            schema_version=message.schema_version,
            labels=read_map(message.labels),
            metrics=read_map(message.metrics),
            create_time=read_time(message.create_time),
            edit_bytes=message.edit_bytes,
            stored_bytes=message.stored_bytes,
            sequence=message.sequence,
            durability=read_member(Durability, message.durability),
            wait_id=message.wait_id,
            replayed=replayed,
            metadata_value=message.metadata if message.HasField("metadata") else None,
            question=Question.from_proto(message.question) if message.HasField("question") else None,
        )


@dataclass(frozen=True)
class Branch(FromProto):
    """A named head."""

    name: str
    version: int
    digest: bytes
    base_version: int
    """The version its first checkpoint was made from; 0 = the empty state."""


@dataclass(frozen=True)
class Tag(FromProto):
    """A name for one version."""

    name: str
    version: int


@dataclass(frozen=True)
class ForkSource(FromProto):
    """The version that a fork was made from."""

    thread: str
    uid: str
    version: int


@dataclass(frozen=True)
class Orphan(FromProto):
    """The thread that an orphan comes from."""

    thread: str
    """The thread that another sidecar took."""
    common_sequence: int
    """The newest sequence of the journal that both histories share."""
    epoch: int
    """The owner epoch in which the orphan's own entries were written."""


@dataclass(frozen=True)
class Lease:
    """The right to write a thread, at the time of the call."""

    holder: str
    """The name of its holder."""
    token: int
    """The fencing token. Tokens of a thread only grow, also across machines."""
    term: timedelta
    """How long the lease lives after the grant and after each renewal."""
    remaining: timedelta
    """How much of the term is left."""
    grant_time: datetime
    """When the lease was granted, by the daemon's clock."""

    @classmethod
    def from_proto(cls, message: lease_pb2.Lease) -> Lease:
        """Reads the message; `remaining` is as it was when the daemon sent the message."""
        term, remaining = message.term.ToTimedelta(), message.remaining.ToTimedelta()
        return cls(message.holder.name, message.token, term, remaining, read_time(message.grant_time))


class ThreadFilters(TypedDict, total=False):
    """Which threads are listed. Every option has a default."""

    statuses: Iterable[Status | str | int]
    """Only threads that have one of these statuses; empty = any status."""
    status: Status | str | int | None
    """Only threads that have this status. Short for `statuses` with one element."""
    step: int | None
    """Only threads at this step. Short for equal `min_step` and `max_step`."""
    updated_within: Duration | None
    """Only threads that changed at most this long ago. Short for `updated_after`."""
    labels: Mapping[str, str] | None
    """Only threads that have all of these labels."""
    name_prefix: str
    """Only threads whose name begins with this text."""
    updated_after: datetime | None
    """Only threads that changed at or after this time."""
    updated_before: datetime | None
    """Only threads that changed before this time."""
    min_step: int | None
    """Only threads at this step or a later one."""
    max_step: int | None
    """Only threads at this step or an earlier one."""
    page_size: int
    """How many threads the daemon sends at a time; 0 = its default. The list is read to its end in any case."""


@dataclass(frozen=True)
class ThreadInfo:
    """A thread without its state. Version, status, step and metrics are those of the head of the branch `main`."""

    namespace: str
    name: str
    uid: str
    version: int
    digest: bytes
    status: Status | int | None
    status_detail: str
    step: int | None
    metrics: Mapping[str, float]
    options: ThreadOptions
    create_time: datetime
    update_time: datetime
    expire_time: datetime | None
    forked_from: ForkSource | None
    sequence: int
    archived_sequence: int
    last_version: int
    retained_versions: int
    branches: tuple[Branch, ...]
    """Only `info` fills it."""
    tags: tuple[Tag, ...]
    """Only `info` fills it."""
    stored_bytes: int
    wait_id: str
    access: Access | int | None
    """None = there is no archive, or the thread was never claimed in it."""
    owner_id: str
    """The --owner-id of the sidecar that wrote the thread last; empty = none did, or there is no archive."""
    owner_epoch: int
    orphan: Orphan | None
    """None = the thread is no orphan."""
    question: Question | None = None
    """What the waiting head asks; None = nothing."""
    lease: Lease | None = None
    """Who has the right to write the thread; None = nobody."""
    pending_signals: int = 0
    """How many signals wait for the agent."""

    @property
    def labels(self) -> Mapping[str, str]:
        """The thread's labels."""
        return self.options.labels

    @property
    def unarchived_entries(self) -> int:
        """Number of journal entries that are still to be archived; 0 without an archive, and for an orphan."""
        return max(self.sequence - self.archived_sequence, 0) if self.access == Access.OWNED else 0

    @classmethod
    def from_proto(cls, message: thread_pb2.Thread) -> ThreadInfo:
        """From its message."""
        return read_fields(
            cls,
            message,
            name=message.thread,
            status=read_member(Status, message.status),
            step=message.step if message.HasField("step") else None,
            metrics=read_map(message.metrics),
            options=ThreadOptions.from_proto(message),
            create_time=read_time(message.create_time),
            update_time=read_time(message.update_time),
            expire_time=read_optional(message, "expire_time", read_time),
            forked_from=read_optional(message, "forked_from", ForkSource.from_proto),
            branches=tuple(map(Branch.from_proto, message.branches)),
            tags=tuple(map(Tag.from_proto, message.tags)),
            access=read_member(Access, message.access),
            orphan=read_optional(message, "orphan", Orphan.from_proto),
            question=read_optional(message, "question", Question.from_proto),
            lease=read_optional(message, "lease", Lease.from_proto),
        )


@dataclass(frozen=True)
class PruneResult:
    """The versions that a prune removed, or would remove."""

    pruned_versions: tuple[int, ...]
    retained_versions: int
    """How many versions are left."""


@dataclass(frozen=True)
class DurableResult:
    """The level that `wait_durable` or `wait_archived` reached."""

    durability: Durability | int | None
    sequence: int
    archived_sequence: int

    @classmethod
    def from_proto(cls, message: thread_service_pb2.WaitDurableResponse) -> DurableResult:
        """Reads the answer."""
        return cls(read_member(Durability, message.durability), message.sequence, message.archived_sequence)
