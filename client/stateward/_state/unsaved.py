"""The changes of a state that a save sends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stateward._state.log import UnsavedLog
from stateward.blobs import make_blob
from stateward.v1 import diff_pb2, state_pb2


@dataclass
class Unsaved:
    """What changed in a state since its version, and what `State._rebase` needs once the changes are saved."""

    diff: diff_pb2.Diff
    slots: dict[str, state_pb2.Value] = field(default_factory=dict)
    """The new encodings of changed slots."""
    watched_slots: dict[str, Any] = field(default_factory=dict)
    """The objects that were encoded to look for changes."""
    deleted_slots: set[str] = field(default_factory=set)
    logs: dict[str, UnsavedLog] = field(default_factory=dict)
    blob_threshold: int = 0
    """Values with more bytes become blobs; 0 = none."""
    blobs: dict[bytes, bytes] = field(default_factory=dict)
    """The bytes of values that became blobs, by SHA-256. They are written before the save."""

    def take(self, encoded: state_pb2.Value) -> state_pb2.Value:
        """Returns the value to send: `encoded`, or the blob that it becomes."""
        made = make_blob(encoded, self.blob_threshold)
        if made is None:
            return encoded
        self.blobs[made.blob.sha256] = encoded.data
        return made
