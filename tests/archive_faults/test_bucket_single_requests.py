"""The danger: a network that breaks one request of a ship or a takeover, before or after its effect."""

from __future__ import annotations

import threading

import pytest
from tests.archive_faults.gate import Gate
from tests.daemon.process import Fleet, eventually, write_steps

from stateward import Client, Durability

FAULTS = (
    ("reset", "before"), ("reset", "after"), ("503", "before"), ("503", "after"), ("hang", "after"),
    ("truncate", "after"), ("slow", "after"),
)  # fmt: skip
# Twice and with the read-back broken as well.
WORSE = (
    {"replace HEAD": [("reset", "after"), ("reset", "before")], "get HEAD": [("truncate", "after")]},
    {"replace HEAD": [("503", "after")], "get HEAD": [("flip", "after"), ("reset", "before")]},
    {"create HEAD": [("reset", "after")], "get HEAD": [("503", "after")]},
    {"create key": [("reset", "after"), ("503", "after")], "get key": [("flip", "after")]},
)
WRITES = ("create key", "create HEAD", "replace HEAD", "put pack", "put snap")
READS = ("get HEAD", "get key", "get pack", "get snap")


def check_nothing_lost(client: Client, expected: int) -> None:
    """No orphan, nothing rolled back, everything archived."""
    stats = client.stats().archive
    assert (stats.orphans, stats.rolled_back) == (0, 0)
    assert [found.name for found in client.threads() if "@" in found.name] == []
    assert client.thread("job").hydrate().slots["count"] == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRITES)
def test_a_write_that_is_broken(fleet_on_s3: Fleet, gate: Gate, kind: str) -> None:
    """Each fault of a write is waited out: ARCHIVED is answered, is true, and is never a conflict with ourselves."""
    daemon = fleet_on_s3.machine_on("first", gate.url)
    client = fleet_on_s3.client(daemon)
    reader = fleet_on_s3.client(fleet_on_s3.machine_on("reader", gate.url))
    for number, fault in enumerate(FAULTS):
        gate.plan(kind, fault)
        name = "job" if kind in ("replace HEAD", "put pack") else f"job-{number}"
        for _ in range(20):  # some go by before there is a pack or a snapshot
            write_steps(client, name, 1, size=30_000, archived=True)
            if gate.planned() == 0:
                break
        assert gate.planned() == 0, f"nobody asked to {kind}"
        mine = client.thread(name).hydrate()
        theirs = reader.thread(name).hydrate()
        assert (theirs.version, theirs.digest) == (mine.version, mine.digest), fault
    assert client.stats().archive.orphans == client.stats().archive.rolled_back == 0
    assert [found.name for found in client.threads() if "@" in found.name] == []


@pytest.mark.slow
@pytest.mark.parametrize("worse", WORSE, ids=[" + ".join(worse) for worse in WORSE])
def test_a_write_and_its_read_back_are_broken(
    fleet_on_s3: Fleet, gate: Gate, worse: dict[str, list[tuple[str, str]]]
) -> None:
    """The answer is lost and so is the first look at what became of it: still no conflict, and nothing is lost."""
    daemon = fleet_on_s3.machine_on("first", gate.url)
    client = fleet_on_s3.client(daemon)
    write_steps(client, "warm", 1, archived=True)
    if "replace HEAD" in worse:
        write_steps(client, "job", 1, archived=True)
    for kind, faults in worse.items():
        gate.plan(kind, *faults)
    done = client.thread("job").hydrate().slots["count"] if "replace HEAD" in worse else 0
    write_steps(client, "job", 3, archived=True)
    write_steps(client, "job", 3)
    eventually(lambda: client.stats().archive.dirty_threads == 0)
    check_nothing_lost(client, done + 6)
    other = fleet_on_s3.client(fleet_on_s3.machine_on("other", gate.url))
    assert other.thread("job").hydrate().slots["count"] == done + 6


@pytest.mark.slow
def test_reads_that_are_broken(fleet_on_s3: Fleet, gate: Gate) -> None:
    """A takeover through faults of each request gives the whole state, and never "not found" or an older one."""
    daemon = fleet_on_s3.machine_on("first", gate.url)
    client = fleet_on_s3.client(daemon)
    names = [f"job-{number}" for number in range(len(FAULTS))]
    for name in names:
        write_steps(client, name, 6, size=30_000, archived=True)
    daemon.stop()
    other = fleet_on_s3.client(fleet_on_s3.machine_on("other", gate.url))
    for name, fault in zip(names, FAULTS, strict=True):
        for kind in READS:
            gate.plan(kind, fault)
        state = other.thread(name).hydrate(must_exist=True)
        assert (state.slots["count"], len(state.logs["messages"])) == (6, 6), fault
        write_steps(other, name, 1, archived=True)
        assert gate.planned() <= 1, "what is in HEAD is not asked for apart"


@pytest.mark.slow
@pytest.mark.parametrize("kind", READS)
def test_a_bit_that_flips_on_the_way_to_us(fleet_on_s3: Fleet, gate: Gate, kind: str) -> None:
    """It is read again: no answer is wrong, and no thread is called damaged for it."""
    daemon = fleet_on_s3.machine_on("first", gate.url)
    write_steps(fleet_on_s3.client(daemon), "job", 6, size=30_000, archived=True)
    daemon.stop()
    other = fleet_on_s3.client(fleet_on_s3.machine_on("other", gate.url))
    other.thread("unknown").hydrate()  # so that the namespace's key is here
    gate.plan(kind, ("flip", "after"))
    state = other.thread("job").hydrate(must_exist=True)
    assert gate.planned() == 0
    assert (state.slots["count"], len(state.logs["messages"])) == (6, 6)


@pytest.mark.slow
def test_cut_off_just_after_head_landed(fleet_on_s3: Fleet, gate: Gate) -> None:
    """A HEAD landed and nothing was heard for long: who waits is told ARCHIVED once the bucket is back, not later."""
    daemon = fleet_on_s3.machine_on("first", gate.url)
    client = fleet_on_s3.client(daemon, call_timeout=30)
    write_steps(client, "job", 1, archived=True)
    gate.close_after = "replace HEAD"
    timer = threading.Timer(3.5, gate.open)
    timer.start()
    state = client.thread("job").hydrate()
    state.slots["count"] = 2
    saved = client.thread("job").save(state, durability=Durability.ARCHIVED)
    timer.join()
    assert saved.version == 2
    check_nothing_lost(client, 2)
