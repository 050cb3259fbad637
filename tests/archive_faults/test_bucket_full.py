"""The danger: a bucket that answers and takes nothing: full, over its quota, or read-only."""

from __future__ import annotations

import pytest
from tests.archive_faults.gate import Gate
from tests.daemon.process import Fleet, eventually, write_steps

from stateward import Durability, errors

REFUSALS = {"full": (507, "InsufficientStorage"), "read-only": (403, "AccessDenied")}


@pytest.mark.parametrize(
    "refusal", [REFUSALS["full"], pytest.param(REFUSALS["read-only"], marks=pytest.mark.slow)], ids=list(REFUSALS)
)
def test_a_bucket_that_takes_nothing(fleet_on_s3: Fleet, gate: Gate, refusal: tuple[int, str]) -> None:
    """COMMITTED goes on, new threads and ARCHIVED say why not, statistics say it, and all is shipped afterwards."""
    daemon = fleet_on_s3.machine_on("first", gate.url)
    client = fleet_on_s3.client(daemon, call_timeout=2, retry_timeout=0)
    write_steps(client, "job", 2, archived=True)
    other = fleet_on_s3.client(fleet_on_s3.machine_on("other", gate.url), retry_timeout=0)
    gate.refuse(*refusal)
    write_steps(client, "job", 3)
    eventually(lambda: str(refusal[0]) in client.stats().archive.error or refusal[1] in client.stats().archive.error)
    state = client.thread("job").hydrate()
    state.slots["count"] = 6
    with pytest.raises((errors.NotArchivedYet, errors.ArchiveUnavailable)):
        client.thread("job").save(state, durability=Durability.ARCHIVED)
    with pytest.raises(errors.ArchiveUnavailable):  # its name cannot be claimed
        client.thread("new").append("messages", {})
    assert client.stats().archive.dirty_threads == 1
    daemon.kill()
    fleet_on_s3.start(daemon)
    client = fleet_on_s3.client(daemon, call_timeout=5)
    assert other.thread("job").hydrate().slots["count"] == 2  # what is there can be read
    write_steps(client, "job", 1)
    expected = client.thread("job").hydrate().slots["count"]
    gate.open()
    eventually(lambda: client.stats().archive.dirty_threads == 0)
    assert client.stats().archive.error == ""
    assert other.thread("job").hydrate().slots["count"] == expected
    write_steps(client, "new", 1, archived=True)


def test_what_is_wrong_is_said_while_reads_go_on(fleet_on_s3: Fleet, gate: Gate) -> None:
    """Reads that are answered do not hide that writes are refused; a write that lands ends it."""
    client = fleet_on_s3.client(fleet_on_s3.machine_on("first", gate.url), retry_timeout=0)
    write_steps(client, "job", 2, archived=True)
    gate.refuse(*REFUSALS["full"])
    write_steps(client, "job", 1)
    eventually(lambda: client.stats().archive.error)
    for number in range(3):
        assert client.thread(f"unknown-{number}").hydrate().version == 0
        assert client.stats().archive.error
    gate.open()
    eventually(lambda: not client.stats().archive.error)
