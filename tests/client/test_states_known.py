"""The danger: a state that is built on an earlier one differs from what a whole read gives, or is read whole each
time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.client.test_state_model import EDITS, edit

from stateward import Client, State
from stateward.testing import run_daemon

COUNT = itertools.count()
SAVE = st.just(("save", "a", 0))
FILLING = "f" * 100_000  # so that the changes are always less than the state


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with run_daemon(sweep_interval=0) as daemon, daemon.client() as opened:
        yield opened


def content(state: State) -> object:
    """All that a state holds, as it is stored."""
    slots = {name: state.slots.raw(name) for name in state.slots}
    logs = {
        name: (log.first_index, log.rewritten_version, [log.raw(place) for place in range(len(log))])
        for name, log in state.logs.items()
    }
    return state.version, state.digest, state.schema_version, state.partial, slots, logs


class World:
    """A state that is edited, what it should hold, and every state of before."""

    def __init__(self) -> None:
        self.state, self.slots, self.logs = State(), {}, {}
        self.olds: list[State] = []


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(EDITS, SAVE), min_size=8, max_size=30), st.randoms(use_true_random=False))
def test_it_is_the_same_as_reading_everything(client: Client, edits: list[tuple[str, str, int]], dice) -> None:
    """From a state of any earlier moment, saved or only read, with changes of its own that were never saved."""
    thread, world = client.thread(f"same-{next(COUNT)}"), World()
    world.state = thread.hydrate()
    world.state.slots["filling"] = FILLING
    for name in "ab":
        edit(world, "append", name, 0)
        edit(world, "append", name, 1)
    thread.save(world.state)
    for kind, name, n in [*edits, ("save", "a", 0)]:
        if kind not in ("save", "hydrate", "tail"):
            edit(world, kind, name, n)
            continue
        thread.save(world.state)
        whole = content(thread.hydrate())
        for known in [world.state, *dice.sample(world.olds, min(2, len(world.olds)))]:
            assert content(thread.hydrate(since=known)) == whole
        world.olds.append(thread.hydrate(since=world.state))
        if kind != "save":
            world.state = thread.hydrate()


def test_only_what_changed_is_read(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that grew, a slot that was set and one that went: the other 100 KB are not sent again, and are shared."""
    thread, writer = client.thread("reads-less"), client.thread("reads-less")
    state = thread.hydrate()
    state.slots.update({"filling": FILLING, "goal": "Paris", "gone": 1})
    state.logs["messages"].extend(["one", "two"])
    thread.save(state)
    other = writer.hydrate()
    other.logs["messages"].append("three")
    other.slots["goal"] = "Rome"
    del other.slots["gone"]
    writer.save(other)
    state.slots["unsaved"] = "not taken over"
    found = thread.hydrate(since=state)
    assert found.slots._stored["filling"] is state.slots._stored["filling"]
    assert dict(found.slots) == {"filling": FILLING, "goal": "Rome"}
    assert found.logs["messages"] == ["one", "two", "three"]
    assert (found.partial, found.version) == (False, 2)
    again = thread.hydrate(since=found)
    assert content(again) == content(found)
    again.logs["messages"].append("four")
    thread.save(again)
    assert list(found.logs["messages"]) == ["one", "two", "three"]  # states do not share what changes


def test_a_state_that_is_no_base_is_read_anew(client: Client) -> None:
    """A partial one, one of another thread, one whose log was trimmed and not saved, one of a deleted thread."""
    thread = client.thread("no-base")
    state = thread.hydrate()
    state.logs["messages"].extend(["one", "two"])
    state.slots["goal"] = "Paris"
    thread.save(state)
    whole = content(thread.hydrate())
    other = client.thread("other-base")
    foreign = other.hydrate()
    foreign.slots["goal"] = "Rome"
    other.save(foreign)
    trimmed = thread.hydrate()
    trimmed.logs["messages"].pop()
    for known in (State(), thread.hydrate(logs={"messages": 1}), foreign, trimmed):
        assert content(thread.hydrate(since=known)) == whole
    old = thread.hydrate()
    thread.delete()
    new = thread.hydrate()
    new.slots["goal"] = "Berlin"
    thread.save(new)
    assert content(thread.hydrate(since=old)) == content(thread.hydrate())
    with pytest.raises(TypeError, match="since"):
        thread.hydrate(since=new, slots=["goal"])


def test_an_ephemeral_slot_of_others_is_no_part_of_the_base(client: Client) -> None:
    """A handle that keeps a slot out has not all of the version, so another handle reads everything."""
    thread = client.thread("ephemeral-base")
    state = thread.hydrate()
    state.slots.update({"cache": 1, "goal": "Paris"})
    thread.save(state)
    with Client(client.target, ephemeral=("cache",)) as keeping:
        mine = keeping.thread("ephemeral-base").hydrate()
    assert set(mine.slots) == {"goal"}
    assert set(thread.hydrate(since=mine).slots) == {"cache", "goal"}


def test_a_log_whose_indexes_are_guesses_is_read_anew(client: Client) -> None:
    """A log of this name was removed before the state was read, so its entries continue the old indexes."""
    thread = client.thread("guessed")
    state = thread.hydrate()
    state.logs["messages"].extend(["one", "two"])
    thread.save(state)
    del state.logs["messages"]
    thread.save(state)
    state = thread.hydrate()
    state.logs["messages"].append("three")
    thread.save(state)
    found = thread.hydrate(since=state)
    assert content(found) == content(thread.hydrate())
    assert found.logs["messages"].first_index == 2
