"""The danger: the archive's directory is not mounted for a while, and what is not found there is taken for gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.daemon.driven import NAME, NAMESPACE
from tests.daemon.process import Fleet, write_steps
from tests.daemon.town import Twins, twins

from stateward import Client, errors
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.errors import ArchiveUnavailable, ThreadNotFound


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Twins]:
    """The twins."""
    with twins(tmp_path) as made:
        yield made


def unmount(pair: Twins) -> None:
    """``a`` has archived a version; then nothing of the archive is there."""
    pair.a.put("one")
    pair.a.archive_all()
    pair.back_up()
    pair.bucket.objects = {}


@pytest.mark.parametrize("knows_namespace", [False, True])
def test_a_thread_that_is_not_found_is_not_new(pair: Twins, knows_namespace: bool) -> None:
    """Neither a read nor a first save is answered: what was archived in its place would be lost with the next mount."""
    unmount(pair)
    if knows_namespace:
        mounted = dict(pair.bucket.objects)
        pair.set_back()
        pair.b.archive.state.keys.namespace(NAMESPACE)
        pair.bucket.objects = mounted
    with pytest.raises(ArchiveUnavailable, match="mounted"):
        pair.b.words()
    with pytest.raises(ArchiveUnavailable, match="mounted"):
        pair.b.put("two", after=0)
    assert not any(key.endswith("/HEAD") for key in pair.bucket.objects)
    pair.set_back()
    assert pair.b.words() == ["one"]


def test_a_deletion_is_refused(pair: Twins) -> None:
    """Else the thread would come back with the directory, and with its key. It can be deleted afterwards."""
    request = DeleteThreadRequest(namespace=NAMESPACE, thread=NAME)
    unmount(pair)
    with pytest.raises(ArchiveUnavailable, match="mounted"):
        pair.a.delete(request)
    pair.set_back()
    assert pair.a.words() == ["one"]
    pair.a.delete(request)
    with pytest.raises(ThreadNotFound):
        pair.b.words()


ASKED: dict[str, Callable[[Client], object]] = {
    "list": lambda client: list(client.archive.list()),
    "index": lambda client: list(client.archive.list(index=True)),
    "verify": lambda client: list(client.archive.verify()),
    "verify a thread": lambda client: list(client.archive.verify("job")),
    "restore": lambda client: list(client.archive.restore()),
    "restore a thread": lambda client: list(client.archive.restore("job")),
    "gc": lambda client: list(client.archive.collect()),
    "gc --dry-run": lambda client: list(client.archive.collect(dry_run=True)),
    "repair": lambda client: client.archive.repair("job"),
    "repair --dry-run": lambda client: client.archive.repair("job", dry_run=True),
}


@pytest.mark.parametrize("how", ["moved away", "empty"])
def test_no_command_takes_it_for_an_empty_archive(machines: Fleet, how: str) -> None:
    """All commands say that the archive cannot be reached, and why. None fails for another reason, or finds damage."""
    client = machines.client(machines.machine("first"), retry_timeout=0)
    write_steps(client, "job", 3, archived=True)
    assert not client.archive.status().stats.away
    machines.bucket.rename(machines.bucket.with_name("away"))
    if how == "empty":
        machines.bucket.mkdir(mode=0o700)
    for name, ask in ASKED.items():
        with pytest.raises(errors.ArchiveUnavailable, match=r"is it mounted|is its directory mounted"):
            pytest.fail(f"{name}: {ask(client)}")
        assert client.archive.status().stats.away, name
