"""Folding a log's events into a value, which is stored so that the next replay folds only new events.

The value is stored on a branch of the same thread, "projections/<branch>", in the slot "projections/<name>"; the slot
"places/<name>" says how far the fold got. It needs a branch of its own: every save moves the head of its branch, so a
value on the writer's branch would make the writer's next save fail with VersionMismatch. The value can be folded again
at any time. Therefore a failure to store it is ignored: a lost race, a missing right to write, a stopping daemon.
Nothing is stored if that would take the thread from another sidecar, or extend the life of a finished thread.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from stateward import values
from stateward._operations.logs import decode_entries, note_known, page_request, prepare_reading, read_page
from stateward._operations.reading import hydrate
from stateward._operations.saving import begin_merge, merge, store_values
from stateward._operations.steps import Await, Operation, ThreadRef, limited
from stateward._operations.threads import get_thread
from stateward.arguments import function
from stateward.errors import (
    DeadlineExceeded,
    EditConflict,
    Exhausted,
    NotFound,
    OwnershipLost,
    UidMismatch,
    Unavailable,
)
from stateward.models import Access, Status
from stateward.v1 import checkpoint_service_pb2 as checkpoints

Reducer = Callable[[Any, Any], Any]
# After so many restarts, because the log is rewritten during the fold, the log is read at one version.
RESTARTS_MAX = 3
# Limit for storing a fold, with all retries: the caller already waits for the value, which is known.
KEEP_S = 2.0
ENDED = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)


@dataclass
class Fold:
    """A value folded from the entries before `index`, as they were at `version` (0 = none yet) of a thread."""

    value: Any
    index: int = 0
    version: int = 0
    uid: str = ""
    digest: bytes = b""

    def holds(self, page: checkpoints.ReadLogResponse) -> bool:
        """Whether the log still has the folded entries unchanged."""
        return not self.version or (
            page.rewritten_version <= self.version <= page.version
            and self.index <= page.end_index
            and not page.known_missing
        )


def replay(ref: ThreadRef, log: str, reducer: Reducer, initial: Any, projection: str | None) -> Operation[Any]:
    """Folds the events of a log and returns the value. Stores nothing if `projection` is None."""
    function(reducer, "reducer")
    store = ThreadRef(ref.namespace, ref.thread, f"projections/{ref.branch}", blobs=ref.blobs)
    kept, digest = (None, b"") if projection is None else (yield from _read(store, log, projection))
    before = kept or Fold(copy.deepcopy(initial))
    known = before.index
    if projection is not None and not store.held.uid:
        with suppress(NotFound):
            store.held.read_uid = (yield from get_thread(store)).uid  # the fold is of this creation, and kept in it
    try:
        fold = yield from _fold(ref, log, reducer, initial, before)
    except (NotFound, UidMismatch):
        return copy.deepcopy(initial)
    if projection is not None and (fold is not before or fold.index != known):
        with suppress(EditConflict, OwnershipLost, Exhausted, NotFound, UidMismatch, Unavailable, DeadlineExceeded):
            yield from limited(_keep(store, log, projection, fold, digest), lambda: KEEP_S)
    return fold.value


def _fold(ref: ThreadRef, log: str, reducer: Reducer, initial: Any, fold: Fold) -> Operation[Fold]:
    """Folds the new entries. Starts again, with a new Fold, if folded entries have changed."""
    yield from prepare_reading(ref, None)
    request = page_request(ref, log, fold.index, None)
    request.expected_uid, request.known_version, request.known_digest = fold.uid, fold.version, fold.digest
    restarts = 0
    while True:
        page = yield from read_page(ref, request)
        if not fold.holds(page):
            fold = Fold(copy.deepcopy(initial))
            restarts += 1
            request.known_version, request.known_digest = 0, b""
            if restarts > RESTARTS_MAX:
                request.version.version, request.version.digest = page.version, page.version_digest
            if request.from_index:
                request.from_index = 0
                continue
        for entry in (yield from decode_entries(ref, log, page)):
            result = reducer(fold.value, entry.value)
            fold.value = (yield Await(result)) if inspect.isawaitable(result) else result
        fold.index = request.from_index = page.next_index
        fold.version, fold.uid, fold.digest = page.version, page.uid, page.version_digest
        note_known(request, page)
        if page.next_index >= page.end_index:
            return fold


def _read(store: ThreadRef, log: str, name: str) -> Operation[tuple[Fold | None, bytes]]:
    """Returns the stored fold (None = none of this log), and the SHA-256 of its place (empty = nothing is stored)."""
    value, place = f"projections/{name}", f"places/{name}"
    state = yield from hydrate(store, slots=[value, place])
    if place not in state.slots:
        return None, b""
    digest = sha256(state.slots.raw(place).data).digest()
    found = state.slots[place]
    if value not in state.slots or found["log"] != log:
        return None, digest
    uid = state.checkpoint.uid if state.checkpoint is not None else ""
    return Fold(state.slots[value], found["index"], found["version"], uid, bytes.fromhex(found["digest"])), digest


def _keep(store: ThreadRef, log: str, name: str, fold: Fold, digest: bytes) -> Operation[None]:
    encoded = values.encode_slot(fold.value, f"projection {name}")
    info = yield from get_thread(store)
    if info.access == Access.REMOTE or info.status in ENDED:
        return
    place = {"log": log, "index": fold.index, "version": fold.version, "digest": fold.digest.hex()}
    request = yield from begin_merge("replay", store, {})
    taken = yield from store_values(store, [encoded, values.encode(place, "")], {}, store.held.uid)
    for slot, value in zip((f"projections/{name}", f"places/{name}"), taken, strict=True):
        edit = request.diff.edits.add().set_slot
        edit.slot = slot
        edit.value.CopyFrom(value)
    request.diff.edits[1].set_slot.expected_sha256 = digest
    yield from merge(store, request)
