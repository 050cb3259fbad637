"""The danger: a pack that is written row by row is not the message that other machines parse, so they cannot read the
history in it."""

from __future__ import annotations

from tests.archive.test_heads_travel import fill
from tests.daemon.town import Town

from stateward.storage.v1.archive_pb2 import ArchivePack
from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward_sidecar.archive.objects.heads import open_head
from stateward_sidecar.archive.objects.packs import Names, open_pack, pack_entries, pack_snapshot, snapshot_rows
from stateward_sidecar.archive.requests.places import whole_sizes
from stateward_sidecar.codec.entry import sequence_of
from stateward_sidecar.store.thread import blocks


def test_a_pack_is_its_message() -> None:
    """Rows of any length, none, and one that says nothing of itself."""
    pieces = [b"", b"x", b"y" * 127, b"z" * 70_000]
    for packed, rows in (
        (pack_snapshot(Names(bytes(8)), 1, 7, pieces), snapshot_rows(7, pieces)),
        (pack_entries(Names(bytes(8)), 1, snapshot_rows(0, [b""]), [EntryHeader(sequence=1)]), snapshot_rows(0, [b""])),
    ):
        ref, data = packed
        assert data[4:] == ArchivePack(rows=rows).SerializeToString()
        assert open_pack(ref, data) == rows


def test_no_block_reaches_the_archive(driven: Town) -> None:
    """Packs and HEADs have single entries, although this disk has several in a row."""
    first = driven.machine("first")
    for _ in range(4):
        fill(first)
    thread = first.thread()
    with first.store.context.engine.read() as txn:
        assert len(list(blocks.rows(txn, thread.identity.keys, 1))) < thread.head.tip_sequence / 5
    place = first.archive.state.holds[thread.number].place
    sizes = whole_sizes(first.wire.walk("v1/t/"))
    packs = [first.wire.read(key, size_bytes) for key, size_bytes in sizes.items() if key.endswith(".pack")]
    rows = [row for data in packs for row in ArchivePack.FromString(data[4:]).rows if row.sequence]
    tail = open_head(thread.identity.namespace_keys, place, first.wire.get(place.head).data).tail
    found = [row.record for row in rows] + list(tail)
    assert {sequence_of(record) for record in found} == set(range(1, thread.head.tip_sequence + 1))
    assert {record[:4] for record in found} == {b"SJ\x01\x01"}
