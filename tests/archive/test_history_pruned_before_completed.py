"""The danger: history is fetched that was pruned since the copy was made, and the copy has holes that nobody knows."""

from __future__ import annotations

import os
from collections.abc import Iterator

import lmdb
import pytest
from google.protobuf.empty_pb2 import Empty
from tests.archive.test_effects_gone_travel import fill
from tests.archive.test_history_pruned_while_completed import PLACE, prune, ship
from tests.daemon import small
from tests.daemon.driven import Driven, append
from tests.daemon.town import Town

from stateward.v1.checkpoint_service_pb2 import HydrateRequest
from stateward.v1.effect_service_pb2 import DeleteEffectsRequest
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import Corrupt, VersionPruned
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.thread.thread import rows


@pytest.fixture(autouse=True)
def little() -> Iterator[None]:
    """A copy has the newest entries only, and what nothing needs goes at once."""
    small.shrink(window=2)
    yield
    small.restore()


def hydrate(machine: Driven, name: str, version: int) -> int:
    request = HydrateRequest(namespace="default", thread=name, version={"version": version})
    return machine.hydrate(request).checkpoint.version


def read_all(machine: Driven, name: str) -> int:
    """Reads each version that is said to be there; returns how many were pruned."""
    found = machine.find(name)
    assert found is not None
    gone = 0
    for version in range(1, found.head.last_version + 1):
        try:
            assert hydrate(machine, name, version) == version
        except VersionPruned:
            gone += 1
    return gone


def has_unarchived(machine: Driven) -> None:
    machine.put(append(os.urandom(100)))


def has_nothing_more(machine: Driven) -> None:
    """Its thread is no orphan afterwards."""


@pytest.mark.parametrize("more", [has_unarchived, has_nothing_more])
def test_an_owner_that_was_replaced_asks_who_owns_the_thread(driven: Town, more: object) -> None:
    """It fetches history only when it is read, long after another machine went on and pruned."""
    a, b = driven.machine("a"), driven.machine("b")
    ship(a, 20)
    b.archive.know("default", "job")
    b.archive.own("default", "job", take_over=True)
    has_unarchived(b)
    b.ship_now()
    floor = b.thread().floor_version
    assert floor > 3
    if more is has_unarchived:
        has_unarchived(b)
    a.archive.own("default", "job", take_over=True)
    prune(a, 2)
    ship(a, 3)
    b.archive.complete("default", "job")
    orphans = [each.name for each in b.threads() if each.access == THREAD_ACCESS_ORPHAN]
    assert len(orphans) == (more is has_unarchived)
    assert read_all(b, "job") >= floor - 1
    for name in orphans:
        assert read_all(b, name) >= floor
    assert b.findings() == []


def test_a_copy_learns_first_what_was_pruned(driven: Town) -> None:
    """The copy's HEAD is an old one: what its owner pruned since is not damage of the copy."""
    a, b = driven.machine("a"), driven.machine("b")
    ship(a, 20)
    b.archive.know("default", "job")
    assert b.thread().floor_version > 3
    prune(a, 2)
    ship(a, 3)
    b.archive.complete("default", "job")
    assert not b.thread().floor_sequence
    assert 1 in b.thread().pruned
    assert b.findings() == []


def test_a_taker_learns_first_what_was_pruned(driven: Town) -> None:
    """Its copy is an old one, too, when it fetches what a retry may ask for: here all of it."""
    small.shrink(window=1024)
    a, b = driven.machine("a"), driven.machine("b")
    ship(a, 20)
    b.archive.know("default", "job")
    assert b.thread().floor_version > 3
    prune(a, 2)
    ship(a, 3)
    b.archive.own("default", "job", take_over=True)
    assert 1 in b.thread().pruned
    assert b.findings() == []
    b.put(append(after=b.thread().head.last_version))


def test_deleted_effects_are_known_too(driven: Town) -> None:
    """They are entries, and no versions."""
    a, b = driven.machine("a"), driven.machine("b")
    fill(a, 12)
    ship(a, 8)
    b.archive.know("default", "job")
    assert b.thread().floor_sequence > 3
    a.store.effect_deleter.delete(
        DeleteEffectsRequest(**PLACE, anchor="free", all=Empty(), options=WriteOptions(request_id="free"))
    )
    a.sweep()
    ship(a, 3)
    b.archive.complete("default", "job")
    assert b.thread().pruned.effects.pairs() == a.thread().pruned.effects.pairs()
    assert b.findings() == []


def test_a_damaged_effect_hides_no_history(driven: Town) -> None:
    """Only an orphan's effects are looked at when its history comes."""
    a, b = driven.machine("a"), driven.machine("b")
    fill(a, 12)
    ship(a, 8)
    fill(a, 1, after=12)
    b.archive.know("default", "job")
    assert b.thread().floor_sequence > 3

    def damage(txn: lmdb.Transaction, _: Batch) -> None:
        key, value = next(rows(txn, b.thread().identity.keys.all_of(b"E")))
        key, damaged = bytes(key), bytearray(value)
        damaged[-1] ^= 1
        txn.put(key, bytes(damaged))

    b.write(damage)
    b.archive.complete("default", "job")
    assert hydrate(b, "job", 2) == 2


def test_an_owner_of_a_bucket_that_was_set_back_is_told_so(driven: Town) -> None:
    """Another machine went on from the older HEAD, and pruned: trying again would not help."""
    a, b = driven.machine("a"), driven.machine("b")
    ship(a, 20)
    b.archive.know("default", "job")
    b.archive.own("default", "job", take_over=True)
    has_unarchived(b)
    b.ship_now()
    older = dict(driven.bucket.objects)
    for is_set_back in (False, True):
        has_unarchived(b)
        b.ship_now()
        if not is_set_back:
            driven.bucket.objects.clear()
            driven.bucket.objects.update(older)
    assert b.archive.stats().rolled_back == 1
    a.archive.own("default", "job", take_over=True)
    prune(a, 2)
    ship(a, 3)
    with pytest.raises(Corrupt, match="its HEAD is missing, or older than what was archived"):
        b.archive.complete("default", "job")


def test_entries_for_a_retry_are_those_of_the_copy(driven: Town) -> None:
    """An owner that was replaced looks for a request id, and another machine has deleted effects."""
    small.shrink(window=12)
    a, b = driven.machine("a"), driven.machine("b")
    fill(a, 12)
    b.archive.know("default", "job")
    small.shrink(window=24)
    assert b.thread().floor_sequence > b.thread().head.tip_sequence - 24
    a.store.effect_deleter.delete(
        DeleteEffectsRequest(**PLACE, anchor="free", all=Empty(), options=WriteOptions(request_id="free"))
    )
    a.sweep()
    ship(a, 3)
    b.archive.complete("default", "job", for_retry=True)
    assert b.thread().pruned.effects.pairs() == a.thread().pruned.effects.pairs()
    assert b.findings() == []
