"""Logs with small segments, so that a test needs no megabytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.daemon.process import started_with
from tests.daemon.store import opened

from stateward.testing import Daemon
from stateward_sidecar.codec import state
from stateward_sidecar.storage import layout
from stateward_sidecar.store.blobs.blobrows import list_blobs
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread.thread import rows
from stateward_sidecar.store.versions import snapshots

SEGMENTS = "ARCHIVE_FAULTS_SEGMENTS"
# The environment of a daemon with segments of 4 KiB (tests/archive_faults/patched).
SMALL = {SEGMENTS: "4096,1024"}


class SmallDaemon(Daemon):
    """A daemon whose logs have segments of 4 KiB, at each start."""

    def start(self) -> None:
        """As of the class."""
        with started_with(SMALL):
            super().start()


def count_segments(data_dir: Path, key: bytes) -> int:
    """How many segments the threads of a daemon that does not run have."""
    with opened(data_dir, key=key) as store, store.context.engine.read() as txn:
        numbers = [layout.marked_thread(row) for row, _ in rows(txn, b"Q")]
        threads = [thread for number in numbers if (thread := store.threads.by_number(txn, number)) is not None]
        return sum(row.record.is_segment for thread in threads for row in list_blobs(txn, thread.identity))


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
