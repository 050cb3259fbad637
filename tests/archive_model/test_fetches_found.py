"""The danger: an owner loses its thread because fetching old history takes longer than its lease, or goes on after it
was replaced."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.archive_model.faults import READ_HELD, Fault
from tests.archive_model.sidecar import Sidecar
from tests.archive_model.test_archive_model import Rules
from tests.archive_model.test_uploads_found import NONE, save
from tests.daemon import small
from tests.daemon.driven import LEASE_S, NAMESPACE

# As many saves as need no index: of an index it is not known how many bytes it has.
FEW = pytest.mark.parametrize("taken", [5], indirect=True)


@pytest.fixture
def taken(request: pytest.FixtureRequest) -> Iterator[Rules]:
    """Thread `a`, which a new sidecar took: only the archive has its older entries."""
    made = Rules()
    try:
        made.first_steps(size=10, archived=True, window=2)
        for _ in range(getattr(request, "param", 14)):
            save(made, 0, size=1500)
        made.lose(1, now=True)
        made.take(1, "a", NONE)
        made.wait(LEASE_S + 1)
        made.read(0, "a", "main", NONE)  # it knows now that it lost the thread
        save(made, 1)
        thread = made.sidecars[1].find("a")
        assert thread is not None
        assert thread.floor_sequence, "nothing is left to fetch"
        yield made
        made.teardown()
    finally:
        small.restore()


def look_back(sidecar: Sidecar) -> None:
    """Somebody asks for what only the archive has."""
    sidecar.archive.complete(NAMESPACE, "a")


@pytest.mark.parametrize("at", [1, 2, 4])
def test_an_owner_that_fetches_history_for_longer_than_the_lease_stays_the_owner(taken: Rules, at: int) -> None:
    """Another sidecar asks for the thread all the time, and sees that its owner lives: while it reads indexes, and
    while it reads packs."""
    taken.act(1, "look back", look_back, (Fault(READ_HELD, at),))
    assert taken.sidecars[1].wire.uploads, "nothing is being fetched"
    for _ in range(6):
        taken.wait(LEASE_S / 4)
        save(taken, 0)
        save(taken, 1, archived=False)
    taken.resume(0)
    taken.ship(1, NONE)
    assert not taken.orphans
    assert taken.sidecars[1].holds("a")
    thread = taken.sidecars[1].find("a")
    assert thread is not None
    assert not thread.floor_sequence


def test_an_owner_that_was_quiet_shows_soon_after_the_start_of_a_fetch_that_it_lives(taken: Rules) -> None:
    """Another sidecar has watched its HEAD for most of a lease, and the lease ends while it reads packs."""
    save(taken, 0)
    taken.wait(LEASE_S * 0.85)
    taken.act(1, "look back", look_back, (Fault(READ_HELD, 4),))
    for _ in range(3):
        taken.wait(LEASE_S * 0.1)
        save(taken, 0)
        assert taken.sidecars[1].holds("a")
    taken.resume(0)
    assert not taken.orphans


@FEW
def test_an_owner_whose_fetch_never_ends_loses_the_thread(taken: Rules) -> None:
    """A sidecar that cannot read objects gives a sign of life for some time only: others may go on."""
    taken.act(1, "look back", look_back, (Fault(READ_HELD, 4),))
    save(taken, 0)
    for _ in range(4):
        taken.wait(11.0)
        save(taken, 0)
    assert taken.sidecars[0].holds("a")
    taken.resume(0)


def test_an_owner_that_is_replaced_while_it_fetches_history_notices_at_once(taken: Rules) -> None:
    """It answers no saves any more that can never become history, although its fetch has not ended."""
    taken.act(1, "look back", look_back, (Fault(READ_HELD, 4),))
    taken.take(0, "a", NONE)
    save(taken, 0)
    taken.wait(LEASE_S / 4 + 0.1)
    assert not taken.sidecars[1].holds("a")
    taken.resume(0)
