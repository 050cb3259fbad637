"""The danger: a disk has cleared what was pruned, and no ship follows, because its process ended, the thread was given
up, or a request failed. Then the bucket keeps the data for ever."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from google.protobuf.empty_pb2 import Empty
from tests.archive.test_blobs_collected_elsewhere import archive_verified, take
from tests.archive.test_prune_in_the_bucket import prune, settle, tail_versions, whole_versions, write
from tests.daemon.driven import CALLER, NAMESPACE, Driven, append
from tests.daemon.town import Town
from tests.daemon.unthreaded import run
from tests.daemon.wire import text

from stateward._operations.threads import spans_of
from stateward.v1.checkpoint_pb2 import WORK_STATUS_WAITING
from stateward.v1.effect_service_pb2 import DeleteEffectsRequest, PutEffectsRequest
from stateward.v1.thread_pb2 import THREAD_ACCESS_OWNED
from stateward.v1.thread_service_pb2 import PruneThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.archive.ship import compact
from stateward_sidecar.errors import ArchiveUnavailable

# By number and size of saves: those whose edits HEAD itself carries, and those that lie in packs.
PLACES = pytest.mark.parametrize(("saves", "size", "gone"), [(3, 10, 1), (14, 300, 10)], ids=["in HEAD", "in packs"])


def make(machine: Driven, saves: int, size: int) -> None:
    for _ in range(saves):
        machine.put(append(os.urandom(size)))
        machine.ship_now()


def prune_later(machine: Driven, remove: Callable[[Driven], object] = prune) -> None:
    """A prune that is archived before anything is cleared."""
    clear_up, machine.store.pruner.clear_up = machine.store.pruner.clear_up, lambda *_: None
    remove(machine)
    machine.ship_now()
    machine.store.pruner.clear_up = clear_up


def ship_due(machine: Driven) -> None:
    """Ships what is scheduled, and nothing else."""
    for number in list(machine.archive.schedule._due):
        del machine.archive.schedule._due[number]
        machine.ship(number)
    machine.wire.background()


def whole(town: Town, machine: Driven) -> set[int]:
    """The versions whose edits the bucket has."""
    if not machine.holds("job"):
        machine.archive.own(NAMESPACE, "job")
    return whole_versions(town, machine) | tail_versions(town, machine)


def indexes(town: Town) -> int:
    return sum(name.endswith(".index") for name in town.bucket.objects)


@PLACES
@pytest.mark.parametrize("is_cleared", [False, True], ids=["before it cleared", "before it shipped"])
def test_a_process_that_ends_in_between(driven: Town, saves: int, size: int, gone: int, is_cleared: bool) -> None:
    """The next process of the disk ships the thread that nobody uses, once, and rests."""
    first = driven.machine("first")
    make(first, saves, size)
    prune_later(first)
    if is_cleared:
        first.sweep()
    first.write_rows()
    first.restart()
    first.archive._find_dirty()
    first.sweep()
    ship_due(first)
    first.write_rows()
    assert whole(driven, first) & set(range(1, gone + 1)) == set()
    assert first.outbox() == set()
    before = first.wire.traffic.heads
    first.sweep()
    ship_due(first)
    assert first.wire.traffic.heads == before


@PLACES
def test_a_hold_that_was_dropped(driven: Town, saves: int, size: int, gone: int) -> None:
    """Other threads have pushed this one out before its ship: the ship takes it up again."""
    first = driven.machine("first")
    make(first, saves, size)
    prune_later(first)
    first.sweep()
    for _ in range(2):
        other = append()
        other.thread = "other"
        first.put(other)
        first.write_rows()
    ship_due(first)
    assert whole(driven, first) & set(range(1, gone + 1)) == set()


@PLACES
def test_a_thread_that_rests(driven: Town, saves: int, size: int, gone: int) -> None:
    """It waits for an answer, so each ship gives it up: but not before what was pruned is cleared and has left the
    bucket."""
    first = driven.machine("first")
    make(first, saves, size)
    request = append()
    request.status = WORK_STATUS_WAITING
    first.put(request)
    prune_later(first)
    first.sweep()
    ship_due(first)
    assert not first.holds("job")
    assert first.thread().access != THREAD_ACCESS_OWNED
    assert whole(driven, first) & set(range(1, gone + 1)) == set()


def test_a_thread_that_comes_back(driven: Town) -> None:
    """Another machine took it before the ship, has only its newest entries, and gives it back."""
    first, second = driven.machine("first"), driven.machine("second")
    make(first, 14, 300)
    prune_later(first)
    first.sweep()
    take(second)
    second.put(append())
    second.ship_now()
    assert whole(driven, second) & set(range(1, 11))
    take(first)
    first.put(append())
    first.ship_now()
    assert whole(driven, first) & set(range(1, 11)) == set()


def test_an_index_that_cannot_be_read_now(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ship goes on without it, so that nobody waits, and another ship follows."""
    first = driven.machine("first")
    write(first, 14)
    read = first.archive.fetcher._wire.read

    def away(key: str, size: int) -> bytes:
        if key.endswith(".index"):
            raise ArchiveUnavailable("away")
        return read(key, size)

    with monkeypatch.context() as patched:
        patched.setattr(first.wire, "read", away)
        prune(first)
        first.ship_now()
        assert first.thread().archived_sequence == first.thread().head.tip_sequence
    ship_due(first)
    assert whole(driven, first) & set(range(1, 11)) == set()


