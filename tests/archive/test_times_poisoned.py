"""The danger: one moment of a wrong clock, and a thread never ages again, or ages at once."""

from __future__ import annotations

import os

import pytest
from tests.daemon.driven import GRACE_S, LEASE_S, NAMESPACE, Driven, append
from tests.daemon.town import Town

from stateward.storage.v1.archive_pb2 import ArchiveHead
from stateward.storage.v1.head_pb2 import ThreadHead
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.thread_service_pb2 import ForkThreadRequest, SetTagRequest
from stateward_sidecar.archive.objects.heads import open_head
from stateward_sidecar.store.thread.times import STEPS_KEPT, made_us, next_time_us

HOUR_S, YEAR_S = 3600, 365 * 24 * 3600
TTL_S = 7200
AHEAD, BEHIND = YEAR_S, -YEAR_S


def first_save(**seconds: int) -> SaveRequest:
    """Makes the thread ``job`` with a TTL or a rule by age."""
    request = append(after=0)
    if ttl := seconds.get("ttl"):
        request.options.create.ttl.FromSeconds(ttl)
    if keep_for := seconds.get("keep_for"):
        request.options.create.retention.keep_for.FromSeconds(keep_for)
    return request


def later(driven: Town, machine: Driven, seconds: float) -> None:
    """Time passes, and the machine ships and sweeps."""
    driven.time.sleep(seconds)
    machine.sweep()
    machine.tidy()


def take(driven: Town, machine: Driven) -> None:
    """Another machine takes the thread of an owner that is gone."""
    machine.state()
    driven.time.sleep(LEASE_S + 1)


def start(driven: Town, name: str, skew_s: float) -> Driven:
    """A sidecar whose wall clock is wrong from the start."""
    driven.time.skew_s = skew_s
    made = driven.machine(name)
    driven.time.skew_s, made.clock.skew_s = 0.0, skew_s
    return made


def head_of(driven: Town, machine: Driven) -> ArchiveHead:
    """What the bucket has."""
    hold = machine.hold_of("job")
    assert hold is not None
    return open_head(machine.thread().identity.namespace_keys, hold.place, driven.bucket.objects[hold.place.head])


@pytest.mark.parametrize("is_taken", [True, False], ids=["another machine", "the clock was set right"])
def test_a_ttl_ends_after_a_clock_that_was_ahead(driven: Town, is_taken: bool) -> None:
    """A save by a right clock decides when the thread expires, whatever clock told the time of the save before it."""
    first = start(driven, "first", AHEAD)
    first.put(first_save(ttl=TTL_S))
    first.ship_now()
    if is_taken:
        first = driven.machine("second")
        take(driven, first)
    else:
        first.clock.skew_s = 0.0
        first.restart()
    first.put(append(after=1))
    first.ship_now()
    later(driven, first, TTL_S - HOUR_S)
    assert first.find("job") is not None
    later(driven, first, HOUR_S + 1)
    assert first.find("job") is None


def test_a_ttl_ends_after_something_else_than_a_save(driven: Town) -> None:
    """An entry of a right clock shows that the newest version is not of the future."""
    first = start(driven, "first", AHEAD)
    first.put(first_save(ttl=TTL_S))
    first.clock.skew_s = 0.0
    first.restart()
    first.tag(SetTagRequest(namespace=NAMESPACE, thread="job", tag="seen", version={"version": 1}))
    first.ship_now()
    later(driven, first, TTL_S + 1)
    assert first.find("job") is None


def test_a_clock_that_was_behind_ends_no_ttl(driven: Town) -> None:
    """A thread that was just saved is not deleted because its last save tells a time of last year."""
    first = driven.machine("first")
    first.put(first_save(ttl=TTL_S))
    first.clock.skew_s = BEHIND
    first.put(append(after=1))
    first.ship_now()
    first.clock.skew_s = 0.0
    first.restart()
    later(driven, first, HOUR_S)
    first.collect(0)
    assert first.find("job") is not None
    later(driven, first, TTL_S)
    later(driven, first, HOUR_S)
    assert first.find("job") is None


