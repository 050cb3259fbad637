"""What a save sends, and the gate that keeps a state still meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from stateward.blobs import StateBlobs, make_blob
from stateward.v1 import diff_pb2, state_pb2


class Rebased(Protocol):
    """A log that goes on from what was saved of it."""

    _stored: list[state_pb2.Value]

    @property
    def name(self) -> str: ...
    @property
    def _replaces(self) -> bool: ...
    def _collect_whole(self, collected: CollectedLog) -> state_pb2.Log: ...
    def _rebase(self, collected: CollectedLog) -> None: ...


@dataclass
class Collected:
    """What changed in a state, and what its `rebase` needs when that was saved."""

    diff: diff_pb2.Diff
    slots: dict[str, state_pb2.Value] = field(default_factory=dict)
    """New encodings of slots."""
    watched_slots: dict[str, Any] = field(default_factory=dict)
    """The objects that were looked at."""
    deleted_slots: set[str] = field(default_factory=set)
    logs: dict[str, CollectedLog] = field(default_factory=dict)
    blob_threshold: int = 0
    """Values with more bytes become blobs; 0 = none."""
    blobs: dict[bytes, bytes] = field(default_factory=dict)
    """Bytes of values that became blobs, by SHA-256. To be written before the save."""

    def take(self, encoded: state_pb2.Value) -> state_pb2.Value:
        """The value that is sent in place of one that may be large."""
        made = make_blob(encoded, self.blob_threshold)
        if made is None:
            return encoded
        self.blobs[made.blob.sha256] = encoded.data
        return made


@dataclass
class CollectedLog:
    """What changed in one log."""

    log: Rebased
    watched: list[int]
    """Indexes of the stored entries that were looked at."""
    replaced: dict[int, state_pb2.Value]
    """New encodings of those that differ, by index."""
    added: list[state_pb2.Value]


class Gate:
    """What the parts of a state share. Closed while a save is under way, which another task could otherwise pull the
    ground from under."""

    closed = False
    blobs: StateBlobs | None = None
    """How the blobs of the state's thread are read; None = the state has no thread yet."""

    def require_open(self) -> None:
        """RuntimeError while a save is under way."""
        if self.closed:
            raise RuntimeError(
                "this state is being saved: until that is done it can only be read, appended to, and given new slots"
            )
