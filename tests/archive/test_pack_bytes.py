"""Packs are written row by row, and are the message that they are read as."""

from __future__ import annotations

from stateward.storage.v1.archive_pb2 import ArchivePack
from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward_sidecar.archive.packs import Names, open_pack, pack_entries, pack_snapshot, snapshot_rows


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
