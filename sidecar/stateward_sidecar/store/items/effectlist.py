"""Lists effects in the order of their sort keys.

Rows of effects lie under keyed hashes, because names and sort keys are sealed. So their order is made in memory, when
the first page of many effects is asked for. It is kept in the cache under the sum of all effect rows, which every
change of an effect changes. A page then opens only the rows that it shows.

The effects of a version are those whose anchor is its checkpoint id. Reads of versions show them beside the state.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter

import lmdb

from stateward.storage.v1.head_pb2 import EffectRow
from stateward.v1.checkpoint_service_pb2 import CheckpointContent, ReadHistoryResponse
from stateward.v1.effect_pb2 import RecordedEffect
from stateward.v1.effect_service_pb2 import ListEffectsRequest, ListEffectsResponse
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.kinds.effect import (
    anchor_prefix,
    effect_key,
    find_effect,
    list_effects,
    open_effect,
    read_value,
    salvage_effects,
    view_effect,
)
from stateward_sidecar.store.thread.cache import EffectOrder, EffectPlace
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.paging import bare, page_bytes
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.thread.threads import Threads
from stateward_sidecar.store.thread.unreadable import UnreadableParts

PAGE_SIZE = 100
# The order of fewer effects is not kept, because it is made at once.
KEPT_FROM = 64
# More or larger effects of a version are read on a worker: opening one takes about 30 µs.
HOT_EFFECTS_MAX, HOT_BYTES_MAX = 16, 64 << 10
# Tag and length of an effect in an answer, at most.
_FRAME_BYTES = 6
_LENGTHS = struct.Struct(">HH")

# Sort key, anchor and key.
Place = tuple[bytes, str, str]
_FIRST: Place = (b"", "", "")
EffectAnswer = CheckpointContent | ReadHistoryResponse


class EffectList:
    """Reads pages of effects."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads

    def read(self, request: ListEffectsRequest) -> ListEffectsResponse:
        """Returns a page of effects. Effects that come meanwhile are listed if they lie behind the page."""
        context, binding = self._context, b""
        answer, size_bytes = ListEffectsResponse(), 0
        with context.engine.read() as txn:
            live = self._threads.get(txn, request.namespace, request.thread)
            thread = self._threads.seen(txn, live)
            unreadable = UnreadableParts(answer.unreadable_parts, are_skipped=request.skip_unreadable)
            places, damage = self._places(txn, thread, request)
            unreadable.add_nameless(damage)
            live.effects_checked = live.effects_checked or thread.effects_checked
            at, looked_at, last = 0, 0, _FIRST
            if request.page_token:
                binding = bare(request)
                after = unpack_place(context.tokens.unpack(binding, request.page_token))
                at = bisect_right(places, after, key=lambda place: place[:3])
            for place in places[at:]:
                if (request.names and place.name not in request.names) or request.key not in ("", place.key):
                    continue
                if looked_at >= (request.page_size or PAGE_SIZE) or size_bytes >= page_bytes():
                    answer.next_page_token = context.tokens.pack(binding or bare(request), pack_place(last))
                    break
                looked_at, last = looked_at + 1, place[:3]
                with unreadable.skipping(key=place.key, anchor=place.anchor):
                    row = open_effect(txn, thread.identity, place.row_key)
                    value = None if request.without_values else read_value(txn, thread.identity, row, context.cache)
                    answer.effects.append(view_effect(row, value))
                    size_bytes += answer.effects[-1].ByteSize()
        return answer

    def of_version(
        self, txn: lmdb.Transaction, thread: Thread, checkpoint_id: str, after: Place | None = None
    ) -> Iterator[RecordedEffect]:
        """Yields the effects of a version in order, with their values. ``after``: those behind this place; None = all.

        Raises Corrupt or HistoryElsewhere.
        """
        for place, row in self._rows(txn, thread, checkpoint_id):
            if after is None or place[:3] > after:
                yield view_effect(row, read_value(txn, thread.identity, row, self._context.cache))

    def add_to(
        self, txn: lmdb.Transaction, thread: Thread, checkpoint_id: str, answer: EffectAnswer, max_bytes: int
    ) -> None:
        """Adds the effects of a version to an answer. Says that they are left out if the answer would be too large."""
        effects = self.of_version(txn, thread, checkpoint_id)
        shown, answer.effects_omitted = take_fitting(effects, max_bytes - answer.ByteSize(), is_alone=False)
        if not answer.effects_omitted:
            answer.effects.extend(shown)

    def few_of_version(self, txn: lmdb.Transaction, thread: Thread, checkpoint_id: str) -> list[RecordedEffect] | None:
        """Returns the effects of a version if the event loop can read them; None if they are many or large, or if the
        rows were not checked yet. Raises Corrupt or HistoryElsewhere."""
        if not thread.effects_checked:
            return None
        identity, left_bytes = thread.identity, HOT_BYTES_MAX
        rows = self._rows(txn, thread, checkpoint_id, HOT_EFFECTS_MAX + 1)
        if len(rows) > HOT_EFFECTS_MAX:
            return None
        for _, row in rows:
            left_bytes -= replay.read_entry(txn, identity, row.sequence).header.edit_bytes
        if left_bytes < 0:
            return None
        return [view_effect(row, read_value(txn, identity, row, self._context.cache)) for _, row in rows]

    @staticmethod
    def _rows(
        txn: lmdb.Transaction, thread: Thread, checkpoint_id: str, most: int | None = None
    ) -> list[tuple[EffectPlace, EffectRow]]:
        """Returns the rows of the effects of a version in order. ``most``: any so many of them."""
        if not checkpoint_id or not thread.head.effects:
            return []
        found = list_effects(txn, thread, anchor_prefix(thread.identity, checkpoint_id))
        return sorted(((EffectPlace.of(row.record, key), row) for key, row in islice(found, most)), key=itemgetter(0))

    def _places(
        self, txn: lmdb.Transaction, thread: Thread, request: ListEffectsRequest
    ) -> tuple[list[EffectPlace], list[Corrupt]]:
        """Returns the effects of the request's anchor, or of all anchors, in order.

        Beside them the damage by which others may be missing, if the request skips what is damaged.

        ``thread``: as the transaction shows it, so that its sum belongs to the rows.
        """
        identity, cache = thread.identity, self._context.cache
        is_one_anchor = request.HasField("anchor")
        if request.key and is_one_anchor:
            row_key = effect_key(identity, request.anchor, request.key)
            found = find_effect(txn, thread, row_key)
            return ([] if found is None else [EffectPlace.of(found.record, row_key)]), []
        prefix = anchor_prefix(identity, request.anchor) if is_one_anchor else identity.keys.all_of(b"E")
        kept = cache.effect_order(thread.number, prefix, thread.head.effect_sum)
        if kept is not None and not thread.floor_sequence:  # else a value may be in the archive only
            return kept.places, []
        damage = list[Corrupt]()
        if request.skip_unreadable:
            found_rows, damage = salvage_effects(txn, thread, prefix)
        else:
            found_rows = list(list_effects(txn, thread, prefix))
        places = sorted(EffectPlace.of(row.record, key) for key, row in found_rows)
        if len(places) >= KEPT_FROM and not damage:
            cache.put_effect_order(thread.number, prefix, EffectOrder(thread.head.effect_sum, places))
        return places, damage


