"""The danger: a wall clock that jumps by years, or two machines whose clocks disagree, decide who may write what."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.daemon.process import Fleet, eventually, write_steps

from stateward import errors

YEARS_S = 10 * 365 * 86400


def set_clock(offset: Path, seconds: float) -> Path:
    """From now on the wall clocks that follow this file are off by so much."""
    fresh = offset.with_suffix(".new")
    fresh.write_text(str(seconds))
    return fresh.replace(offset)


def test_clocks_decide_nothing(fleet_on_disk: Fleet, tmp_path: Path) -> None:
    """Ships, leases and takeovers go on through jumps of years, between machines that are years apart."""
    mine, theirs = (set_clock(tmp_path / name, 0) for name in ("mine", "theirs"))
    set_clock(theirs, -YEARS_S)
    first = fleet_on_disk.machine_on("first", clock=mine, archive_check="600")
    client = fleet_on_disk.client(first)
    other = fleet_on_disk.client(fleet_on_disk.machine_on("other", clock=theirs), retry_timeout=0)
    write_steps(client, "job", 2, archived=True)
    for seconds in (YEARS_S, -YEARS_S, 0):
        set_clock(mine, seconds)
        write_steps(client, "job", 1, archived=True)
        write_steps(client, "job", 1)
        eventually(lambda: client.stats().archive.dirty_threads == 0, 30)
        lag = client.stats().archive.lag
        assert lag is None or lag.total_seconds() < 60
        set_clock(theirs, -seconds)
        with pytest.raises(errors.NotOwner):  # the lease is not over because some clock says so
            other.thread("job").append("messages", {})
    set_clock(theirs, -YEARS_S)
    set_clock(mine, YEARS_S)
    other.thread("job").archive.attach(wait=5)  # and it is over in time whatever a clock says
    write_steps(other, "job", 2, archived=True)
    state = client.thread("job").hydrate()
    state.slots["late"] = True
    with pytest.raises((errors.Fenced, errors.NotOwner, errors.NotArchivedYet)):
        client.thread("job").save(state, durability="archived")
    assert "late" not in client.thread("job").hydrate().slots
    first.kill()
    set_clock(mine, -YEARS_S)
    fleet_on_disk.start(first)
    client = fleet_on_disk.client(first)
    assert client.thread("job").hydrate().slots["count"] == other.thread("job").hydrate().slots["count"] == 10
