"""The danger: a client counts the entries of a log from 0 that the daemon counts on, because it was deleted before."""

from __future__ import annotations

import random
from collections.abc import Iterator

import grpc
import pytest

from stateward import Client, State, Thread
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
    for each in (whole, since, thread.hydrate(logs={"m": None}), *list(thread.checkpoints.states())[:2], state):
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
    old = thread.hydrate(at=2)
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
        save.overwrite, save.options.request_id = True, "back"
        wire.Save(save)
        whole = wire.Hydrate(HydrateRequest(namespace="default", thread="deleted-sent-back")).state
    assert dict(whole.retired_logs) == {"m": 2}


def test_a_state_that_did_not_change_keeps_what_it_knows(client: Client) -> None:
    """Then the daemon sends nothing."""
    thread = client.thread("deleted-unchanged")
    state = thread.hydrate()
    state.logs["m"].extend(entries(3))
    thread.save(state)
    del state.logs["m"]
    thread.save(state)
    for known in (state, thread.hydrate()):
        again = thread.hydrate(since=known)
        assert again.logs["m"].next_index == 3
    again.logs["m"].append("a")
    thread.save(again)
    again.logs["m"][0] = "A"
    thread.save(again)
    assert list(thread.hydrate(since=again).logs["m"]) == ["A"]


def test_after_an_overwrite_nobody_knows_what_was_deleted_before(client: Client) -> None:
    """The version that it replaced may have deleted a log of which the state knows nothing."""
    thread = client.thread("deleted-overwritten")
    state = thread.hydrate()
    state.slots["begun"] = True
    thread.save(state)
    other = thread.hydrate()
    other.logs["m"].extend(entries(2))
    thread.save(other)
    del other.logs["m"]
    thread.save(other)
    thread.save(state, overwrite=True)
    state.logs["m"].extend(["a", "b"])
    thread.save(state)
    state.logs["m"][0] = "A"
    thread.save(state)
    found = thread.hydrate().logs["m"]
    assert (list(found), found.first_index) == (["A", "b"], 2)


def logs_of(state: State) -> object:
    return {
        name: (name in state.logs, list(log), log.first_index, log.next_index)
        for name, log in ((name, state.logs[name]) for name in "mnk")
    }


def change(state: State, dice: random.Random) -> None:
    name, kind = dice.choice("mnk"), dice.choice(["append", "append", "delete", "trim", "replace", "assign", "clear"])
    log = state.logs[name]
    if kind == "delete" and name in state.logs:
        del state.logs[name]
        if dice.random() < 0.5:
            state.logs[name].append("made again")
    elif kind == "trim":
        log.trim(keep_last=dice.randrange(3))
    elif kind == "replace" and len(log):
        log[dice.randrange(len(log))] = dice.random()
    elif kind == "assign":
        state.logs[name] = [dice.random() for _ in range(dice.randrange(4))]
    elif kind == "clear":
        log.clear()
    else:
        log.extend(dice.random() for _ in range(dice.randint(1, 3)))


def read(thread: Thread, state: State, known: State, dice: random.Random) -> State:
    """Reads the head in one of the ways there are, or saves a projection first."""
    kind = dice.choice(["fresh", "since", "since", "part", "overwrite"])
    if kind == "part":
        name = dice.choice("mnk")
        part = thread.hydrate(logs={name: dice.choice([None, 1, 3])})
        part.logs[name].append("part")
        thread.save(part)
        assert part.logs[name].next_index == thread.hydrate().logs[name].next_index
    elif kind == "overwrite":
        thread.save(thread.hydrate(at=dice.randint(1, state.version)), overwrite=True)
    return thread.hydrate(since=dice.choice([known, state]) if kind == "since" else None)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_done_all_ways_to_read_agree(client: Client, seed: int) -> None:
    """Saves, reads and overwrites in any order."""
    dice, thread = random.Random(seed), client.thread(f"deleted-random-{seed}")
    state = thread.hydrate()
    state.slots["begun"] = True
    thread.save(state)
    known = thread.hydrate()
    for _ in range(40):
        if dice.random() < 0.4:
            state = read(thread, state, known, dice)
            assert logs_of(state) == logs_of(thread.hydrate())
            known = thread.hydrate()
        change(state, dice)
        thread.save(state)
        found = thread.hydrate()
        assert {name: list(log) for name, log in state.logs.items()} == {n: list(log) for n, log in found.logs.items()}
        for name, log in state.logs.items():
            assert not log._numbered or log.next_index == found.logs[name].next_index
    for each in thread.checkpoints.states():
        assert logs_of(each) == logs_of(thread.hydrate(at=each.version))
