"""Logs with small segments, so that a test needs no megabytes."""

from __future__ import annotations

import pytest

from stateward_sidecar.codec import state
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.versions import snapshots

# The environment of a daemon with segments of 4 KiB (tests/archive_faults/patched).
SMALL = {"ARCHIVE_FAULTS_SEGMENTS": "4096,1024"}


def shrink_segments(patch: pytest.MonkeyPatch, segment_bytes: int = 4096, kept_bytes: int = 1024) -> None:
    """Makes segments of this size, of all but so many of the newest bytes of a log."""
    patch.setattr(state, "SEGMENT_BYTES", segment_bytes)
    patch.setattr(state, "KEPT_BYTES", kept_bytes)
    patch.setattr(state, "TAIL_BYTES", segment_bytes + kept_bytes)
    patch.setattr(snapshots, "WEIGHT_SEALED_BYTES", 4 * segment_bytes)


def files(store: Store) -> list[str]:
    """The names of all files of blobs and segments."""
    found = store.context.blob_files.directory.glob("*/*")
    return sorted(f"{path.parent.name}/{path.name}" for path in found)
