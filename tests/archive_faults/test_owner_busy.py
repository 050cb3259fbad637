"""The danger: an owner that is busy with an upload seems dead, and another sidecar sets aside what it acknowledges."""

from __future__ import annotations

import os
import threading
import time

import pytest
from tests.archive_faults.gate import Gate
from tests.archive_faults.test_owners_two import orphans
from tests.daemon.process import Fleet, write_steps

from stateward import Durability, State, errors
from stateward_sidecar.archive.requests.waiting import WORKERS

LEASE_S = 1.5


def test_an_upload_that_takes_longer_than_the_lease_costs_no_thread(fleet_on_s3: Fleet, gate: Gate) -> None:
    """While a blob is on its way for some leases, the owner saves and keeps the thread, and what was saved before the
    blob is archived at once."""
    flags = {"archive_lease": str(LEASE_S), "archive_interval": "0.2"}
    owner = fleet_on_s3.client(fleet_on_s3.machine_on("first", via=gate.url, patience_s=None, **flags))
    other = fleet_on_s3.client(fleet_on_s3.machine_on("second", via=gate.url, patience_s=None, **flags))
    write_steps(owner, "job", 1, archived=True)
    held = gate.hold("put blob")  # for at most 20 s
    thread = owner.thread("job")
    before = thread.save(thread.hydrate(), labels={"before": "the blob"})
    blob = thread.blobs.write(os.urandom(2 << 20))
    assert held.arrived.wait(10)
    assert thread.archive.wait(before).durability is Durability.ARCHIVED, "it waits for the blob"
    heads, saved, tried, began = gate.count("replace HEAD"), 0, 0, time.monotonic()
    while time.monotonic() - began < 4 * LEASE_S:
        state = thread.hydrate()
        state.slots["count"] = saved
        thread.save(state)
        saved += 1
        with pytest.raises(errors.NotOwner):
            other.thread("job").archive.attach(wait=0)
        tried += 1
        threading.Event().wait(0.1)
    assert tried > 4
    assert gate.count("replace HEAD") - heads <= 2 * 4 * 4, "HEAD is written much more often than it has to be"
    held.let_go()
    state = thread.hydrate()
    state.slots["blob"] = blob
    thread.save(state, durability="archived")
    assert orphans(owner) == []
    fresh = fleet_on_s3.client(fleet_on_s3.machine_on("third", via=gate.url, patience_s=None))
    assert fresh.thread("job").hydrate().slots["count"] == saved - 1


def test_large_uploads_of_some_threads_hold_up_no_other_thread(fleet_on_s3: Fleet, gate: Gate) -> None:
    """As many threads as there are workers upload something that takes long. What another thread saves is archived
    meanwhile."""
    machine = fleet_on_s3.machine_on("first", via=gate.url, patience_s=None, archive_lease=str(LEASE_S))
    owner = fleet_on_s3.client(machine)
    names = [f"large-{number}" for number in range(WORKERS)]
    for name in names:
        write_steps(owner, name, 1, archived=True)
    held = [gate.hold("put blob") for _ in names]  # for at most 20 s
    for name in names:
        owner.thread(name).blobs.write(os.urandom(1 << 20))
    assert all(each.arrived.wait(10) for each in held), "they wait for each other"
    saved = owner.thread("small").save(State(), durability="archived")
    assert saved.durability is Durability.ARCHIVED
    assert not any(each.ended for each in gate.requests if each.kind == "put blob"), "it waited for an upload"
    for each in held:
        each.let_go()
