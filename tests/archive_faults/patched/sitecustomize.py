"""Runs at the start of a daemon under test: makes it impatient, gives it a wall clock that jumps, small segments,
or the next format.

Only what the environment names is changed, and only clocks, times, sizes and numbers of formats are.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


def _be_impatient(deadline_s: float) -> None:
    """Requests are given up early, so that a bucket that is away for a second looks as if it were for long."""
    from stateward_sidecar import app
    from stateward_sidecar.archive import archive
    from stateward_sidecar.bucket.objectstore import ObjectStoreBucket
    from stateward_sidecar.bucket.retrying import Patience

    app.BUCKET_PATIENCE = Patience(deadline_s=deadline_s, pause_min_s=0.02, pause_max_s=0.1)
    archive.AWAY_S = deadline_s
    ObjectStoreBucket.__init__.__defaults__ = (deadline_s,)


def _jump(offset_file: Path) -> None:
    """The wall clock is off by what stands in a file, in seconds."""
    from stateward_sidecar.clock import Clock

    def now_us(self: Clock) -> int:
        return time.time_ns() // 1000 + int(float(offset_file.read_text()) * 1e6)

    Clock.now_us = now_us  # type: ignore[method-assign]


def _sleep(slept_file: Path) -> None:
    """The monotonic clock stood still for what stands in a file, in seconds: so long the machine was asleep."""
    from stateward_sidecar.clock import Clock

    def monotonic(self: Clock) -> float:
        return time.monotonic() - float(slept_file.read_text())

    Clock.monotonic = monotonic  # type: ignore[method-assign]


def _become_newer() -> None:
    """Every HEAD that it writes has the next format. Modules that import the number from there come later."""
    from stateward_sidecar.archive.objects import heads

    heads.FORMAT += 1


def _forget_blobs(kept_s: float) -> None:
    """Blobs that nothing names are collected soon, and each sweep looks for them."""
    from stateward_sidecar.store.blobs import blobsweep
    from stateward_sidecar.store.clean import objectsweep

    for module in (blobsweep, objectsweep):
        module.KEPT_S, module.INTERVAL_S = kept_s, 0


def _shrink_segments(segment_bytes: int, kept_bytes: int) -> None:
    """Logs have segments from a few kilobytes on. Modules read these sizes where they stand."""
    from stateward_sidecar.codec import state

    state.SEGMENT_BYTES, state.KEPT_BYTES = segment_bytes, kept_bytes
    state.TAIL_BYTES = segment_bytes + kept_bytes


if given := os.environ.get("ARCHIVE_FAULTS_PATIENCE_S"):
    _be_impatient(float(given))
if given := os.environ.get("ARCHIVE_FAULTS_CLOCK"):
    _jump(Path(given))
if given := os.environ.get("ARCHIVE_FAULTS_SLEPT"):
    _sleep(Path(given))
if os.environ.get("ARCHIVE_FAULTS_NEXT_FORMAT"):
    _become_newer()
if given := os.environ.get("ARCHIVE_FAULTS_BLOBS_KEPT_S"):
    _forget_blobs(float(given))
if given := os.environ.get("ARCHIVE_FAULTS_SEGMENTS"):
    _shrink_segments(*map(int, given.split(",")))
