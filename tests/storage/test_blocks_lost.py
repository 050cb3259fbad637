"""The danger: a block of entries is gone, or is older than the thread, and nobody who passes over it says so."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
from tests.daemon.store import findings, get, hydrate, opened, save, save_many, write
from tests.storage.test_keys_revived import archived
from tests.storage.test_prune_slow import entry

from stateward.v1.backup_service_pb2 import ExportThreadRequest
from stateward.v1.thread_service_pb2 import WatchRequest
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread import blocks

Rows = list[tuple[int, blocks.Records]]


def change(store: Store, verb: Callable[[Rows], Rows]) -> None:
    """Changes the rows of the journal, while the thread is in memory."""
    keys = get(store).identity.keys

    def run(txn: lmdb.Transaction, batch: object) -> None:
        before = [(first, list(blocks.unpack_row(first, row))) for first, row in blocks.rows(txn, keys, 1)]
        for first, _ in before:
            txn.delete(keys.entry(first))
        for first, found in verb(before):
            txn.put(keys.entry(first), blocks.pack_row(first, found))

    write(store, run)


def watch(store: Store) -> list[int]:
    """The sequences of all events."""
    seen, found = store.watcher.open(WatchRequest(namespace="default", thread="t", after_sequence=0)), list[int]()
    while events := store.watcher.read(seen):
        found += [each.sequence for each in events]
    return found


LOST: dict[str, Callable[[Rows], Rows]] = {
    "first": lambda rows: rows[1:],
    "middle": lambda rows: [rows[0], *rows[2:]],
    "newest": lambda rows: rows[:-1],
    "end of the middle": lambda rows: [rows[0], (rows[1][0], rows[1][1][:3]), *rows[2:]],
    "end of the newest": lambda rows: [*rows[:-1], (rows[-1][0], rows[-1][1][:-1])],
}


@pytest.mark.parametrize("verb", LOST.values(), ids=LOST.keys())
def test_a_lost_block_is_not_passed_over(tmp_path: Path, verb: Callable[[Rows], Rows]) -> None:
    """A ship would leave it out of the archive, and a watch would not show it."""
    with opened(tmp_path) as store:
        save_many(store, (entry(os.urandom(300)) for _ in range(70)))
        hydrate(store)
        assert watch(store) == list(range(1, 71))
        assert len(archived(store)(store).rows) == 70
        with store.context.engine.read() as txn:
            assert len(list(blocks.rows(txn, get(store).identity.keys, 1))) == 4
        change(store, verb)
        for read in (archived, watch):
            with pytest.raises(Corrupt, match="is missing"):
                read(store)
        assert findings(store)


@pytest.mark.parametrize("verb", [LOST["newest"], LOST["end of the newest"]], ids=["gone", "set back"])
def test_nothing_is_put_after_a_lost_entry(tmp_path: Path, verb: Callable[[Rows], Rows]) -> None:
    """The state is in memory, so the save itself needs nothing of the disk. Its answer would be worth nothing."""
    with opened(tmp_path) as store:
        save_many(store, (entry(os.urandom(300)) for _ in range(30)))
        hydrate(store)
        before: Any = []
        change(store, lambda rows: before.extend(rows) or verb(rows))
        with pytest.raises(Corrupt, match="does not end with entry 30"):
            save(store, "next")
        change(store, lambda _: before)
        assert save(store, "next").version == 31
        assert findings(store) == []


def test_an_entry_at_the_place_of_another_is_not_taken_for_it(tmp_path: Path) -> None:
    """The records of two entries are swapped, in a block and between blocks. Their seals do not name the place."""
    export = ExportThreadRequest(namespace="default", thread="t")
    with opened(tmp_path) as store:
        save_many(store, (entry(os.urandom(300)) for _ in range(70)))
        before: Any = []
        change(store, lambda rows: before.extend(rows) or rows)
        flat = {sequence: record for _, found in before for sequence, record in found}
        for one, other in ((5, 6), (5, 40), (69, 70)):
            swapped = {**flat, one: flat[other], other: flat[one]}
            change(store, lambda rows, now=swapped: [(first, [(s, now[s]) for s, _ in found]) for first, found in rows])
            store.context.cache.drop_thread(get(store).number)
            for read in (archived, watch, lambda it: [*it.exporter.open(export)], lambda it: hydrate(it, version=70)):
                with pytest.raises(Corrupt, match="holds the record of entry"):
                    read(store)
            assert "holds the record of entry" in "".join(each.message for each in findings(store))
            change(store, lambda _: before)
        assert findings(store) == []


def test_a_damaged_entry_with_large_edits_is_a_finding(tmp_path: Path) -> None:
    """Nobody knows whose the pieces of its edits are. Verify goes on to the next thread."""
    with opened(tmp_path) as store:
        save_many(store, (entry(os.urandom(size)) for size in (300, 1_200_000, 300, 300)))
        change(store, lambda rows: [(1, [(1, rows[0][1][0][1]), (2, rows[0][1][2][1]), *rows[0][1][2:]])])
        found = [each.message for each in findings(store)]
        assert "entry 2 holds the record of entry 3" in "".join(found)
        assert "pieces" not in "".join(found)


def test_rows_that_overlap_are_a_finding(tmp_path: Path) -> None:
    """An old copy of a block beside the block that has its last entries now."""
    with opened(tmp_path) as store:
        save_many(store, (entry(os.urandom(300)) for _ in range(70)))
        change(store, lambda rows: [(rows[0][0], rows[0][1] + rows[1][1][:2]), *rows[1:]])
        with pytest.raises(Corrupt, match="in two rows"):
            archived(store)
        assert "is in two rows" in "".join(each.message for each in findings(store))
