"""The danger: the first save of a copy gets the number of a version that was pruned in the original, and counts as
pruned, too: it was acknowledged, and nobody can read it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stateward import Client
from stateward.testing import Daemon, run_daemon


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
