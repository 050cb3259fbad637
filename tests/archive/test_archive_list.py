"""The danger: after the loss of a machine its threads are in no list, or one damaged HEAD ends the list of all
others."""

from __future__ import annotations

import pytest
from tests.daemon.process import Fleet, write_steps

from stateward import Client, errors
from stateward.models import Access
from stateward.testing import run_daemon


def names(client: Client) -> list[str]:
    return sorted(found.name for found in client.threads())


def heads(machines: Fleet) -> list[str]:
    return sorted(key for key in machines.objects() if key.endswith("/HEAD"))


def test_every_sidecars_threads_are_listed(machines: Fleet) -> None:
    """Whoever asks sees all live threads as they were archived, who has them, and no deleted one."""
    first, second = machines.machine("first"), machines.machine("second")
    digest = write_steps(machines.client(first), "a", 3, archived=True)
    write_steps(machines.client(second), "b", 2, archived=True)
    write_steps(machines.client(second), "gone", 2, archived=True)
    machines.client(second).thread("gone").delete()
    machines.client(second).thread("b").archive.detach()
    found = {item.thread.name: item for item in machines.client(first).archive.list() if item.thread}
    assert sorted(found) == ["a", "b"]
    assert (found["a"].thread.version, found["a"].thread.digest) == (3, digest)
    assert (found["a"].thread.owner_id, found["a"].detached, found["a"].thread.access) == ("first", False, Access.OWNED)
    assert (found["b"].thread.owner_id, found["b"].detached, found["b"].thread.access) == (
        "second",
        True,
        Access.REMOTE,
    )
    assert found["a"].archive_time is not None


def test_a_namespace_is_listed_alone(machines: Fleet) -> None:
    """Threads of other namespaces are no part of it."""
    daemon = machines.machine("first")
    write_steps(machines.client(daemon), "here", 1, archived=True)
    write_steps(machines.client(daemon, namespace="other"), "there", 1, archived=True)
    assert [item.thread.name for item in machines.client(daemon, namespace="other").archive.list()] == ["there"]
    assert list(machines.client(daemon, namespace="never-used").archive.list()) == []
    assert len(list(machines.client(daemon, namespace="").archive.list())) == 2


def test_damaged_heads_do_not_end_the_list(machines: Fleet) -> None:
    """A thread whose HEAD is damaged or gone is a line that says so, by name, and the others are there."""
    daemon = machines.machine("first")
    client = machines.client(daemon)
    for number in range(20):
        write_steps(client, f"job-{number}", 1, archived=True)
    (machines.bucket / heads(machines)[3]).write_bytes(b"nonsense")
    (machines.bucket / heads(machines)[7]).unlink()
    found = list(client.archive.list())
    listed = {item.thread.name for item in found if item.thread}
    problems = [item.problem for item in found if item.problem]
    assert len(listed) == 18
    assert len(problems) == 2
    for name in {f"job-{number}" for number in range(20)} - listed:
        assert any(f"'{name}'" in problem for problem in problems)


def test_an_index_makes_the_fleet_visible(machines: Fleet) -> None:
    """On an empty disk lists show all threads; one that is used afterwards comes whole, to read and to write."""
    first = machines.machine("first")
    client = machines.client(first)
    write_steps(client, "long", 400, size=1200)
    write_steps(client, "short", 3)
    expected = client.thread("long").hydrate()
    old = client.thread("long").hydrate(at=17).logs["messages"]
    first.stop()
    second = machines.client(machines.machine("second"))
    assert names(second) == []
    assert [item.problem for item in second.archive.list(index=True)] == ["", ""]
    assert names(second) == ["long", "short"]
    assert {found.name: found.version for found in second.threads()} == {"long": 400, "short": 3}
    state = second.thread("long").hydrate()
    assert (state.digest, state.slots["count"]) == (expected.digest, 400)
    assert second.thread("long").hydrate(at=17).logs["messages"] == old
    write_steps(second, "short", 1)
    assert second.thread("short").hydrate().slots["count"] == 4
    assert [item.finding for item in second.verify() if item.finding] == []


def test_an_index_follows_the_fleet(machines: Fleet) -> None:
    """Run again, it shows what changed, for copies with entries and for those without."""
    client = machines.client(machines.machine("first"))
    for name in ("bare", "used"):
        write_steps(client, name, 2, archived=True)
    second = machines.client(machines.machine("second"))
    list(second.archive.list(index=True))
    second.thread("used").hydrate()
    for name in ("bare", "used", "new"):
        write_steps(client, name, 2, archived=True)
    list(second.archive.list(index=True))
    assert {found.name: found.version for found in second.threads()} == {"bare": 4, "used": 4, "new": 2}
    for name in ("bare", "used", "new"):
        assert second.thread(name).hydrate().slots["count"] == (2 if name == "new" else 4)
    assert [item.finding for item in second.verify() if item.finding] == []


def test_a_thread_of_its_own_is_left_alone_by_an_index(machines: Fleet) -> None:
    """What this sidecar holds stays its own, with what is not archived yet."""
    client = machines.client(machines.machine("first", archive_interval="600"))
    write_steps(client, "mine", 2, archived=True)
    write_steps(client, "mine", 2)
    list(client.archive.list(index=True))
    info = client.thread("mine").info()
    assert (info.version, info.access) == (4, Access.OWNED)
    write_steps(client, "mine", 1)


def test_status_costs_no_request(machines: Fleet) -> None:
    """It says where the archive is, and asks the bucket nothing."""
    client = machines.client(machines.machine("first"))
    write_steps(client, "job", 1, archived=True)
    before = client.stats().archive.requests
    status = client.archive.status()
    assert (status.owner_id, len(status.archive_id)) == ("first", 32)
    assert status.url == machines.archive
    assert (status.interval.total_seconds(), status.lease.total_seconds()) == (0.1, 1)
    assert client.stats().archive.requests == before


def test_a_daemon_without_an_archive_says_so() -> None:
    """All its commands are refused with NO_ARCHIVE."""
    with run_daemon() as daemon, daemon.client() as client:
        for call in (
            client.archive.status,
            lambda: list(client.archive.list()),
            lambda: list(client.archive.verify()),
            lambda: list(client.archive.restore()),
            lambda: list(client.archive.collect()),
            lambda: client.archive.repair("job"),
        ):
            with pytest.raises(errors.NoArchive):
                call()


def test_who_goes_away_stops_the_list(machines: Fleet) -> None:
    """A cancelled list leaves the daemon as it was, and the next one is whole."""
    client = machines.client(machines.machine("first"))
    for number in range(40):
        write_steps(client, f"job-{number}", 1)
    client.thread("job-39").archive.wait(1)
    listing = client.archive.list()
    next(iter(listing))
    listing.close()
    assert len([item for item in client.archive.list() if item.thread]) == 40
    assert client.thread("job-0").hydrate().slots["count"] == 1


def test_a_small_thread_has_a_size(machines: Fleet) -> None:
    """All of it is in HEAD, whose bytes count in lists, and as bytes that a verification read."""
    client = machines.client(machines.machine("first"))
    write_steps(client, "small", 1, archived=True)
    (found,) = [each for each in client.archive.list() if each.thread is not None]
    heads = [len(data) for key, data in machines.objects().items() if key.endswith("/HEAD")]
    assert heads == [found.object_bytes]
    assert [step.read_bytes for step in client.archive.verify(data_percent=100)][-1] >= heads[0]
    assert [step.read_bytes for step in client.archive.verify()][-1] == 0
