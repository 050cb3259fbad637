"""The danger: what a save that lost a race did is lost, or lands where its caller does not look for it."""

import pytest

from stateward.errors import LeaseHeld, VersionMismatch


@pytest.fixture
def thread(real_daemon, open_client, name):
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    thread = open_client(real_daemon.target).thread(name)
    thread.append("l", "one")
    return thread


@pytest.mark.parametrize("named", ["", "mine"])
def test_who_lost_a_race_goes_on_with_a_branch(thread, named):
    """The checkpoint names the branch, and the state goes on there; the handle of main does not take it by mistake."""
    state = thread.hydrate()
    thread.append("l", "theirs")
    state.logs["l"].append("ours")
    made = thread.save(state, on_mismatch="fork", fork_branch=named)
    assert (made.version, made.parent_version, made.branch) == (3, 1, named or "main-fork-3")
    assert thread.checkpoints.get(3).branch == made.branch
    state.logs["l"].append("more")
    with pytest.raises(ValueError, match="to continue on another branch"):
        thread.save(state)
    fork = thread.branch(made.branch)
    fork.save(state)
    assert list(fork.hydrate().logs["l"]) == ["one", "ours", "more"]
    assert list(thread.hydrate().logs["l"]) == ["one", "theirs"]


def test_who_lost_no_race_stays(thread):
    """The head is the expected one; without "fork" the loser is told."""
    state, late = thread.hydrate(), thread.hydrate()
    state.logs["l"].append("ours")
    assert thread.save(state, on_mismatch="fork").branch == "main"
    late.logs["l"].append("late")
    with pytest.raises(VersionMismatch):
        thread.save(late, on_mismatch="fail")
    with pytest.raises(ValueError, match="fail, fork"):
        thread.save(late, on_mismatch="merge")


def test_a_lost_lock_guards(thread, real_daemon, open_client, name):
    """A save under a lock fails once another client took the lock."""
    client = open_client(real_daemon.target)
    state = thread.hydrate()
    with client.lock(name) as lock:
        thread.save(state, guard=lock)
        with open_client(real_daemon.target).lock(name, take_over=True), pytest.raises(LeaseHeld):
            thread.save(state, guard=lock)
    assert thread.checkpoints.get().version == 2


def test_writers_take_neither(thread):
    """A writer has one branch, and a lease of its own."""
    state = thread.hydrate()
    with thread.writer() as writer, pytest.raises(TypeError, match="on_mismatch"):
        writer.save(state, on_mismatch="fork")
