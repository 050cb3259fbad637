"""The danger: a machine is lost, and whoever goes on waits longer than the lease, or is refused for no reason."""

from __future__ import annotations

import pytest
from tests.daemon.driven import LEASE_S, append
from tests.daemon.town import Town

from stateward_sidecar.archive.objects import holds
from stateward_sidecar.archive.requests.places import Place
from stateward_sidecar.errors import NotOwner


def test_reading_a_thread_starts_the_clock(driven: Town) -> None:
    """Who read a thread and worked for as long as the lease may save at once."""
    first, second = driven.machine("first"), driven.machine("second")
    first.put(append(after=0))
    first.ship_now()
    second.state()
    driven.time.sleep(LEASE_S - 1)
    with pytest.raises(NotOwner) as held:
        second.put(append(after=1))
    assert held.value.metadata["free_in_s"] == "1.0"
    driven.time.sleep(1)
    assert second.put(append(after=1)).version == 2


def test_a_head_that_changes_starts_the_clock_anew(driven: Town) -> None:
    """An owner that archives is alive, however often the thread is read."""
    first, second = driven.machine("first"), driven.machine("second")
    for version in range(4):
        first.put(append(after=version))
        first.ship_now()
        driven.time.sleep(LEASE_S - 1)
        second.state()
    with pytest.raises(NotOwner):
        second.put(append(after=4))


def test_what_is_known_of_others_has_an_end(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a million threads of others does not fill the memory; the newest are kept."""
    monkeypatch.setattr(holds, "OBSERVED_MAX", 3)
    first, second = driven.machine("first"), driven.machine("second")
    first.put(append(after=0))
    first.ship_now()
    second.state()
    head = next(iter(first.archive.state.holds.values())).head
    places = [Place(b"n" * 16, bytes([number]) * 16) for number in range(5)]
    for place in places:
        second.archive.state.observe(place, head)
    assert list(second.archive.state.observed) == places[2:]
