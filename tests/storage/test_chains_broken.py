"""The danger: entries of another line, which the same key opens, are installed behind this disk's own, and a thread
shows two histories."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.daemon.store import findings, get, hydrate, opened, save
from tests.storage.test_keys_revived import archived

from stateward.storage.v1.archive_pb2 import PackedRow
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.travel.install import Incoming, Installer

Rows = list[PackedRow]


@pytest.fixture
def lines(tmp_path: Path) -> tuple[Path, Incoming, Rows]:
    """A disk with a thread at version 2; how the thread went on elsewhere; and another line from the same version."""
    with opened(tmp_path / "here") as store:
        save(store, "1", expected_version=0)
        save(store, "2", expected_version=1)
    coming = []
    for name in ("one", "two"):
        shutil.copytree(tmp_path / "here", tmp_path / name)
        with opened(tmp_path / name) as store:
            for version in (2, 3, 4):
                save(store, f"{name} {version}", expected_version=version)
            coming.append(archived(store)(store))
    return tmp_path / "here", coming[0], list(coming[1].rows)


def install(store: Store, incoming: Incoming, rows: Rows) -> None:
    namespace = store.context.keystore.namespace("default")
    assert namespace is not None
    taken = Incoming(namespace, incoming.uid, incoming.data_key, incoming.image, incoming.row, rows)
    Installer(store.context, store.threads).install(taken)


def test_what_continues_what_is_here_is_taken(lines: tuple[Path, Incoming, Rows]) -> None:
    """The newer entries follow the older ones."""
    here, incoming, _ = lines
    with opened(here) as store:
        install(store, incoming, list(incoming.rows))
        assert hydrate(store).checkpoint.version == 5
        assert findings(store) == []


def misplaced(row: PackedRow, sequence: int) -> PackedRow:
    """The record of an entry at the place of another."""
    return PackedRow(sequence=sequence, record=row.record)


def swapped(at: int) -> Callable[[Rows, Rows], Rows]:
    return lambda rows, others: [others[index] if index == at else row for index, row in enumerate(rows)]


@pytest.mark.parametrize(
    "spoil",
    [
        swapped(2),
        swapped(3),
        swapped(4),
        lambda rows, _: rows[:4],
        lambda rows, others: rows[:3] + others[3:],
        lambda rows, _: [*rows[:2], misplaced(rows[3], 3), misplaced(rows[2], 4), rows[4]],
        lambda rows, _: [*rows[:3], misplaced(rows[2], 4), rows[4]],
    ],
    ids=[
        "first of another line",
        "middle of another line",
        "tip of another line",
        "tip missing",
        "two lines",
        "two change places",
        "one comes twice",
    ],
)
def test_a_broken_chain_leaves_the_disk_as_it_was(
    lines: tuple[Path, Incoming, Rows], spoil: Callable[[Rows, Rows], Rows]
) -> None:
    """Entries of another line are sealed under the same key: only their digests tell."""
    here, incoming, others = lines
    with opened(here) as store:
        tip = get(store).head.tip_digest
        with pytest.raises(Corrupt):
            install(store, incoming, spoil(list(incoming.rows), others))
        assert get(store).head.tip_digest == tip
        assert hydrate(store).checkpoint.version == 2
        assert findings(store) == []
