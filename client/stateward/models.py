"""Versions, threads and their options: frozen dataclasses, each read from its message by `from_proto`.

Times are timezone-aware UTC, lengths of time timedelta, digests bytes, labels plain dicts (do not change them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from functools import cached_property
from typing import Any, TypedDict, TypeVar

from stateward import values
from stateward.attributes import Attribute
from stateward.durations import Duration
from stateward.fromproto import FromProto, read_fields
from stateward.options import ThreadOptions
from stateward.signals import Question
from stateward.v1 import state_pb2, thread_pb2, thread_service_pb2


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


def choice_number(kind: type[_Choice], choice: _Choice | str | int | None, name: str = "") -> int:
    """Returns the number of an enum's member, given as member, number or name in any case; None = 0, unspecified.

    Raises ValueError for anything else. The error has the `name` of the argument: by default, that of the enum.
    """
    if choice is None:
        return 0
    try:
        return kind[choice.upper()] if isinstance(choice, str) else kind(choice)
    except (KeyError, ValueError):
        said = f"{name or kind.__name__.lower()}: {choice!r:.100} is none of {', '.join(kind.__members__)}"
        raise ValueError(said) from None


@dataclass(frozen=True)
class Tree(FromProto):
    """Names the files of a directory, with everything below it."""

    digest: bytes
    """Two trees with the same digest are equal."""
    files: int
    """Number of files and symlinks."""
    size_bytes: int
    """Bytes of all files together."""

    def __repr__(self) -> str:
        return f"Tree({self.digest.hex()[:12]}…, {self.files:,} files, {self.size_bytes:,} bytes)"


@dataclass(frozen=True)
class WorkspaceUsage(FromProto):
    """What the files of a thread take in the daemon."""

    directories: int
    """Number of directories that the thread has, of all its trees. Equal ones count once, as chunks do."""
    chunks: int
    """Number of chunks of files."""
    size_bytes: int
    """Bytes of directories and chunks, uncompressed."""
    stored_bytes: int
    """Bytes that they take at rest."""
    packs: int
    """Number of files that hold most of them."""
    trees: int
    """Number of different trees that versions name."""
    tree_bytes: int
    """Bytes that whole copies of these trees would have."""


@dataclass(frozen=True)
class Checkpoint(FromProto):
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
    replayed: bool = field(default=False, metadata={"proto": None})
    """Only in the answer to a save: the daemon had answered this request before, and wrote nothing."""
    metadata_value: state_pb2.Value | None = field(default=None, repr=False, metadata={"proto": "metadata"})
    question: Question | None = None
    """What a waiting agent asks; None = nothing."""
    parent_checkpoint_id: str = ""
    """The `checkpoint_id` of the parent; "" = none, or a daemon that did not note it saved the version."""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    """Typed facts that were given with the save. `checkpoints.list(where=…)` selects by them."""
    acknowledged_signals: int = 0
    """How many signals the version acknowledged. `thread.signals.list(acknowledged_by=version)` gives them."""
    workspace: Tree | None = None
    """The files that were saved with the version; None = it names none."""
    workspace_dropped: bool = False
    """The version named files, and the daemon has dropped them: the trees of the thread took more than they may."""

    @cached_property
    def metadata(self) -> Any:
        """The opaque value that was given with the save, decoded; None = none."""
        return None if self.metadata_value is None else values.decode(self.metadata_value, "metadata")


@dataclass(frozen=True)
class CheckpointId:
    """Names a version by the id that its save gave it: `thread.hydrate(at=CheckpointId("searched"))`."""

    id: str
    any_branch: bool = False
    """Where the id is looked up: only in the branch of the handle, or, if it is not there, in all of them. Of several
    versions with the id on other branches, the newest is meant."""


At = int | str | Checkpoint | CheckpointId
"""A version: its number, the Checkpoint that a save or a list returned, the name of a tag, or a CheckpointId."""


@dataclass(frozen=True)
class Branch(FromProto):
    """A named head."""

    name: str
    version: int
    digest: bytes = field(metadata={"proto": "version_digest"})
    base_version: int
    """The version its first checkpoint was made from; 0 = the empty state."""
    newest_version: int = 0
    """The newest version ever saved to it, if its head was moved back; 0 = the head is the newest."""


@dataclass(frozen=True)
class MovedHead(FromProto):
    """The head of a branch after a move."""

    version: int
    digest: bytes = field(metadata={"proto": "version_digest"})
    """Digest of that version."""
    previous_version: int
    """The version that was the head before."""


@dataclass(frozen=True)
class Tag(FromProto):
    """A name for one version."""

    name: str
    version: int


@dataclass(frozen=True)
class EntryDigest(FromProto):
    """The digest of a journal entry. It covers all entries before it."""

    sequence: int
    version: int
    """The version that the entry made; 0 = none."""
    previous_digest: bytes
    """Digest of the entry before it; empty for the first one."""
    digest: bytes
    without_content: bool
    """True = its content was pruned, or is in the archive only, so that the digest could not be computed again."""


@dataclass(frozen=True)
class Proof:
    """That a thread continues a version: each entry behind it, up to the newest one, continues the one before it.

    Entries that were removed after a prune are missing: the next one then has a `previous_digest` of its own.
    """

    uid: str
    entries: tuple[EntryDigest, ...]


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
class Lease(FromProto):
    """The right to write a thread, at the time of the call."""

    holder: str = field(metadata={"proto": "holder.name"})
    """The name of its holder."""
    token: int
    """The fencing token. Tokens of a thread only grow, also across machines."""
    term: timedelta
    """How long the lease lives after the grant and after each renewal."""
    remaining: timedelta
    """How much of the term was left when the daemon answered."""
    grant_time: datetime
    """When the lease was granted, by the daemon's clock."""
    uid: str = field(default="", metadata={"proto": None})
    """The uid of the thread, from the call that took the lease; empty otherwise."""


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
    has_versions: bool | None
    """True = only threads that have a version. False = only threads without one, such as those used for records."""
    has_records: bool | None
    """True = only threads with records. False = only threads without records."""
    page_size: int
    """How many threads the daemon sends at a time; 0 = its default. The list is read to its end in any case."""


