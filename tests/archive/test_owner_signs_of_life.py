"""The danger: an owner that is at work seems dead. Or one that cannot upload keeps a thread for ever, because it says
again and again that it lives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.daemon.driven import LEASE_S, NAMESPACE, Driven, append
from tests.daemon.town import Town
from tests.daemon.unthreaded import DrivenWire

from stateward.v1.archive_service_pb2 import RepairThreadRequest
from stateward_sidecar.archive.fleet.repair import Repairer
from stateward_sidecar.archive.own.pulse import FAILURES_MAX, Pulse
from stateward_sidecar.errors import ArchiveUnavailable, NotOwner
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.travel import outbox
from stateward_sidecar.store.travel.outbox import Outbox, Shipment


def test_uploads_that_fail_in_a_row_are_no_sign_of_life(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """HEAD is renewed during some uploads that fail, then no more, and again once an upload succeeds."""
    owner = driven.machine("owner")
    owner.put(append())
    owner.ship_now()
    hold = owner.archive.state.holds[owner.thread().number]

    def fail(
        wire: DrivenWire, calls: Sequence[Callable[[], object]], beat: Callable[[], None], first_s: float,
        every_s: float,
    ) -> None:  # fmt: skip
        beat()
        raise ArchiveUnavailable("an object could not be written")

    def ship() -> bool:
        """Returns whether HEAD changed during a ship whose upload fails."""
        before = owner.wire.get(hold.place.head).etag
        with monkeypatch.context() as failing:
            failing.setattr(DrivenWire, "run_long", fail)
            with pytest.raises(ArchiveUnavailable):
                owner.ship_now()
        return owner.wire.get(hold.place.head).etag != before

    owner.put(append(bytes(range(256)) * 400))
    assert [ship() for _ in range(FAILURES_MAX + 2)] == [True] * FAILURES_MAX + [False, False]
    owner.put(append())
    owner.ship_now()
    assert owner.thread().archived_sequence == 3
    hold.failed_uploads = FAILURES_MAX
    hold.dropped_blobs.clear()
    with monkeypatch.context() as counted:
        counted.setattr("stateward_sidecar.archive.ship.ship.TAIL_BYTES_MAX", 0)
        owner.put(append())
        owner.ship_now()
    assert hold.failed_uploads == 0


def test_an_owner_that_prepares_a_ship_for_longer_than_the_lease_stays_the_owner(
    driven: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk is slow and there is much to read, before any object is uploaded. Another sidecar asks all the time."""
    owner, other = driven.machine("owner"), driven.machine("other")
    owner.put(append())
    owner.ship_now()
    for _ in range(8):
        owner.put(append())
    asked = read_slowly(driven, other, monkeypatch)
    owner.ship_now()
    assert len(asked) >= 8
    assert owner.thread().archived_sequence == 9


def test_an_owner_that_was_quiet_shows_at_the_start_of_an_upload_that_it_lives(driven: Town) -> None:
    """Its last HEAD is almost a lease old, and the lease ends while it uploads. An owner that has just written HEAD
    waits longer."""
    owner, other = driven.machine("owner"), driven.machine("other")
    owner.put(append())
    owner.ship_now()
    with pytest.raises(NotOwner):
        other.archive.own(NAMESPACE, "job")
    hold, pulse = owner.archive.state.holds[owner.thread().number], Pulse(owner.archive.state, owner.archive.reconciler)

    def upload(after_s: float) -> bool:
        """Returns whether HEAD changes in the first tenth of a lease of an upload that begins after this time."""
        driven.time.sleep(after_s)
        before, uploads = owner.wire.get(hold.place.head).etag, pulse.uploads(hold)
        driven.time.sleep(LEASE_S / 10)
        uploads.tick()
        return owner.wire.get(hold.place.head).etag != before

    assert upload(LEASE_S * 0.85)
    with pytest.raises(NotOwner):
        other.archive.own(NAMESPACE, "job")
    assert not upload(0)