def place_of(shown: RecordedEffect) -> Place:
    """Returns the place of an effect in a list."""
    return shown.effect.sort_key, shown.effect.anchor, shown.effect.key


def take_fitting(
    effects: Iterable[RecordedEffect], room_bytes: int, *, is_alone: bool
) -> tuple[list[RecordedEffect], bool]:
    """Returns the first effects, as many as fit, and whether there are more. ``is_alone``: nothing else is on the page,
    so it gets one effect of any size."""
    shown: list[RecordedEffect] = []
    for effect in effects:
        room_bytes -= effect.ByteSize() + _FRAME_BYTES
        if room_bytes < 0 and (shown or not is_alone):
            return shown, True
        shown.append(effect)
    return shown, False


def pack_place(place: Place) -> bytes:
    """Returns sort key, anchor and key for a page token."""
    parts = [part.encode() if isinstance(part, str) else part for part in place]
    return _LENGTHS.pack(*map(len, parts[:2])) + b"".join(parts)


def unpack_place(data: bytes) -> Place:
    """The reverse of ``pack_place``."""
    sort_bytes, anchor_bytes = _LENGTHS.unpack_from(data)
    at = _LENGTHS.size + sort_bytes
    return data[_LENGTHS.size : at], data[at : at + anchor_bytes].decode(), data[at + anchor_bytes :].decode()
