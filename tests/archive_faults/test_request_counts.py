"""The danger: requests that nobody ordered, or one after the other: a bill, and a start that takes seconds."""

from __future__ import annotations

import os
import time
from collections import Counter

from tests.archive_faults.gate import Gate
from tests.daemon.process import Fleet, eventually, write_steps

from stateward import Client


def hydrate_counted(gate: Gate, client: Client, name: str, expected: int) -> Counter[str]:
    """The requests of one hydrate."""
    before = len(gate.requests)
    assert client.thread(name).hydrate().slots["count"] == expected
    return Counter(request.kind for request in gate.requests[before:])


def test_cold_hydrate_takes_one_or_two_round_trips(fleet_on_s3: Fleet, gate: Gate) -> None:
    """HEAD and key together, and nothing more where all is in HEAD; else one more round, however many objects."""
    first = fleet_on_s3.client(fleet_on_s3.machine_on("first", gate.url, patience_s=20))
    write_steps(first, "small", 3, archived=True)
    write_steps(first, "large", 6, size=40_000, archived=True)
    write_steps(first, "tagged", 6, size=40_000, archived=True)
    for number in range(140):  # more than fit into HEAD
        first.thread("tagged").tags.set(os.urandom(100).hex(), 1 + number % 6)
    write_steps(first, "tagged", 1, size=40_000, archived=True)

    def fresh(owner: str) -> Client:
        """A client of a machine with an empty disk, which has asked for the namespace's key."""
        other = fleet_on_s3.client(fleet_on_s3.machine_on(owner, gate.url, patience_s=40), call_timeout=60)
        other.thread("unknown").hydrate()
        return other

    other = fleet_on_s3.client(fleet_on_s3.machine_on("other", gate.url, patience_s=20), call_timeout=30)
    kinds = hydrate_counted(gate, other, "small", 3)  # the namespace's key is asked for once a process
    assert kinds == {"get namespace": 1, "get HEAD": 1, "get key": 1}
    counting, timed = fresh("counting"), fresh("timed")
    with gate.gather(2):
        assert hydrate_counted(gate, timed, "small", 3) == {"get HEAD": 1, "get key": 1}
    kinds = hydrate_counted(gate, counting, "large", 6)
    assert (kinds["get HEAD"], kinds["get key"]) == (1, 1)
    assert kinds["get pack"] + kinds["get snap"] > 1
    with gate.gather(2, kinds.total() - 2):
        assert hydrate_counted(gate, timed, "large", 6) == kinds
    kinds = hydrate_counted(gate, counting, "tagged", 7)
    assert (kinds["get HEAD"], kinds["get key"]) == (1, 1)
    assert kinds["get image"] >= 1  # its parts, all at once
    assert all(kind.startswith("get ") and kind != "get other" for kind in kinds)
    with gate.gather(2, kinds.total() - 2):
        assert hydrate_counted(gate, timed, "tagged", 7) == kinds


def test_idle_daemon_asks_nothing(fleet_on_s3: Fleet, gate: Gate) -> None:
    """With threads that it holds, that it gave up and that others hold, nothing is sent once all is shipped,
    but for the one request in `--archive-check` seconds of who reads."""
    daemon = fleet_on_s3.machine_on("first", gate.url, archive_check="600")
    client = fleet_on_s3.client(daemon)
    for number in range(10):
        write_steps(client, f"job-{number}", 2, size=3000)
    client.thread("job-3").archive.detach()
    other = fleet_on_s3.client(fleet_on_s3.machine_on("other", gate.url))
    assert other.thread("job-4").hydrate().slots
    eventually(lambda: client.stats().archive.dirty_threads == 0)
    time.sleep(0.5)  # what is packed in the background
    before, counted = client.stats().archive.requests, gate.count()
    for _ in range(15):  # being looked at is nothing that takes requests either
        time.sleep(0.1)
        client.stats()
        client.thread("job-5").hydrate()
        list(client.threads())
    assert (client.stats().archive.requests, gate.count()) == (before, counted)
