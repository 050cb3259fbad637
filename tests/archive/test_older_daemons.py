"""The danger: an older daemon takes a thread, and undoes what it does not know."""

from __future__ import annotations

import pytest
from tests.archive.driven import Town, append
from tests.archive.test_heads_travel import fill, let_go
from tests.archive_model.sidecar import NAMESPACE

from stateward.storage.v1.archive_pb2 import ArchiveFormat, ArchivePack
from stateward_sidecar.archive import heads, keys
from stateward_sidecar.archive.places import FORMAT_KEY
from stateward_sidecar.archive.slices import whole_sizes
from stateward_sidecar.codec.entry import sequence_of
from stateward_sidecar.errors import NewerFormat, StartError
from stateward_sidecar.store import records


def test_an_older_daemon_refuses_the_thread(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the deleted branch on its disk. It neither reads the thread nor takes it, and HEAD stays as it is."""
    first, older = driven.machine("first"), driven.machine("older")
    fill(first)
    older.state()
    let_go(first)
    first.ship_now()
    key = first.archive.desk.holds[first.thread().number].place.head
    before = first.wire.get(key).data
    with monkeypatch.context() as of_format_1:
        of_format_1.setattr(heads, "FORMAT", 1)
        for attempt in (
            older.state,
            lambda: older.put(append()),
            lambda: older.archive.own(NAMESPACE, "job", take_over=True),
        ):
            with pytest.raises(NewerFormat, match="HEAD has format 2"):
                attempt()
    assert first.wire.get(key).data == before


def test_a_new_archive_is_closed_to_older_daemons(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not start. An archive of format 1 stays open to them."""
    first = driven.machine("first")
    made = ArchiveFormat.FromString(first.wire.get(FORMAT_KEY).data)
    assert (made.format, made.min_reader, made.min_writer) == (2, 2, 2)
    with monkeypatch.context() as of_format_1:
        of_format_1.setattr(keys, "FORMAT", 1)
        with pytest.raises(StartError, match="format 2"):
            driven.machine("older")
    made.format = made.min_reader = made.min_writer = 1
    first.wire.replace(FORMAT_KEY, made.SerializeToString(), first.wire.get(FORMAT_KEY).etag)
    assert driven.machine("second").put(append()).version == 1
    with monkeypatch.context() as of_format_1:
        of_format_1.setattr(keys, "FORMAT", 1)
        driven.machine("older")


def test_no_block_reaches_the_archive(driven: Town) -> None:
    """Packs and HEADs have single entries, as format 1 has them, although this disk has several in a row."""
    first = driven.machine("first")
    for _ in range(4):
        fill(first)
    thread = first.thread()
    with first.store.context.engine.read() as txn:
        assert len(list(records.rows(txn, thread.identity.keys, 1))) < thread.head.tip_sequence / 5
    place = first.archive.desk.holds[thread.number].place
    sizes = whole_sizes(first.wire.walk("v1/t/"))
    packs = [first.wire.read(key, size_bytes) for key, size_bytes in sizes.items() if key.endswith(".pack")]
    rows = [row for data in packs for row in ArchivePack.FromString(data[4:]).rows if row.sequence]
    tail = heads.open_head(thread.identity.namespace_keys, place, first.wire.get(place.head).data).tail
    found = [row.record for row in rows] + list(tail)
    assert {sequence_of(record) for record in found} == set(range(1, thread.head.tip_sequence + 1))
    assert {record[:4] for record in found} == {b"SJ\x01\x01"}
