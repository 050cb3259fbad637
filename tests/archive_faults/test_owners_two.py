"""The danger: a sidecar that was replaced while it slept, and wakes up believing that it owns the thread."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from tests.archive_faults.gate import Gate, running_gate
from tests.daemon.process import Fleet, write_steps

from stateward import Client, errors
from stateward.testing import Daemon


def orphans(client: Client) -> list[str]:
    return sorted(found.name for found in client.threads() if "@" in found.name)


def freeze(daemon: Daemon) -> None:
    os.kill(daemon.pid, signal.SIGSTOP)


def thaw(daemon: Daemon) -> None:
    os.kill(daemon.pid, signal.SIGCONT)


def check_one_history(fleet: Fleet, client: Client, expected: int) -> None:
    """A machine that knows nothing sees what the present owner sees, entry by entry."""
    ours = [(item.checkpoint.version, item.checkpoint.digest) for item in client.thread("job").history()]
    other = fleet.client(fleet.machine_on("third"))
    theirs = [(item.checkpoint.version, item.checkpoint.digest) for item in other.thread("job").history()]
    assert ours == theirs
    assert other.thread("job").hydrate().slots["count"] == expected


def test_paused_and_resumed_after_the_takeover(fleet_on_disk: Fleet) -> None:
    """The old owner is fenced at its next ship, its own entries become an orphan, and HEAD has one history."""
    first = fleet_on_disk.machine_on("first", archive_interval="600", archive_check="600")
    old = fleet_on_disk.client(first, retry_timeout=0)
    write_steps(old, "job", 3, archived=True)
    write_steps(old, "job", 2)  # nobody but this disk knows them
    freeze(first)
    second = fleet_on_disk.client(fleet_on_disk.machine_on("second"))
    second.thread("job").archive.attach(wait=5)
    write_steps(second, "job", 4, archived=True)
    thaw(first)
    state = old.thread("job").hydrate()
    state.slots["late"] = True
    with pytest.raises((errors.Fenced, errors.NotOwner, errors.NotArchivedYet)) as refused:
        old.thread("job").save(state, durability="archived")
    (orphan,) = orphans(old)
    kept = old.thread(orphan).hydrate()
    # An owner that slept so long that it looked at HEAD first has written nothing, and says so.
    assert "late" not in kept.slots or not isinstance(refused.value, errors.NotOwner)
    assert kept.slots["count"] == 5
    assert old.thread("job").hydrate().slots["count"] == 7
    check_one_history(fleet_on_disk, second, 7)


def test_fenced_says_where_the_entries_are(fleet_on_disk: Fleet) -> None:
    """Who waits for ARCHIVED is told FENCED, with the new owner and the orphan; statistics count the orphan."""
    first = fleet_on_disk.machine_on("first", archive_check="600")
    old = fleet_on_disk.client(first, retry_timeout=0)
    write_steps(old, "job", 3, archived=True)
    second = fleet_on_disk.client(fleet_on_disk.machine_on("second"))
    second.thread("job").archive.attach(take_over=True)
    state = old.thread("job").hydrate()
    state.slots["late"] = True
    with pytest.raises(errors.Fenced) as fenced:
        old.thread("job").save(state, durability="archived")
    assert [fenced.value.metadata["orphan"]] == orphans(old)
    assert fenced.value.metadata["owner_id"] == "second"
    assert old.stats().archive.orphans == 1


@pytest.mark.slow
@pytest.mark.parametrize("landed", [False, True])
def test_a_write_in_flight_arrives_after_the_takeover(
    fleet_on_s3: Fleet, gate: Gate, weed_url: str, landed: bool
) -> None:
    """HEAD of the old owner was under way: late it changes nothing, and what had landed is history and no orphan."""
    with running_gate(weed_url) as wire:
        first = fleet_on_s3.machine_on("first", wire.url, patience_s=20)
        old = fleet_on_s3.client(first, retry_timeout=0, call_timeout=30)
        write_steps(old, "job", 3, archived=True)
        held = wire.hold("replace HEAD", has_landed=landed)
        outcome: list[object] = []

        def save() -> None:
            state = old.thread("job").hydrate()
            state.slots["count"] = 4
            try:
                outcome.append(old.thread("job").save(state, durability="archived"))
            except errors.StatewardError as error:
                outcome.append(error)

        saving = threading.Thread(target=save)
        saving.start()
        assert held.arrived.wait(10)
        second = fleet_on_s3.client(fleet_on_s3.machine_on("second", gate.url))
        second.thread("job").archive.attach(take_over=True)
        write_steps(second, "job", 2, archived=True)
        held.let_go()
        saving.join()
        (result,) = outcome
        if landed:  # an entry of ours that landed is never called lost
            assert not isinstance(result, errors.StatewardError), result
            assert orphans(old) == []
        else:
            assert isinstance(result, errors.Fenced), result
            (orphan,) = orphans(old)
            assert old.thread(orphan).hydrate().slots["count"] == 4
        assert old.thread("job").hydrate().slots["count"] == 5
        third = fleet_on_s3.client(fleet_on_s3.machine_on("third", gate.url))
        assert third.thread("job").hydrate().slots["count"] == 5
        versions = [item.checkpoint.version for item in third.thread("job").history()]
        assert versions == list(range(1, 7 if landed else 6))
