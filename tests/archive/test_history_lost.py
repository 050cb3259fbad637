"""The danger: one lost or damaged pack makes a whole thread unreadable, also its newest versions, which lie in other
packs."""

from __future__ import annotations

import pytest
from tests.archive.test_archive_verify import flip, named
from tests.daemon.process import Fleet, write_steps

from stateward import errors
from stateward._sync.client import Thread


@pytest.mark.parametrize("is_missing", [True, False])
def test_what_is_newer_than_a_lost_pack_is_readable(machines: Fleet, is_missing: bool) -> None:
    """Versions after it, the head and new saves; versions in it and before it are CORRUPT, naming the object."""
    first = machines.machine("first")
    client = machines.client(first)
    for _ in range(8):
        write_steps(client, "job", 40, size=1600)
        client.thread("job").archive.wait(client.thread("job").info().sequence)
    versions = {at: client.thread("job").hydrate(at=at).slots["count"] for at in range(1, 321, 20)}
    victim = named(machines, client, ".pack")
    first.stop()
    victim.unlink() if is_missing else flip(victim)
    other = machines.client(machines.machine("second")).thread("job")
    assert other.hydrate().slots["count"] == 320
    told = {at: read(other, at) for at in reversed(versions)}
    good = [at for at, found in told.items() if found == versions[at]]
    bad = [at for at, found in told.items() if isinstance(found, str) and victim.name in found]
    assert bad
    assert sorted(good + bad) == list(versions)
    assert min(good) > max(bad)
    assert len(good) > len(bad)
    write_steps(machines.client(machines.machine("third")), "job", 1)


def read(thread: Thread, version: int) -> int | str:
    """What a version holds, or why it cannot be read."""
    try:
        return thread.hydrate(at=version).slots["count"]
    except errors.Corrupt as error:
        return str(error)