def test_objects_of_a_long_chain_go_together(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is pruned piece by piece waits until a rewrite of the indexes is worth it, and then all of it goes."""
    monkeypatch.setattr(compact, "INDEXES_FREE", 1)
    monkeypatch.setattr(compact, "INDEXES_AN_OBJECT", 1)
    first = driven.machine("first")
    write(first, 40)
    chain, left = indexes(driven), []
    for version in range(1, 13):
        first.prune(PruneThreadRequest(namespace=NAMESPACE, thread="job", versions=spans_of([version])))
        first.ship_now()
        left.append(len(whole(driven, first) & set(range(1, 13))))
    assert chain > 4
    assert left[1] == 12, "an object that goes from the oldest index is not worth to put all anew"
    assert left[-1] <= 2


def test_packs_without_versions(driven: Town) -> None:
    """Deleted effects that share a pack with no version: the process ends before the ship that follows the clearing."""
    first = driven.machine("first")
    first.put(append())
    first.ship_now()
    for number in range(12):
        request = PutEffectsRequest(namespace=NAMESPACE, thread="job", options=WriteOptions(request_id=f"put {number}"))
        request.effects.add(anchor="mine", key=str(number), value=text(os.urandom(300).hex()))
        run(first.effects.put_effects(request, CALLER))
        first.ship_now()
    gone = DeleteEffectsRequest(
        namespace=NAMESPACE, thread="job", anchor="mine", all=Empty(), options=WriteOptions(request_id="delete")
    )
    prune_later(first, lambda it: run(it.effects.delete_effects(gone, CALLER)))
    first.sweep()
    first.write_rows()
    first.restart()
    first.archive._find_dirty()
    ship_due(first)
    settle(driven, first)
    packs = sum(len(data) for name, data in driven.bucket.objects.items() if name.endswith(".pack"))
    assert packs < 12 * 300
    assert archive_verified(first) == []


def test_a_thread_that_is_taken_up_again_reads_no_index(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread with a long chain of indexes rests between two turns. Each turn costs what it adds."""
    first = driven.machine("first")
    first.put(append())
    first.put(append())
    first.prune(PruneThreadRequest(namespace=NAMESPACE, thread="job", versions=spans_of([1])))
    write(first, 40)
    assert indexes(driven) > 4
    costs = []
    for _ in range(3):
        request = append()
        request.status = WORK_STATUS_WAITING
        first.put(request)
        before = first.requests
        first.ship_now()
        costs.append(first.requests - before)
        assert not first.holds("job")
    assert max(costs[1:]) <= 3  # the first one reads the indexes
