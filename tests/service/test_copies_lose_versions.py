"""The danger: the first save of a copy gets the number of a version that was pruned in the original, and counts as
pruned, too: it was acknowledged, and nobody can read it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.inside import daemon_inside

from stateward import Client
from stateward.errors import VersionPruned
from stateward.storage.v1.head_pb2 import ThreadHead
from stateward.testing import Daemon, run_daemon
from stateward_sidecar.store.copies import fork
from stateward_sidecar.store.copies.hidden import Hidden
from stateward_sidecar.store.thread.times import expire_second

HOUR_US = 3_600_000_000


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with run_daemon() as daemon, made_client(daemon) as client:
        yield client


def made_client(daemon: Daemon) -> Client:
    return Client(daemon.target)


def save(client: Client, thread: str, branch: str | None = None) -> int:
    """Adds a message. Returns the version."""
    handle = client.thread(thread)
    place = handle.branch(branch) if branch else handle
    state = place.hydrate()
    state.logs["messages"].append(thread)
    return place.save(state).version


@pytest.mark.parametrize("kept", [0, 2])
def test_a_copy_gives_no_number_out_again(client: Client, kept: int) -> None:
    """The newest versions of the original, or all of them, were pruned. What is saved to the copy can be read."""
    name, copy = f"original-{kept}", f"copy-{kept}"
    client.records(name).put("plan", "so that there is something to copy")
    for _ in range(kept):
        save(client, name)
    going = [save(client, name, "side"), save(client, name, "side")]
    client.thread(name).prune(versions=going, move_heads=True)
    client.thread(name).fork(copy, all_versions=True)
    saved = [save(client, copy) for _ in range(3)]
    assert saved == [kept + 3, kept + 4, kept + 5]
    assert client.thread(copy).hydrate().version == kept + 5
    assert [each.version for each in client.thread(copy).checkpoints.list()] == [*saved[::-1], *range(kept, 0, -1)]
    assert client.records(copy).get("plan") is not None
    assert not [step.finding for step in client.verify() if step.finding is not None]


@pytest.mark.parametrize("going", [[4], [1, 2, 3, 4]])
def test_a_prune_while_a_copy_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, going: list[int]) -> None:
    """What was saved and pruned after the copy began is none of its business, and what it lost makes it fail."""
    with daemon_inside(tmp_path) as daemon, Client(daemon.settings.listen[0]) as client:
        for _ in range(3):
            save(client, "source")

        class Slow(Hidden):
            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **options)
                _ = [save(client, "source") for _ in range(2)]
                client.thread("source").prune(versions=going)

        monkeypatch.setattr(fork, "Hidden", Slow)
        if going != [4]:
            with pytest.raises(VersionPruned):
                client.thread("source").fork("copy", all_versions=True)
            assert [each.name for each in client.threads()] == ["source"]
            return
        client.thread("source").fork("copy", all_versions=True)
        assert [save(client, "copy") for _ in range(2)] == [4, 5]
        assert [each.version for each in client.thread("copy").checkpoints.list()] == [5, 4, 3, 2, 1]
        assert not [step.finding for step in client.verify() if step.finding is not None]


def test_the_newest_entry_is_none_after_the_tip() -> None:
    """The newest version of a copy may be pruned. A clock that was wrong then does not move the end of its TTL."""
    head = ThreadHead(last_version=9, version_offset=0, tip_sequence=4, save_time_us=90 * HOUR_US)
    head.options.ttl.FromSeconds(3600)
    head.clock_steps.add(sequence=4, before_us=90 * HOUR_US, after_us=10 * HOUR_US)
    assert expire_second(head) == 11 * 3600
