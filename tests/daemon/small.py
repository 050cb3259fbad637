"""Limits so small that a dozen saves make packs, snapshots, indexes and garbage."""

from __future__ import annotations

from typing import Any

from tests.daemon.unthreaded import Inline, NoLoop

from stateward_sidecar.archive.objects import holds, image
from stateward_sidecar.archive.requests import metered, places
from stateward_sidecar.archive.ship import blobs as archiveblobs
from stateward_sidecar.archive.ship import compact, schedule, ship
from stateward_sidecar.codec import state
from stateward_sidecar.service.admission import streams
from stateward_sidecar.service.api import blobs as blobservice
from stateward_sidecar.service.calls import ownership
from stateward_sidecar.store.blobs import blobs, blobsweep
from stateward_sidecar.store.check import verify
from stateward_sidecar.store.clean import clear, recordcleaning
from stateward_sidecar.store.copies import exporting
from stateward_sidecar.store.items import recordlist, recordputs
from stateward_sidecar.store.journal import journal, requests
from stateward_sidecar.store.versions import snapshots

# How long a blob stays that nothing names.
BLOB_KEPT_S = 240
SLICE_BYTES = 3000
SIZES: dict[tuple[object, str], Any] = {
    (ship, "TAIL_SOFT_BYTES"): 900,
    (ship, "TAIL_BYTES_MAX"): 2000,
    (ship, "INLINE_SNAPSHOT_BYTES_MAX"): 400,
    (image, "IMAGE_BYTES_MAX"): 500,
    (image, "PART_BYTES"): 200,
    **{(module, "SLICE_BYTES"): SLICE_BYTES for module in (places, metered, archiveblobs)},
    (compact, "OBJECTS_SOFT_MAX"): 4,
    (compact, "OBJECTS_MAX"): 8,
    (compact, "MERGED_BYTES_MAX"): 16 << 10,
    (ship, "MERGED_BYTES_MAX"): 16 << 10,
    (snapshots, "WEIGHT_MIN_BYTES"): 1200,
    (snapshots, "WEIGHT_BY_SIZE"): 1,
    (journal, "LARGE_BYTES"): 1000,  # entries before a larger one are shipped first
    (journal, "INLINE_EDITS_MAX"): 1000,  # edits above are stored in pieces
    (recordputs, "ENTRY_VALUES_BYTES"): 500,
    (recordcleaning, "SLACK_BYTES"): 800,
    (recordcleaning, "STEP_BYTES"): 400,
    (recordcleaning, "STEP_S"): float("inf"),  # a history must repeat step by step
    (recordcleaning, "RECORDS_A_STEP"): 2,
    (recordlist, "CHECKED_BY_WRITER_MAX"): 2,
    (recordlist, "DELETED_MAX"): 3,
    (holds, "HOLDS_MAX"): 1,
    (exporting, "MESSAGE_BYTES"): 1,  # a message for each part
    (schedule, "ThreadPoolExecutor"): Inline,
    (blobsweep, "KEPT_S"): BLOB_KEPT_S,
    (blobsweep, "INTERVAL_S"): 0,
    (blobs, "RENEWAL_S"): 1,
    (blobservice, "asyncio"): NoLoop(),
    (streams, "asyncio"): NoLoop(),
}
# Logs whose older entries become segments after a few saves.
SEGMENTS: dict[tuple[object, str], Any] = {
    (state, "SEGMENT_BYTES"): 600,
    (state, "KEPT_BYTES"): 200,
    (state, "TAIL_BYTES"): 800,
    (snapshots, "WEIGHT_SEALED_BYTES"): 1200,
}
_usual: dict[tuple[object, str], Any] = {}


def shrink(waits: Any = None, window: int = 0, *, has_segments: bool = False) -> None:
    """From now on. ``waits`` takes the place of ``asyncio`` and ``time`` where calls wait. ``window``: so many entries
    answer retries, and a prune removes all others at once; 0 = as usual. ``has_segments``: also with small segments."""
    driven = {(ownership, "asyncio"): waits, (schedule, "time"): waits} if waits is not None else {}
    kept: dict[tuple[object, str], Any] = {}
    if window:
        kept = {(module, "REQUEST_WINDOW_ENTRIES"): window for module in (requests, clear, verify)}
        kept[clear, "REQUEST_WINDOW_S"] = 0
    segments = SEGMENTS if has_segments else {}
    for (module, name), size in {**SIZES, **driven, **kept, **segments}.items():
        _usual.setdefault((module, name), getattr(module, name))
        setattr(module, name, size)


def restore() -> None:
    """As they were."""
    for (module, name), size in _usual.items():
        setattr(module, name, size)
