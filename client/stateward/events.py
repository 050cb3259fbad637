"""The items of streams: versions of a history, and events of a watch."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Self

from stateward.changes import Change, changes_from_proto
from stateward.effects import RecordedEffect
from stateward.fromproto import FromProto, read_fields
from stateward.models import Checkpoint, Tag
from stateward.options import ThreadOptions
from stateward.signals import Signal
from stateward.state import State
from stateward.v1 import effect_pb2, record_pb2, thread_service_pb2
from stateward.v1.checkpoint_pb2 import StatusTold
from stateward.v1.lease_pb2 import Lease
from stateward.v1.thread_service_pb2 import HeadsMoved


class _Step(NamedTuple):
    checkpoint: Checkpoint
    state: State | None
    changes: list[Change]


class HistoryEntry(_Step):
    """One version of a history: `checkpoint, state, changes = entry`.

    Only the first entry has a `state`; None there means that the state is too large, so hydrate it. `changes` are the
    edits against the parent; the first entry of a history that is read oldest first has none.

    If versions are pruned while the history is read, a later entry may begin anew: it has a state and no changes.
    """

    begins: bool = False
    """True for the first entry, and for an entry that does not continue the one before it."""

    effects: tuple[RecordedEffect, ...] | None = ()
    """The effects of the version, if they were asked for; None = they are too large, so list them."""


@dataclass(frozen=True)
class Pruned(FromProto):
    """Versions were removed."""

    versions: tuple[int, ...] = field(metadata={"proto": "spans"})

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        """Reads the message. It has spans of versions."""
        return cls(tuple(version for span in message.spans for version in range(span.first, span.last + 1)))


_DETAILS: dict[str, type[FromProto]] = {
    "checkpoint": Checkpoint,
    "tag_set": Tag,
    "tag_deleted": Tag,
    "options_changed": ThreadOptions,
    "pruned": Pruned,
    "signal": Signal,
}


@dataclass(frozen=True)
class Event:
    """One entry of a thread's journal.

    `kind` is "checkpoint", "tag_set", "tag_deleted", "options_changed", "pruned", "deleted", "signal", "effect",
    "lease", "heads_moved", "effects_deleted" or "records_changed"; "" = a kind that is newer than this client. `what`
    holds the details of that kind.
    """

    kind: str
    cursor: str
    thread: str
    uid: str
    sequence: int
    time: datetime
    what: (
        Checkpoint | Tag | ThreadOptions | Pruned | Signal | effect_pb2.RecordedEffect | Lease | HeadsMoved
        | effect_pb2.EffectsDeleted | record_pb2.RecordsChange | str | None
    )  # fmt: skip
    """For "deleted" this is the cause: "request", "ttl", or "local" if only the copy on this daemon's disk was deleted.
    An effect has no value, and a lease without a holder was given back; both are messages of `stateward.v1`, and so are
    moved heads, deleted effects and changed records."""
    told: StatusTold | None = None
    """The status of the newest version that was told with an effect, if it changed: as a LangGraph agent does when it
    asks or fails. `stateward.v1.StatusTold`."""
    changes: list[Change] | None = None
    """What a checkpoint changed, if `include_diff` asked for it and the version is not pruned."""

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The version that was saved; None for other kinds."""
        return self.what if isinstance(self.what, Checkpoint) else None

    @classmethod
    def from_proto(cls, message: thread_service_pb2.JournalEvent) -> Event:
        """Reads the message."""
        kind = message.WhichOneof("what") or ""
        what: Any = getattr(message, kind) if kind else None
        if kind == "deleted":
            what = what.cause
        elif kind in _DETAILS:
            what = _DETAILS[kind].from_proto(what)
        changes = changes_from_proto(message.diff) if message.HasField("diff") else None
        told = message.status_told if message.HasField("status_told") else None
        return read_fields(cls, message, kind=kind, what=what, told=told, changes=changes)
