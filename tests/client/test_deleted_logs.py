"""The danger: a client counts the entries of a log from 0 that the daemon counts on, because it was deleted before."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from stateward import Client
from stateward.testing import run_daemon
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest
from stateward.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with run_daemon(sweep_interval=0) as daemon, daemon.client() as opened:
        yield opened


def entries(count: int) -> list[str]:
    return [f"m{number}" for number in range(count)]


def test_each_way_to_read_a_state_says_where_it_goes_on(client: Client) -> None:
    """Whole, changes since, a projection that names it, a list of states, and a history."""
    thread = client.thread("deleted-logs")
    state = thread.hydrate()
    state.logs["m"].extend(entries(3))
    state.logs["other"].append("stays")
    thread.save(state)
    known = thread.hydrate()
    del state.logs["m"]
    thread.save(state)
    state.slots["done"] = True
    thread.save(state)
    whole, since = thread.hydrate(), thread.hydrate(since=known)
    for each in (whole, since, thread.hydrate(logs={"m": None}), *list(thread.states())[:2], state):
        assert "m" not in each.logs
        assert each.logs["m"].next_index == 3
    with thread.history(newest_first=True) as entries_:
        first = next(iter(entries_))
    assert first.state is not None
    assert first.state.logs["m"].next_index == 3
    whole.logs["m"].append("again")
    assert whole.logs["m"].next_index == 4
    thread.save(whole)
    assert whole.logs["m"].next_index == 4
    found = thread.hydrate()
    assert (found.logs["m"].first_index, found.logs["m"].next_index) == (3, 4)


def test_a_log_that_was_deleted_again_goes_on_behind_both(client: Client) -> None:
    """Its entries are never numbered twice."""
    thread = client.thread("deleted-twice")
    for count in (2, 3):
        state = thread.hydrate()
        state.logs["m"].extend(entries(count))
        thread.save(state)
        del state.logs["m"]
        thread.save(state)
    assert thread.hydrate().logs["m"].next_index == 5
    old = thread.hydrate(version=2)
    assert old.logs["m"].next_index == 2


def test_many_deleted_logs_come_in_pages(client: Client) -> None:
    """Their names may be larger than an answer."""
    thread = client.thread("deleted-many")
    state = thread.hydrate()
    names = [f"{number:04}" + "x" * 1000 for number in range(4000)]
    for name in names:
        state.logs[name].append("x")
    thread.save(state)
    for name in names:
        del state.logs[name]
    thread.save(state)
    found = thread.hydrate()
    assert not found.logs
    assert {found.logs[name].next_index for name in names} == {1}


def test_what_a_saved_state_says_of_them_is_ignored(client: Client) -> None:
    """A program in another language may send back what it has read."""
    thread = client.thread("deleted-sent-back")
    state = thread.hydrate()
    state.logs["m"].extend(entries(2))
    thread.save(state)
    del state.logs["m"]
    thread.save(state)
    with grpc.insecure_channel(client.target) as channel:
        wire = CheckpointServiceStub(channel)  # type: ignore[no-untyped-call]
        whole = wire.Hydrate(HydrateRequest(namespace="default", thread="deleted-sent-back")).state
        assert dict(whole.retired_logs) == {"m": 2}
        whole.retired_logs["m"] = 9
        whole.retired_logs["never"] = 7
        save = SaveRequest(namespace="default", thread="deleted-sent-back", state=whole)
        save.overwrite, save.request_id = True, "back"
        wire.Save(save)
        whole = wire.Hydrate(HydrateRequest(namespace="default", thread="deleted-sent-back")).state
    assert dict(whole.retired_logs) == {"m": 2}
