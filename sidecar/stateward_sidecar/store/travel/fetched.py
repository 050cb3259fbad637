"""Rows that were fetched from the archive: which of them are put, and the index rows that they imply."""

from __future__ import annotations

from collections.abc import Sequence

import lmdb

from stateward.storage.v1.archive_pb2 import PackedRow
from stateward.storage.v1.head_pb2 import ThreadHead
from stateward_sidecar.codec.entry import Entry, unpack
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.storage import layout
from stateward_sidecar.store.clean.lineage import add_uncleared
from stateward_sidecar.store.journal.journal import put_feed
from stateward_sidecar.store.journal.requests import put_request, request_key
from stateward_sidecar.store.kinds.table import is_cut, kind_of
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.ranges import Pruned, Ranges
from stateward_sidecar.store.thread.thread import Identity, ThreadDraft

_NOTHING = Pruned()


def is_entry(item: PackedRow) -> bool:
    """Returns whether a row is a journal entry."""
    return bool(item.WhichOneof("place") == "sequence")


def is_snapshot(item: PackedRow) -> bool:
    """Returns whether a row is a piece of a snapshot."""
    return bool(item.WhichOneof("place") == "snapshot_version")


def check_chain(
    identity: Identity, found: Sequence[PackedRow], head: ThreadHead, have: int, have_digest: bytes
) -> list[Entry]:
    """Returns the entries among ``found`` that are newer than ``have``.

    Raises Corrupt unless each entry continues the entry before it, and the last one is the tip of ``head``.
    """
    entries = sorted(
        (unpack(item.record, item.sequence) for item in found if is_entry(item)),
        key=lambda entry: entry.header.sequence,
    )
    entries = [entry for entry in entries if have < entry.header.sequence <= head.tip_sequence]
    digest = b""
    if entries and entries[0].header.sequence == have + 1:
        digest = have_digest
    for before, entry in zip([None, *entries], entries, strict=False):
        # The header is authenticated with the metadata.
        entry.open_metadata_bytes(identity.cipher, identity.uid)
        if before is not None and entry.header.sequence != before.header.sequence + 1:
            digest = b""  # pruned between the two
        if digest and entry.header.previous_digest != digest:
            raise Corrupt(f"entry {entry.header.sequence} does not continue the entry before it", identity.name)
        digest = entry.header.digest
    last = entries[-1].header if entries else None
    if last is not None and (last.sequence, last.digest) != (head.tip_sequence, head.tip_digest):
        raise Corrupt("the entries do not end where HEAD says", identity.name)
    if last is None and have < head.tip_sequence and found:
        raise Corrupt("the newest entries are missing in the archive", identity.name)
    return entries


def newer(found: Sequence[PackedRow], entries: Sequence[Entry]) -> list[PackedRow]:
    """Returns the rows of new entries, and all snapshots.

    A pack may begin before the copy's tip. A prune may have removed its older entries and their pieces from this disk,
    and nothing would remove them again.
    """
    new = {entry.header.sequence for entry in entries}
    pieces = {entry.header.parts_id for entry in entries}
    return [
        item for item in found
        if is_snapshot(item) or (item.sequence in new if is_entry(item) else item.parts_id in pieces)
    ]  # fmt: skip


def pruned_elsewhere(txn: lmdb.Transaction, draft: ThreadDraft, before: Pruned) -> Pruned:
    """Returns what is on this disk and was pruned by another sidecar: versions, and entries."""
    head, now = draft.head, draft.pruned
    versions = now.common(before.missing(now.last)).after(_first_version(txn, draft) - 1).until(head.last_version)
    effects = now.effects.common(before.effects.missing(now.effects.last))
    signals = now.signals.common(before.signals.missing(now.signals.last))
    records_, loose = now.records.after(before.records.last), now.loose.after(before.loose.last)
    objects = now.objects.common(before.objects.missing(now.objects.last))
    here = (effects, records_, signals, loose, objects)
    return Pruned(versions.pairs(), *(each.after(draft.floor_sequence).until(head.tip_sequence) for each in here))


def _first_version(txn: lmdb.Transaction, draft: ThreadDraft) -> int:
    """Returns the oldest version that has an entry above the floor. It may be below the version of the floor: for
    retries, entries are fetched without the snapshots that show their versions."""
    for sequence, record in blocks.entries(txn, draft.identity.keys, draft.floor_sequence + 1):
        if version := unpack(record, sequence).header.version:
            return int(version)
    return draft.head.last_version + 1


def note_uncleared(
    txn: lmdb.Transaction, draft: ThreadDraft, entries: Sequence[Entry], more: Pruned = _NOTHING
) -> None:
    """Adds pruned entries that are still whole on this disk to the clear list."""
    whole = [entry.header for entry in entries if is_cut(draft.pruned, entry.header) and not entry.is_husk]
    sequences = Ranges((each.sequence, each.sequence) for each in whole if not each.version)
    came = Pruned(((each.version, each.version) for each in whole if each.version), *(5 * [sequences]))
    add_uncleared(txn, draft.identity.number, draft.pruned, more.merged(came))


def put_rows(txn: lmdb.Transaction, draft: ThreadDraft, found: Sequence[PackedRow]) -> None:
    """Puts entries and pieces under their keys. Existing entries and snapshots are not overwritten."""
    keys = draft.identity.keys
    for item in found:
        place = item.WhichOneof("place")
        if place == "sequence":
            # An existing entry stays: a prune may have cut it down to a husk since it was archived.
            try:
                blocks.put_entry(txn, keys, item.sequence, item.record)
            except Corrupt as error:
                raise error.locate(draft.identity.name) from None
        elif place == "parts_id":
            txn.put(keys.edits_piece(item.parts_id, item.index), item.record)
        elif place == "snapshot_version" and item.snapshot_version not in draft.snapshots:
            txn.put(keys.snapshot_piece(item.snapshot_version, item.index), item.record)


def index_entries(txn: lmdb.Transaction, draft: ThreadDraft, entries: Sequence[Entry], past: int) -> None:
    """Puts the index rows that consecutive entries imply. ``past``: entries up to this one are no events, because the
    watches of the namespace were told of them, or of later ones."""
    offset: int | None = None
    for entry in entries:
        _index_entry(txn, draft, entry, is_past=entry.header.sequence <= past)
        header = entry.header
        # The first entry always gets a row: the entries before it may come later, with another offset.
        if header.version and header.sequence - header.version != offset:
            offset = header.sequence - header.version
            txn.put(draft.identity.keys.version_offset(header.version), layout.i64(offset))


def _index_entry(txn: lmdb.Transaction, draft: ThreadDraft, entry: Entry, *, is_past: bool) -> None:
    identity, header = draft.identity, entry.header
    metadata = entry.open_metadata(identity.cipher, identity.uid)
    if metadata.request_hash:
        put_request(txn, request_key(identity, metadata.request_hash), header.sequence, header.create_time_us)
    put_feed(txn, identity.number, header.sequence, is_past=is_past)
    # What was cleared, and is not known as pruned here, was cleared after the HEAD that this disk has. Newer entries
    # follow, except for an orphan, whose thread went on without it.
    is_whole = not is_cut(draft.pruned, header) and not entry.is_husk
    kind_of(header).index(txn, draft, entry, metadata, is_whole=is_whole)
