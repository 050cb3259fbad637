"""The danger: what was pruned stays in the bucket, whole and for ever, because something still leads to it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.archive.test_blobs_collected_elsewhere import archive_verified, place, take  # noqa: F401
from tests.archive_model.litter import joined, litter, spent, whole_objects
from tests.daemon import small
from tests.daemon.driven import NAMESPACE, Driven, append
from tests.daemon.town import Town

from stateward._operations.threads import spans_of
from stateward.storage.v1.archive_pb2 import ArchiveHead, ObjectRef
from stateward.v1.thread_service_pb2 import PruneThreadRequest
from stateward_sidecar.archive.objects.heads import open_head
from stateward_sidecar.archive.objects.packs import is_pack, open_index, open_pack
from stateward_sidecar.archive.ship import compact
from stateward_sidecar.codec.entry import sequence_of, unpack

# HEAD, four objects that it names, an index, what the next HEAD will name, and what it has just dropped.
OBJECTS_MAX = 12


def prune(machine: Driven) -> None:
    machine.prune(PruneThreadRequest(namespace=NAMESPACE, thread="job", keep_latest_per_branch=2))


def write(machine: Driven, saves: int, *, prunes: int = 0) -> None:
    """Saves that are shipped one by one, and a prune after each of so many."""
    for number in range(1, saves + 1):
        machine.put(append(os.urandom(300)))
        machine.ship_now()
        if prunes and number % prunes == 0:
            prune(machine)
            machine.ship_now()


def settle(town: Town, machine: Driven) -> None:
    """Some more ships, after the time in which readers may follow an older HEAD."""
    for _ in range(3):
        town.time.sleep(700)
        machine.put(append(b"next"))
        machine.ship_now()


def head_of(machine: Driven) -> ArchiveHead:
    return machine.archive.state.holds[machine.thread().number].head


def objects(town: Town) -> dict[str, bytes]:
    return {name: data for name, data in whole_objects(town.bucket.objects).items() if name.startswith("v1/t/")}


def named(town: Town, machine: Driven) -> Iterator[ObjectRef]:
    """All objects that HEAD and its indexes name."""
    head, at = head_of(machine), machine.archive.state.holds[machine.thread().number].place
    yield from head.objects
    index = head.index if head.HasField("index") else None
    while index is not None:
        found = open_index(index, joined(town.bucket.objects, at.object(index)))
        yield from found.objects
        index = found.previous if found.HasField("previous") else None


def whole_versions(town: Town, machine: Driven) -> set[int]:
    """The versions whose edits any pack in the bucket has."""
    found, at = set[int](), machine.archive.state.holds[machine.thread().number].place
    for ref in named(town, machine):
        for row in open_pack(ref, joined(town.bucket.objects, at.object(ref))) if is_pack(ref) else ():
            if row.WhichOneof("place") == "sequence":
                entry = unpack(row.record, row.sequence)
                found |= set() if entry.is_husk else {entry.header.version}
    return found - {0}


@pytest.mark.parametrize("window", [0, 5], ids=["entries stay for retries", "entries go"])
def test_a_rule_keeps_the_bucket_small(driven: Town, window: int) -> None:
    """Fourteen versions lie in indexes when they are pruned, and sixty more come and go: the bucket has about as many
    objects afterwards as before, and the edits of versions that are retained, or share a pack with one."""
    small.shrink(window=window)
    first = driven.machine("first")
    write(first, 14)
    prune(first)
    first.ship_now()
    write(first, 30, prunes=5)
    settle(driven, first)
    assert len(objects(driven)) <= OBJECTS_MAX
    write(first, 30, prunes=5)
    settle(driven, first)
    assert len(objects(driven)) <= OBJECTS_MAX
    head, at = head_of(first), first.archive.state.holds[first.thread().number].place
    assert spent(driven.bucket.objects, at, head, first.thread().pruned) == []
    assert litter(driven.bucket.objects, at, head, b"") == []
    assert min(whole_versions(driven, first)) > 60
    assert archive_verified(first) == []


def test_edits_go_from_the_bucket_with_the_next_ship(driven: Town) -> None:
    """No entry may go yet, because a retry may ask for it: the packs are put anew without edits, and any machine still
    answers the retry."""
    first = driven.machine("first")
    answers = []
    for number in range(14):
        request = append(os.urandom(300), request_id=f"request {number}")
        answers.append((request, first.put(request)))
        first.ship_now()
    assert 1 in whole_versions(driven, first)
    prune(first)
    first.ship_now()
    settle(driven, first)
    assert whole_versions(driven, first) & set(range(1, 10)) == set()
    before = sum(map(len, objects(driven).values()))
    expected = first.state().state
    driven.end(first)
    second = driven.machine("second")
    take(second)
    assert second.state().state == expected
    for request, answer in answers:
        assert second.put(request).version == answer.version
    second.ship_now()
    assert (second.findings(), archive_verified(second)) == ([], [])
    assert sum(map(len, objects(driven).values())) < before * 2


@pytest.mark.parametrize(("saves", "size", "gone"), [(3, 10, 1), (14, 300, 10)], ids=["in HEAD", "in packs"])
def test_edits_go_from_an_idle_thread(driven: Town, saves: int, size: int, gone: int) -> None:
    """Nobody writes the thread after the prune: it is shipped once more than its entries need, and then not again."""
    first = driven.machine("first")
    for _ in range(saves):
        first.put(append(os.urandom(size)))
        first.ship_now()
    assert 1 in whole_versions(driven, first) | tail_versions(driven, first)
    clear_up, first.store.pruner.clear_up = first.store.pruner.clear_up, lambda *_: None
    prune(first)
    first.ship_now()  # before this disk has cleared what was pruned
    first.store.pruner.clear_up = clear_up
    first.sweep()
    assert first.thread().number in first.archive.schedule._due
    first.ship_now()
    found = whole_versions(driven, first) | tail_versions(driven, first)
    assert found & set(range(1, gone + 1)) == set()
    before = first.wire.traffic.heads
    for _ in range(3):
        first.sweep()
        first.ship_now()
    assert first.wire.traffic.heads == before


def tail_versions(town: Town, machine: Driven) -> set[int]:
    """The versions whose edits HEAD has."""
    at = machine.archive.state.holds[machine.thread().number].place
    head = open_head(machine.thread().identity.namespace_keys, at, town.bucket.objects[at.head])
    entries = [unpack(record, sequence_of(record)) for record in head.tail]
    return {entry.header.version for entry in entries if not entry.is_husk} - {0}


def test_a_prune_reads_indexes_once(driven: Town) -> None:
    """A thread whose indexes name nothing that was pruned costs a prune a few reads, and later ships none."""
    first = driven.machine("first")
    write(first, 30)
    first.prune(PruneThreadRequest(namespace=NAMESPACE, thread="job", versions=spans_of([28])))
    write(first, 3)
    before = first.requests
    write(first, 1)
    assert first.requests - before <= 4


def test_a_long_chain_is_put_anew_in_a_few_indexes(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some old versions go: their packs leave the chain, and all others stay readable on an empty disk."""
    monkeypatch.setattr(compact, "INDEX_OBJECTS_MAX", 6)
    first = driven.machine("first")
    write(first, 40)
    expected = first.state().state
    first.prune(PruneThreadRequest(namespace=NAMESPACE, thread="job", versions=spans_of(range(1, 21))))
    first.ship_now()
    settle(driven, first)
    assert whole_versions(driven, first) & set(range(1, 16)) == set()
    assert whole_versions(driven, first) >= set(range(25, 36))
    assert archive_verified(first) == []
    driven.end(first)
    second = driven.machine("second")
    assert second.state().state.logs["m"].entries[:40] == expected.logs["m"].entries
    take(second)
    assert second.findings() == []


