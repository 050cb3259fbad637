"""The danger: a state of a list is not what a hydrate of its version returns."""

import pytest

from stateward import Effect
from stateward._operations import unfolding
from stateward.v1.checkpoint_service_pb2 import CheckpointContent, ListCheckpointsResponse


def content(state):
    """All that a state says of its version."""
    slots = {name: state.slots[name] for name in state.slots}
    logs = {name: (log.first_index, log.rewritten_version, list(log)) for name, log in state.logs.items()}
    return state.checkpoint, state.partial, state.pinned, state.origin, slots, logs, state.effects


@pytest.fixture
def thread(real_daemon, open_client, name):
    """Twelve versions: a log that grows and is trimmed, slots that come, change and go, and effects."""
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    thread = open_client(real_daemon.target, ephemeral=("own",)).thread(name)
    state = thread.hydrate()
    for number in range(12):
        state.logs["messages"].append({"n": number, "text": "x" * 300})
        state.slots["plan"] = {"step": number, "text": "y" * 500}
        state.slots[f"only {number}"] = number
        if number % 5 == 4:
            state.logs["messages"].trim(keep_last=2)
            del state.slots[f"only {number - 1}"]
        made = [Effect("k", number, anchor=f"c{number}")] if number % 2 else ()
        thread.save(state, checkpoint_id=f"c{number}", effects=made, labels={"odd": str(number % 2)})
    return thread


def test_they_are_those_of_a_hydrate(thread):
    """Newest first, over several pages, whole or in part, with effects, and only those that a filter leaves."""
    for options, filters in (
        ({}, {}),
        ({"effects": True}, {"labels": {"odd": "1"}}),
        ({"slots": ["plan"], "logs": {"messages": 2}}, {"page_size": 5, "before": 9}),
    ):
        found = list(thread.checkpoints.states(**options, **filters))
        wanted = list(thread.checkpoints.list(**filters))
        assert [state.checkpoint for state in found] == wanted
        for state in found:
            assert content(state) == content(thread.hydrate(state.version, **options))
    assert sum(len(state.effects) for state in thread.checkpoints.states(effects=True)) == 6


def test_a_history_has_effects(thread):
    """Of each version its own, in both directions; none if they are not asked for."""
    for newest_first in (False, True):
        for checkpoint, _, _ in (found := list(thread.history(newest_first=newest_first, effects=True))):
            assert checkpoint.checkpoint_id
        assert all(each.effects == tuple(thread.effects.list(each.checkpoint.checkpoint_id)) for each in found)
        assert sum(len(each.effects) for each in found) == 6
    assert not any(each.effects for each in thread.history())


def test_each_is_a_state_of_its_own(thread):
    """A change of one does not show in another, and a later hydrate builds on it as on any other."""
    newest, older, *_ = list(thread.checkpoints.states())
    newest.logs["messages"][0]["text"] = "changed"
    newest.slots["plan"]["step"] = "changed"
    assert content(older) == content(thread.hydrate(older.version))
    assert dict(thread.hydrate(since=older).slots) == dict(thread.hydrate().slots)


def test_what_the_daemon_leaves_out_is_read_apart(thread, monkeypatch):
    """States and effects that are too large for a page."""

    def bare(page):
        left_out = [CheckpointContent(state_omitted=True, effects_omitted=True)] * len(page.checkpoints)
        return unfold(ListCheckpointsResponse(checkpoints=page.checkpoints, contents=left_out))

    wanted = [content(each) for each in thread.checkpoints.states(effects=True, slots=["plan"])]
    unfold = unfolding.unfold
    monkeypatch.setattr(unfolding, "unfold", bare)
    assert [content(each) for each in thread.checkpoints.states(effects=True, slots=["plan"])] == wanted