def test_a_rule_prunes_after_a_clock_that_was_ahead(driven: Town) -> None:
    """Versions of the future are no younger than the next version of a right clock."""
    first = start(driven, "first", AHEAD)
    first.put(first_save(keep_for=TTL_S))
    first.put(append(after=1))
    first.clock.skew_s = 0.0
    first.restart()
    first.put(append(after=2))
    first.ship_now()
    later(driven, first, TTL_S - HOUR_S)
    assert first.thread().head.retained_versions == 3
    first.put(append(after=3))
    first.ship_now()
    later(driven, first, HOUR_S + 1)
    assert first.thread().head.retained_versions == 1


def test_a_rule_spares_what_a_clock_that_was_behind_saved(driven: Town) -> None:
    """Versions that tell a time of last year are no older than the version before them."""
    first = driven.machine("first")
    first.put(first_save(keep_for=TTL_S))
    first.clock.skew_s = BEHIND
    first.put(append(after=1))
    first.clock.skew_s = 0.0
    first.restart()
    first.put(append(after=2))
    first.ship_now()
    later(driven, first, HOUR_S)
    assert first.thread().head.retained_versions == 3
    later(driven, first, TTL_S)
    assert first.thread().head.retained_versions == 1


def test_garbage_of_the_future_is_deleted(driven: Town) -> None:
    """A HEAD of a right clock gives the objects that were dropped in the future their time."""
    first = start(driven, "first", AHEAD)
    for version in range(12):
        first.put(append(os.urandom(900), after=version))
        first.ship_now()
    first.clock.skew_s = 0.0
    second = driven.machine("second")
    take(driven, second)
    for version in range(12, 24):
        second.put(append(os.urandom(900), after=version))
        second.ship_now()
    assert head_of(driven, second).garbage
    driven.time.sleep(GRACE_S + 1)
    second.put(append(after=24))
    second.ship_now()
    now_us = second.clock.now_us()
    assert all(now_us - GRACE_S * 1e6 < item.time_us <= now_us for item in head_of(driven, second).garbage)


def test_garbage_of_the_future_is_collected(driven: Town) -> None:
    """A collection without grace takes what a clock of the future dropped, although nobody wrote HEAD since."""
    first = start(driven, "first", AHEAD)
    for version in range(12):
        first.put(append(os.urandom(900), after=version))
        first.ship_now()
    garbage = {first.hold_of("job").place.object(item.object) for item in head_of(driven, first).garbage}  # type: ignore[union-attr]
    assert garbage & driven.bucket.objects.keys()
    driven.machine("second").collect(0)
    assert not garbage & driven.bucket.objects.keys()


def test_a_blob_of_the_future_is_collected(driven: Town) -> None:
    """A blob that nothing names goes a day after it was written, whatever time its row tells."""
    first = start(driven, "first", AHEAD)
    first.write_blob("job", b"b" * 100)
    first.ship_now()
    first.clock.skew_s = 0.0
    first.restart()
    first.put(append())
    first.ship_now()
    later(driven, first, 600)
    first.ship_now()
    assert not [key for key in driven.bucket.objects if key.endswith(".blob")]


def test_a_whole_copy_has_the_true_times(driven: Town) -> None:
    """A version of the future is copied with the time that it can have at most, so that the next ones keep theirs."""
    first = start(driven, "first", AHEAD)
    first.put(append(after=0))
    first.clock.skew_s = 0.0
    first.restart()
    first.put(append(after=1))
    first.fork(ForkThreadRequest(namespace=NAMESPACE, thread="job", new_thread="copy", all_versions=True))
    copy = first.find("copy")
    assert copy is not None
    assert copy.head.update_time_us <= first.clock.now_us()


def test_the_places_where_times_went_back_are_bounded() -> None:
    """A thread that two machines save in turn, one of them with a wrong clock, does not grow its head."""
    head = ThreadHead()
    for number in range(100):
        head.tip_sequence = number
        head.update_time_us = next_time_us(head, (number % 2) * YEAR_S * 1_000_000 + number)
    assert len(head.clock_steps) == STEPS_KEPT
    assert made_us(head, 99, head.update_time_us, 200) == 200 or head.update_time_us <= 200
