"""The danger: another machine lacks entries of a log that were archived, or fetches all of a log to go on with it."""

from __future__ import annotations

import os

import pytest
from tests.daemon.process import Fleet, eventually

from stateward import Client, Durability
from stateward_sidecar.errors import HistoryElsewhere
from stateward_sidecar.service.calls.ownership import ROUNDS, Rounds

ENTRY_BYTES, ENTRIES = 50_000, 160


def text(number: int) -> str:
    return f"{number:06} " + os.urandom(ENTRY_BYTES // 2).hex()


def grow(client: Client, name: str, first: int, count: int = ENTRIES) -> list[str]:
    """Adds entries, the last of them archived. Returns them."""
    thread, added = client.thread(name), [text(first + number) for number in range(count)]
    for at in range(0, count, 8):
        last = at + 8 >= count
        thread.append("l", *added[at : at + 8], durability=Durability.ARCHIVED if last else None)
    return added


def entries(client: Client, name: str) -> list[str]:
    return [entry.value for entry in client.thread(name).log("l").read()]


@pytest.fixture
def log(machines: Fleet) -> list[str]:
    """A log of 8 MB that a lost machine has archived."""
    first = machines.machine("first")
    client = machines.client(first)
    added = grow(client, "job", 0)
    eventually(lambda: len([key for key in machines.objects() if key.endswith(".blob")]) >= 5)
    client.thread("job").append("l", "last", durability=Durability.ARCHIVED)
    client.thread("job").archive.wait(client.thread("job").info().version)
    first.kill()
    return [*added, "last"]


def test_an_empty_machine_has_every_entry(machines: Fleet, log: list[str]) -> None:
    """It goes on with the newest entries at once, and reads the older ones when somebody asks for them."""
    other = machines.machine("other")
    client = machines.client(other)
    state = client.thread("job").hydrate(logs={"l": 2})
    assert list(state.logs["l"])[-1] == "last"
    assert not [path for path in (other.data_dir / "blobs").rglob("*") if path.is_file()]
    client.thread("job").append("l", "on", durability=Durability.ARCHIVED)
    assert entries(client, "job") == [*log, "on"]
    assert list(client.thread("job").hydrate().logs["l"]) == [*log, "on"]
    more = grow(client, "job", ENTRIES)
    other.kill()
    third = machines.client(machines.machine("third"))
    assert entries(third, "job") == [*log, "on", *more]
    assert not [each for each in third.verify() if each.finding is not None]


def test_a_segment_is_uploaded_once(machines: Fleet, log: list[str]) -> None:
    """The next owner uploads its own segments, and none of those that are there."""
    before = {key for key in machines.objects() if key.endswith(".blob")}
    client = machines.client(machines.machine("other"))
    assert entries(client, "job") == log
    grow(client, "job", ENTRIES)
    client.thread("job").append("l", "end", durability=Durability.ARCHIVED)
    eventually(lambda: len({key for key in machines.objects() if key.endswith(".blob")} - before) >= 5)
    assert before <= set(machines.objects())


def test_a_call_that_gets_further_is_tried_again() -> None:
    """However many segments it needs, some at a time; one that is missing again and again ends it."""
    rounds = Rounds()
    for number in range(3 * ROUNDS):
        rounds.count(HistoryElsewhere("elsewhere", namespace="n", thread="t", blobs=f"{number:02x},ff{number:02x}"))
        assert rounds.left()
    for _ in range(ROUNDS):
        assert rounds.left()
        rounds.count(HistoryElsewhere("elsewhere", namespace="n", thread="t", blobs="00,aa"))
    assert not rounds.left()


def test_a_copy_on_another_machine(machines: Fleet, log: list[str]) -> None:
    """It fetches what the copy needs, once for both, and the copy outlives the thread."""
    other = machines.machine("other")
    client = machines.client(other, retry_timeout=0)
    client.thread("job").archive.attach(take_over=True)
    client.thread("job").fork("copy")
    files = [path.stat() for path in (other.data_dir / "blobs").rglob("*") if path.is_file()]
    assert files  # how many depends on how fast they were made
    assert all(each.st_nlink == 2 for each in files)
    client.thread("job").delete()
    assert entries(client, "copy") == log
    client.thread("copy").append("l", "on", durability=Durability.ARCHIVED)
    third = machines.client(machines.machine("third"))
    third.thread("copy").archive.attach(take_over=True)
    assert entries(third, "copy") == [*log, "on"]


def test_a_replaced_entry_on_another_machine(machines: Fleet, log: list[str]) -> None:
    """The write fetches the segment of the entry, and the trim of old ones fetches at most one."""
    client = machines.client(machines.machine("other"))
    thread = client.thread("job")
    state = thread.hydrate()
    state.logs["l"][3] = "new"
    thread.save(state, durability=Durability.ARCHIVED)
    log[3] = "new"
    assert entries(client, "job") == log
    state = thread.hydrate()
    state.logs["l"].trim(keep_last=len(log) - 100)
    thread.save(state, durability=Durability.ARCHIVED)
    assert entries(client, "job") == log[100:]
    assert not [each for each in client.verify() if each.finding is not None]
