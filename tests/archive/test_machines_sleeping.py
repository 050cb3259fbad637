"""The danger: a machine sleeps, and what it knew before counts as known a moment ago; or nothing ends any more."""

from __future__ import annotations

from tests.daemon.driven import LEASE_S, Driven, append
from tests.daemon.town import Town

SLEEP_S = 7200


def sleep(driven: Town, *machines: Driven) -> None:
    """Machines sleep, while time passes for all others."""
    for machine in machines:
        machine.clock.slept_s += SLEEP_S
    driven.time.sleep(SLEEP_S)


def test_the_first_read_after_a_sleep_asks(driven: Town) -> None:
    """An owner that was replaced while it slept shows what its successor saved."""
    first, second = driven.machine("first"), driven.machine("second")
    first.put(append(after=0))
    first.ship_now()
    second.archive.own("default", "job", take_over=True)
    second.put(append(after=1))
    second.ship_now()
    sleep(driven, first)
    assert first.state().checkpoint.version == 2


def test_expiry_goes_on_after_a_sleep(driven: Town) -> None:
    """A sleep is no jump of the clock: a thread whose TTL passed meanwhile is deleted."""
    first = driven.machine("first")
    request = append(after=0)
    request.options.create.ttl.FromSeconds(600)
    first.put(request)
    first.ship_now()
    sleep(driven, first)
    first.sweep()
    assert first.find("job") is None


def test_a_collection_after_a_sleep_expires(driven: Town) -> None:
    """The same in the bucket, by a machine that was there before."""
    first = driven.machine("first")
    request = append(after=0)
    request.options.create.ttl.FromSeconds(600)
    first.put(request)
    first.ship_now()
    sleep(driven, first)
    first.collect(0)
    assert first.find("job") is None


def test_a_lease_that_passed_in_sleep_is_over(driven: Town) -> None:
    """A HEAD that is the same before and after a sleep has not changed in it."""
    first, second = driven.machine("first"), driven.machine("second")
    first.put(append(after=0))
    first.ship_now()
    second.state()
    sleep(driven, second)
    assert second.put(append(after=1)).version == 2


def test_an_old_failure_excuses_no_read(driven: Town) -> None:
    """The bucket was away before the sleep: that is hours ago."""
    first, second = driven.machine("first"), driven.machine("second")
    first.put(append(after=0))
    first.ship_now()
    driven.time.sleep(LEASE_S + 1)
    first.wire._away_since = first.wire.failed_at = first.clock.boottime()
    second.archive.own("default", "job", take_over=True)
    second.put(append(after=1))
    second.ship_now()
    sleep(driven, first)
    assert first.state().checkpoint.version == 2
