"""The danger: entries that one machine cleaned away stay on the disks of others and in the bucket, which grow for
ever."""

from __future__ import annotations

import os

import pytest
from tests.daemon import small
from tests.daemon.driven import NAMESPACE, Driven, append
from tests.daemon.town import Town

from stateward.storage.v1.journal_pb2 import ENTRY_KIND_LEASE, ENTRY_KIND_SIGNAL, ENTRY_KIND_TAG_SET
from stateward.v1.lease_service_pb2 import AcquireLeaseRequest, ReleaseLeaseRequest
from stateward.v1.signal_service_pb2 import SendSignalRequest
from stateward.v1.thread_service_pb2 import PruneThreadRequest, SetTagRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.store.journal import replay

PLACE = {"namespace": NAMESPACE, "thread": "job"}
LOOSE = {ENTRY_KIND_LEASE, ENTRY_KIND_SIGNAL, ENTRY_KIND_TAG_SET}


def work(machine: Driven, rounds: int) -> None:
    """Each round a signal, which the save acknowledges, a lock and a tag."""
    for number in range(rounds):
        request = SendSignalRequest(**PLACE, name="n", options=WriteOptions(request_id=os.urandom(8).hex()))
        request.payload.media_type, request.payload.data = "a/b", os.urandom(50)
        signal = machine.write(machine.store.signals.send(request)).signal
        save = append()
        save.ack_signals.append(signal.signal_id)
        version = machine.put(save).version
        acquire = AcquireLeaseRequest(**PLACE, options=WriteOptions(request_id=os.urandom(8).hex()))
        acquire.holder.name, acquire.holder.incarnation = "w", "1"
        lease = machine.write(machine.store.leases.acquire(acquire)).lease
        machine.write(
            machine.store.leases.release(ReleaseLeaseRequest(**PLACE, options=WriteOptions(lease_token=lease.token)))
        )
        machine.tag(SetTagRequest(**PLACE, tag=f"{number % 3}", version={"version": version}))
        machine.ship_now()


def prune(machine: Driven) -> None:
    machine.ship_now()
    machine.store.pruner.prune(PruneThreadRequest(**PLACE, keep_latest_per_branch=4))
    machine.store.sweeper.sweep()


def loose(machine: Driven) -> int:
    """How many entries of signals, locks and tags are on the disk."""
    with machine.store.context.engine.read() as txn:
        return sum(entry.header.kind in LOOSE for entry in replay.read_entries(txn, machine.thread().identity, 1))


@pytest.fixture
def window() -> None:
    """Two entries for retries."""
    small.shrink(window=2)


@pytest.mark.usefixtures("window")
def test_a_machine_that_takes_it_over_clears_its_copy(driven: Town) -> None:
    """It has the entries from before, and learns from the image that they count for nothing."""
    a, b = driven.machine("a"), driven.machine("b")
    a.put(append())
    a.ship_now()
    work(a, 12)
    b.archive.know(NAMESPACE, "job")
    b.archive.complete(NAMESPACE, "job")
    assert loose(b) > 30
    work(a, 2)
    prune(a)
    a.put(append())
    prune(a)
    assert loose(a) < 16
    tags, head = a.thread().tags, a.thread().head.tip_sequence
    a.ship_now()
    b.archive.own(NAMESPACE, "job", take_over=True)
    assert (b.thread().tags, b.thread().head.tip_sequence) == (tags, a.thread().head.tip_sequence)
    assert head
    b.put(append())
    prune(b)
    b.put(append())
    prune(b)
    assert loose(b) < 16
    b.ship_now()
    fresh = driven.machine("fresh")
    fresh.archive.know(NAMESPACE, "job")
    fresh.archive.complete(NAMESPACE, "job")
    assert fresh.thread().tags == b.thread().tags
    assert not fresh.thread().signals


@pytest.mark.usefixtures("window")
def test_what_was_cleaned_without_a_prune_goes(driven: Town) -> None:
    """Nothing but the cleaning tells a machine that takes the thread over that its entries count for nothing."""
    a, b = driven.machine("a"), driven.machine("b")
    a.put(append())
    work(a, 12)
    b.archive.know(NAMESPACE, "job")
    b.archive.complete(NAMESPACE, "job")
    before = loose(b)
    a.store.pruner.clean(NAMESPACE, "job")
    a.put(append())
    a.ship_now()
    b.archive.own(NAMESPACE, "job", take_over=True)
    b.store.pruner.resume()
    assert loose(b) <= before - 24  # the signals stay with their versions


@pytest.mark.usefixtures("window")
def test_packs_of_a_lock_go(driven: Town) -> None:
    """The bucket does not grow with a lock either."""
    a = driven.machine("a")
    a.put(append())
    a.ship_now()
    sizes = []
    for _ in range(8):
        work(a, 6)
        prune(a)
        driven.time.sleep(700)
        a.put(append())
        a.ship_now()
        a.put(append())
        a.ship_now()
        a.ship_now()
        sizes.append(sum(map(len, driven.bucket.objects.values())))
    assert max(sizes[4:]) < 1.3 * max(sizes[:4])