def test_a_damaged_index_stops_no_ship(driven: Town) -> None:
    """What it names stays. The thread is archived as before."""
    first = driven.machine("first")
    write(first, 14)
    (*_, name) = sorted(each for each in driven.bucket.objects if each.endswith(".index"))
    driven.bucket.objects[name] = b"damaged"
    prune(first)
    first.ship_now()
    write(first, 2)
    assert head_of(first).tip_sequence == first.thread().head.tip_sequence


def left(town: Town, machine: Driven) -> list[ObjectRef]:
    """The packs in which edits of pruned versions are left."""
    at = machine.archive.state.holds[machine.thread().number].place
    return spent(town.bucket.objects, at, head_of(machine), machine.thread().pruned)


def test_edits_go_from_large_entries(driven: Town) -> None:
    """Their edits are pieces beside the entries, which stay: the first describes the thread, others are for retries."""
    first = driven.machine("first")
    for _ in range(5):
        first.put(append(os.urandom(1500)))
        first.ship_now()
    prune(first)
    first.ship_now()
    settle(driven, first)
    assert len(first.thread().pruned) == 3
    assert left(driven, first) == []
    assert archive_verified(first) == []


@pytest.mark.parametrize("ends", [False, True], ids=["after the ship", "before the ship"])
def test_edits_go_from_a_pack_that_was_on_its_way(driven: Town, *, ends: bool) -> None:
    """A pack of the newest entries is put in the background when these are pruned, and a later HEAD names it."""
    first = driven.machine("first")
    for _ in range(3):
        first.put(append(os.urandom(310)))
        first.ship(first.thread().number)
    hold = first.archive.state.holds[first.thread().number]
    assert hold.spares.has_packs
    assert not any(map(is_pack, head_of(first).objects))
    first.put(append(b"newest"))
    clear_up, first.store.pruner.clear_up = first.store.pruner.clear_up, lambda *_: None
    prune(first)
    first.store.pruner.clear_up = clear_up
    if ends:
        first.wire.background()
    first.sweep()
    first.ship(first.thread().number)
    first.wire.background()
    write(first, 1)
    assert any(map(is_pack, head_of(first).objects))
    assert left(driven, first) == []
    settle(driven, first)
    assert len(first.thread().pruned) == 2
    assert archive_verified(first) == []


def test_a_head_without_room_for_what_it_drops_names_nothing_pruned(
    driven: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread may rest from now on. Its owner remembers what HEAD has no room for."""
    small.shrink(window=2)
    try:
        monkeypatch.setattr(compact, "GARBAGE_MAX", 1)
        machine = driven.machine("first")
        write(machine, 8)
        prune(machine)
        machine.store.sweeper.sweep()
        machine.ship_now()
        machine.put(append(b"next"))
        machine.ship_now()
        newest = machine.thread().head.last_version
        older = range(2, newest - 2)  # the first entry stays
        assert [ref for ref in named(driven, machine) if is_pack(ref) and ref.first_version in older] == []
        settle(driven, machine)
        assert len(objects(driven)) <= OBJECTS_MAX
    finally:
        small.restore()