@dataclass(frozen=True)
class ThreadInfo:
    """A thread without its state. Version, status, step and metrics are those of the head of the branch `main`."""

    namespace: str
    name: str
    uid: str
    version: int
    digest: bytes = field(metadata={"proto": "version_digest"})
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
    effects: int = 0
    """How many effects are recorded."""
    records: int = 0
    """How many records it has."""
    record_bytes: int = 0
    """Bytes of their keys and values."""
    sequence_digest: bytes = field(default=b"", repr=False)
    """Digest of the journal's entry at `sequence`: with both, `delete(unchanged_since=…)` knows what was shown."""

    @property
    def labels(self) -> Mapping[str, str]:
        """The thread's labels."""
        return self.options.labels

    @property
    def unarchived_entries(self) -> int:
        """Number of journal entries that are still to be archived; 0 without an archive, and for an orphan."""
        return max(self.sequence - self.archived_sequence, 0) if self.access == Access.OWNED else 0

    @classmethod
    def from_proto(cls, message: thread_pb2.ThreadInfo | thread_service_pb2.GetThreadResponse) -> ThreadInfo:
        """Reads the message, or the answer that also has branches, tags and lease."""
        found = message.thread if isinstance(message, thread_service_pb2.GetThreadResponse) else message
        beside: dict[str, Any] = {"branches": (), "tags": (), "lease": None}
        if isinstance(message, thread_service_pb2.GetThreadResponse):
            beside["branches"] = tuple(map(Branch.from_proto, message.branches))
            beside["tags"] = tuple(map(Tag.from_proto, message.tags))
            beside["lease"] = Lease.from_proto(message.lease) if message.HasField("lease") else None
        return read_fields(cls, found, name=found.thread, options=ThreadOptions.from_proto(found), **beside)


@dataclass(frozen=True)
class UnreadableThread(FromProto):
    """A thread that a list cannot show, because its bytes are damaged or its key is missing."""

    uid: str
    """32 hex digits; empty = unknown."""
    name: str = field(metadata={"proto": "thread"})
    """Empty = the damage hides it."""
    message: str
    """Why it cannot be opened."""


@dataclass(frozen=True)
class HeldThread(FromProto):
    """What may be known of a held thread without its session key."""

    uid: str
    create_time: datetime | None
    update_time: datetime | None
    """When its journal last grew."""
    stored_bytes: int
    """Its size at rest."""


@dataclass(frozen=True)
class PruneResult:
    """The versions that a prune removed, or would remove."""

    pruned_versions: tuple[int, ...]
    retained_versions: int
    """How many versions are left."""
    plan: thread_service_pb2.PrunePlan | None = field(default=None, repr=False, compare=False)
    """Only of a dry run that found something: what `prune(plan=…)` sends, a message of `stateward.v1`. Its
    `moved_heads` are the branches whose heads would move, or that would be deleted (version 0)."""


@dataclass(frozen=True)
class DurableResult(FromProto):
    """The level that `archive.wait` found."""

    durability: Durability | int | None = field(metadata={"proto": "receipt.durability"})
    sequence: int = field(metadata={"proto": "newest_sequence"})
    archived_sequence: int = field(metadata={"proto": "receipt.archived_sequence"})
