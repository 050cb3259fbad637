"""The danger: an orphan's old history is filled up with versions or snapshots of the line that replaced it, so it shows
states it never had."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.daemon import small
from tests.daemon.driven import NAME, NAMESPACE, Driven
from tests.daemon.town import Twins, twins

from stateward.storage.v1.archive_pb2 import OBJECT_KIND_PACK, PackedRow
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN
from stateward.v1.thread_service_pb2 import PruneThreadRequest
from stateward_sidecar.errors import Corrupt, VersionPruned
from stateward_sidecar.store.journal import requests
from stateward_sidecar.store.versions import snapshots


@pytest.fixture
def parted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Twins]:
    """``b`` took a thread of which it has the newest part only, and has an orphan; ``a`` went on, with snapshots. There
    is a backup of the bucket with the first version."""
    small.shrink()
    monkeypatch.setattr(requests, "REQUEST_WINDOW_ENTRIES", 2)
    try:
        with twins(tmp_path) as made:
            for number in range(24):
                made.a.put(noise(number))
                made.a.archive_all()
                made.a.wire.background()
                if not number:
                    made.back_up()
            made.b.words()
            made.b.take()
            made.b.put("shipped")
            made.b.archive_all()
            for number in range(4):
                made.b.put(f"b {number}")
            made.a.take()
            for number in range(8):
                made.a.put(f"a {number}" + noise(number) + noise(100 + number))
                made.a.archive_all()
                made.a.wire.background()
            made.b.archive_all()
            assert len(made.b.orphans()) == 1
            yield made
    finally:
        small.restore()


def noise(seed: int) -> str:
    """Words that hardly compress, so that they weigh enough for a snapshot."""
    return random.Random(seed).randbytes(200).hex()


def own_words(twin: Driven, orphan: str) -> list[list[str]]:
    """What each of the orphan's own versions adds to the common history."""
    return [twin.words(orphan, version)[24:] for version in range(25, 30)]


def test_the_old_history_of_an_orphan_brings_nothing_of_its_successor(parted: Twins) -> None:
    """Snapshots have versions for names: only those of the common history are the orphan's."""
    b = parted.b
    (orphan,) = b.orphans()
    thread = next(each for each in b.threads() if each.access == THREAD_ACCESS_ORPHAN)
    assert thread.floor_sequence > 0
    before = own_words(b, orphan)
    assert before[-1] == ["shipped", "b 0", "b 1", "b 2", "b 3"]
    assert b.words(orphan, 1) == [noise(0)]
    b.restart()
    assert own_words(b, orphan) == before


def test_the_old_history_of_an_orphan_is_taken_from_its_own_line(parted: Twins) -> None:
    """The archive may be of a third line by now: then the old history is gone, and said to be."""
    b = parted.b
    (orphan,) = b.orphans()
    before = own_words(b, orphan)
    parted.set_back()
    c = parted.machine("c")
    c.take()
    for number in range(40):
        c.put(f"c {number}")
        c.archive_all()
        c.wire.background()
    with pytest.raises(VersionPruned, match="went with thread"):
        b.words(orphan, 1)
    assert own_words(b, orphan) == before


def test_the_old_history_of_an_orphan_is_not_where_the_bucket_was_set_back(parted: Twins) -> None:
    """The archive has less than what goes on here: the old history is gone, and said to be, until it is back."""
    b, later = parted.b, dict(parted.bucket.objects)
    (orphan,) = b.orphans()
    before = own_words(b, orphan)
    parted.set_back()
    for _ in range(2):
        with pytest.raises(VersionPruned, match="went with thread"):
            b.words(orphan, 1)
        b.restart()
    assert own_words(b, orphan) == before
    parted.bucket.objects.update(later)
    assert b.words(orphan, 1) == [noise(0)]


def test_the_old_history_of_an_orphan_goes_with_a_prune(parted: Twins) -> None:
    """Its successor pruned what both share: that is gone, and no damage. What is here stays."""
    a, b = parted.a, parted.b
    (orphan,) = b.orphans()
    before = own_words(b, orphan)
    a.prune(PruneThreadRequest(namespace=NAMESPACE, thread=NAME, keep_latest_per_branch=2))
    a.archive_all()
    parted.time.sleep(3600)
    a.wire.background()
    for version in range(1, 25):
        with suppress(VersionPruned):
            assert b.words(orphan, version) == [noise(number) for number in range(version)]
    with pytest.raises(VersionPruned, match="went with thread"):
        b.words(orphan, 1)
    b.restart()
    assert own_words(b, orphan) == before


def test_the_snapshot_of_an_older_version_may_be_in_head_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bucket was set back, and somebody went on. What both lines share is in a pack, and needs a snapshot, because
    its parent was pruned. The snapshot is still on its way, so HEAD carries it."""
    small.shrink()
    try:
        with twins(tmp_path) as made:
            a, b = made.a, made.b
            for word in ("one", "two", "three"):
                a.put(word)
                a.archive_all()
            a.prune(PruneThreadRequest(namespace=NAMESPACE, thread=NAME, keep_latest_per_branch=1))
            a.put(noise(3))
            a.archive_all()
            made.back_up()
            for number in range(4, 8):
                a.wire.background()
                a.put(noise(number))
                a.archive_all()
            expected = b.words()
            made.set_back()
            c = made.machine("c")
            c.take()
            monkeypatch.setattr(snapshots, "WEIGHT_MIN_BYTES", 1 << 20)
            for number in range(12):
                c.put(noise(100 + number))
                c.archive_all()
            head = c.archive.state.holds[c.thread().number].head
            assert [each.kind for each in head.objects if each.first_version <= 4] == [OBJECT_KIND_PACK]
            b.words()
            (orphan,) = b.orphans()
            thread = b.find(orphan)
            assert thread is not None
            assert thread.floor_version == 4
            for _ in range(2):
                for version in range(8, 2, -1):
                    assert b.words(orphan, version) == expected[:version]
                b.restart()
    finally:
        small.restore()


def test_a_snapshot_of_another_line_is_left_out(parted: Twins) -> None:
    """Whoever brings it: a snapshot carries the digest of its version."""
    a, b = parted.a, parted.b
    there = a.find(NAME)
    orphan = next(each for each in b.threads() if each.access == THREAD_ACCESS_ORPHAN)
    assert there is not None
    version = max(version for version in there.snapshots - orphan.snapshots if 25 < version < 30)
    pieces = a.archive.state.outbox.snapshot(there, version)
    found = [PackedRow(snapshot_version=version, index=at, record=piece) for at, piece in enumerate(pieces)]
    before = own_words(b, orphan.name)
    floor = orphan.floor_sequence, orphan.floor_version
    b.archive.state.installer.add_history(orphan, found)
    b.archive.state.installer.finish_history(orphan, {version}, floor)
    b.restart()
    assert own_words(b, orphan.name) == before
    b.archive.state.installer.add_history(orphan, found)  # and a crash, before it could be looked at
    b.restart()
    with pytest.raises(Corrupt, match="another history"):
        b.words(orphan.name, version)