def test_an_owner_that_repairs_a_thread_for_longer_than_the_lease_stays_the_owner(
    driven: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object is lost, and all is uploaded again from the disk of the owner. Then another sidecar has everything."""
    owner, other = driven.machine("owner"), driven.machine("other")
    for _ in range(12):
        owner.put(append(bytes(range(256)) * 3))
        owner.ship_now()
    bucket = driven.bucket
    bucket.delete(next(key for key, _ in bucket.list("") if key.endswith(".pack")))
    with monkeypatch.context() as slow:
        asked = read_slowly(driven, other, slow)
        found = Repairer(owner.archive.state).repair(RepairThreadRequest(namespace=NAMESPACE, thread="job"))
    assert len(asked) >= 8
    assert len(found.findings) >= 2
    owner.put(append())
    owner.ship_now()
    assert owner.archive.holds(NAMESPACE, "job")
    other.state()
    assert other.thread().head.tip_digest == owner.thread().head.tip_digest
    other.archive.complete(NAMESPACE, "job")
    assert not Repairer(owner.archive.state).repair(RepairThreadRequest(namespace=NAMESPACE, thread="job")).findings


def test_an_owner_that_wrote_a_lost_head_again_shows_that_it_lives(driven: Town) -> None:
    """While HEAD was missing there was nothing to renew. From then on there is."""
    owner = driven.machine("owner")
    owner.put(append())
    owner.ship_now()
    hold = owner.archive.state.holds[owner.thread().number]
    driven.bucket.delete(hold.place.head)
    Repairer(owner.archive.state).repair(RepairThreadRequest(namespace=NAMESPACE, thread="job"))
    hold, before = owner.archive.state.holds[owner.thread().number], owner.wire.get(hold.place.head).etag
    assert hold.renews
    uploads = Pulse(owner.archive.state, owner.archive.reconciler).uploads(hold)
    driven.time.sleep(LEASE_S)
    uploads.tick()
    assert owner.wire.get(hold.place.head).etag != before


def read_slowly(town: Town, other: Driven, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on a ship reads one entry at a time, and slowly. Meanwhile another sidecar asks for the thread, and must
    not get it. Returns the entries as they are read."""
    read, asked = Outbox._chunk, list[int]()

    def read_one(self: Outbox, thread: Thread, after: int, until: int) -> Shipment:
        town.time.sleep(LEASE_S / 3)
        with pytest.raises(NotOwner):
            other.archive.own(NAMESPACE, "job")
        asked.append(after)
        return read(self, thread, after, until)

    monkeypatch.setattr(outbox, "CHUNK_BYTES", 1)
    monkeypatch.setattr(Outbox, "_chunk", read_one)
    return asked


def with_each_fetch(taker: Driven, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Something happens each time that the taker has fetched a thread, before it writes HEAD."""
    fetcher = taker.archive.fetcher
    fetch = fetcher.fetch

    def slow(*arguments: Any, **how: Any) -> Any:
        found = fetch(*arguments, **how)
        act()
        return found

    monkeypatch.setattr(fetcher, "fetch", slow)


def test_signs_of_life_do_not_keep_a_thread_from_who_takes_it_over(
    driven: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fetching takes longer than the time between them, so there is always another HEAD."""
    owner, taker = driven.machine("owner"), driven.machine("taker")
    owner.put(append())
    owner.ship_now()
    hold = owner.archive.state.holds[owner.thread().number]
    with_each_fetch(taker, lambda: owner.archive._shipper._pulse.renew(hold), monkeypatch)
    taker.archive.own(NAMESPACE, "job", take_over=True)
    assert taker.put(append(after=1)).version == 2

def test_a_sign_of_life_keeps_a_thread_from_who_waits_for_it(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease seemed over when the fetch began."""
    owner, taker = driven.machine("owner"), driven.machine("taker")
    owner.put(append())
    owner.ship_now()
    hold = owner.archive.state.holds[owner.thread().number]
    with pytest.raises(NotOwner):
        taker.archive.own(NAMESPACE, "job")
    driven.time.sleep(LEASE_S + 1)
    with_each_fetch(taker, lambda: owner.archive._shipper._pulse.renew(hold), monkeypatch)
    with pytest.raises(NotOwner):
        taker.archive.own(NAMESPACE, "job")
    assert owner.put(append(after=1)).version == 2


def test_what_is_archived_while_a_thread_is_taken_over_is_not_lost(
    driven: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A HEAD with another entry is no sign of life alone."""
    owner, taker = driven.machine("owner"), driven.machine("taker")
    owner.put(append())
    owner.ship_now()
    rest = [True]

    def ship() -> None:
        if rest:
            rest.clear()
            owner.put(append(b"late"))
            owner.ship_now()

    with_each_fetch(taker, ship, monkeypatch)
    taker.archive.own(NAMESPACE, "job", take_over=True)
    assert taker.put(append(after=2)).version == 3
