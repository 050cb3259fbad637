"""Limits so small that a dozen saves make packs, snapshots, indexes and garbage."""

from __future__ import annotations

from typing import Any

from tests.archive_model.process import Inline, Steps, Waits

from stateward_sidecar.archive.objects import desk, image
from stateward_sidecar.archive.ship import blobs as archiveblobs
from stateward_sidecar.archive.ship import fold, leave, ship
from stateward_sidecar.archive.wire import slices, wire
from stateward_sidecar.service.admission import uploads
from stateward_sidecar.service.api import blobs as blobservice
from stateward_sidecar.service.calls import levels
from stateward_sidecar.store.blobs import blobs, blobsweep
from stateward_sidecar.store.check import verify
from stateward_sidecar.store.clean import clear, recordexpiry, recordmoves
from stateward_sidecar.store.copies import exporting
from stateward_sidecar.store.items import recordentries, recordlist
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
    **{(module, "SLICE_BYTES"): SLICE_BYTES for module in (slices, wire, archiveblobs)},
    (fold, "OBJECTS_SOFT_MAX"): 4,
    (fold, "OBJECTS_MAX"): 8,
    (fold, "MERGED_BYTES_MAX"): 16 << 10,
    (ship, "MERGED_BYTES_MAX"): 16 << 10,
    (snapshots, "WEIGHT_MIN_BYTES"): 1200,
    (journal, "LARGE_BYTES"): 1000,  # entries before a larger one are shipped first
    (journal, "INLINE_EDITS_MAX"): 1000,  # edits above are stored in pieces
    (recordentries, "ENTRY_VALUES_BYTES"): 500,
    (recordmoves, "SLACK_BYTES"): 800,
    (recordmoves, "STEP_BYTES"): 400,
    (recordmoves, "STEP_S"): float("inf"),  # a history must repeat step by step
    (recordexpiry, "RECORDS_A_STEP"): 2,
    (recordlist, "CHECKED_BY_WRITER_MAX"): 2,
    (recordlist, "DELETED_MAX"): 3,
    (desk, "HOLDS_MAX"): 1,
    (exporting, "MESSAGE_BYTES"): 1,  # a message for each part
    (leave, "ThreadPoolExecutor"): Inline,
    (blobsweep, "KEPT_S"): BLOB_KEPT_S,
    (blobsweep, "INTERVAL_S"): 0,
    (blobs, "RENEWAL_S"): 1,
    (blobservice, "asyncio"): Steps(),
    (uploads, "asyncio"): Steps(),
}
_usual: dict[tuple[object, str], Any] = {}


def shrink(waits: Waits | None = None, window: int = 0) -> None:
    """From now on; and calls wait as ``waits`` does. ``window``: so many entries answer retries, and a prune removes
    all others at once; 0 = as usual."""
    driven = {(levels, "asyncio"): waits, (leave, "time"): waits} if waits is not None else {}
    kept: dict[tuple[object, str], Any] = {}
    if window:
        kept = {(module, "REQUEST_WINDOW_ENTRIES"): window for module in (requests, clear, verify)}
        kept[clear, "REQUEST_WINDOW_S"] = 0
    for (module, name), size in {**SIZES, **driven, **kept}.items():
        _usual.setdefault((module, name), getattr(module, name))
        setattr(module, name, size)


def restore() -> None:
    """As they were."""
    for (module, name), size in _usual.items():
        setattr(module, name, size)
