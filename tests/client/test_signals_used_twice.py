"""The danger: an answer that an agent uses twice, or never, because it was acknowledged too late or too early."""

from __future__ import annotations

import signal
import sys
from typing import Any

import pytest
from tests import warm

from stateward import Client, Effect, Status
from stateward.errors import VersionMismatch
from stateward.migrations import Migrations
from stateward.testing import run_daemon


@pytest.fixture
def server(real_daemon: Any) -> Any:
    """The real daemon only: the fake knows no signals."""
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return real_daemon


@pytest.fixture
def thread(client: Any, name: str) -> Any:
    """A thread whose question was answered with yes."""
    thread = client.thread(name)
    thread.ask(thread.hydrate(), "pay?", wait_id="first")
    thread.approve("yes")
    return thread


def names(thread: Any) -> list[str]:
    """The notes of the answers that wait."""
    return [each.payload for each in thread.signals.list()]


def test_the_next_save_acknowledges_it(thread: Any) -> None:
    """However often it is looked at, or not: the save that goes on from the question is done with the answer."""
    for _ in range(2):
        state = thread.hydrate()
        assert (state.answer.payload, state.answer.approved, state.answer.wait_id) == ("yes", True, "first")
    assert thread.hydrate(at=1).answer is None
    state = thread.hydrate()
    state.slots["paid"] = True
    thread.save(state)
    assert (state.answer, state.signals, names(thread)) == (None, (), [])
    assert thread.hydrate().answer is None
    state.slots["n"] = 1
    assert thread.save(state).version == 3


def test_a_save_that_fails_leaves_it(thread: Any) -> None:
    """The answer is there for who hydrates again, and for the same state."""
    state = thread.hydrate()
    thread.append("log", "a bystander")
    with pytest.raises(VersionMismatch):
        thread.save(state)
    assert (state.answer.payload, names(thread)) == ("yes", ["yes"])
    state = thread.hydrate()
    state.slots["bad"] = object()
    with pytest.raises(TypeError):
        thread.save(state)
    assert (state.answer.payload, names(thread)) == ("yes", ["yes"])
    del state.slots["bad"]
    thread.save(state)
    assert names(thread) == []


def test_of_two_agents_one_uses_it(thread: Any) -> None:
    """Both found the answer; one save is refused, and the other one acknowledges."""
    one, other = thread.hydrate(), thread.hydrate()
    thread.save(one)
    with pytest.raises(VersionMismatch):
        thread.save(other)
    assert thread.hydrate().answer is None


def test_what_came_after_the_state_was_read_stays(client: Any, name: str) -> None:
    """A save acknowledges what its state has, and nothing that its agent cannot have seen."""
    thread = client.thread(name)
    thread.ask(thread.hydrate(), "pay?")
    state = thread.hydrate()
    assert state.answer is None
    thread.approve("late")
    thread.signals.send("note", "other")
    thread.save(state)
    assert names(thread) == ["late", "other"]


def test_saves_that_keep_the_question_keep_the_answer(thread: Any) -> None:
    """Appends, a migration, an autosave between two steps, and a save with the same wait id."""
    thread.append("log", 1)
    state = thread.hydrate()
    with thread.autosave(state):
        state.slots["half"] = 1
    assert state.version == 3
    assert state.answer.payload == "yes"
    thread.save(state, status="waiting", wait_id="first", question=state.checkpoint.question)
    assert state.answer.payload == "yes"
    assert thread.hydrate().answer.payload == "yes"


def test_a_migration_keeps_the_answer(client: Any, name: str) -> None:
    """It says what the version before said, and leaves the answer to the agent."""
    migrations = Migrations(current=2)
    migrations.step(1, 2)(lambda state: state.slots.update(new=True))
    old = client.thread(name)
    old.ask(old.hydrate(), "pay?", schema_version=1)
    old.approve("yes")
    thread = client.thread(name, migrations=migrations)
    assert thread.hydrate().answer.payload == "yes"
    thread.migrate()
    state = thread.hydrate()
    assert (state.version, state.answer.payload) == (2, "yes")


@pytest.mark.parametrize("wait_id", ["", "first"])
def test_an_old_answer_is_none_to_a_new_question(thread: Any, wait_id: str) -> None:
    """Asking again is done with the answer that was found, also under the same wait id."""
    state = thread.hydrate()
    assert state.answer is not None
    thread.ask(state, "pay 1,000 more?", wait_id=wait_id)
    assert (state.answer, thread.hydrate().answer, names(thread)) == (None, None, [])
    thread.reject("no")
    assert thread.hydrate().answer.payload == "no"


def test_a_step_without_changes_is_done_with_it(thread: Any) -> None:
    """An agent that has nothing to keep of a no does not find it again at each start."""
    state = thread.hydrate()
    with thread.autosave(state) as auto:
        auto.step()
    assert (state.version, names(thread)) == (2, [])
    assert thread.checkpoints.get().status == Status.RUNNING


def test_a_step_that_is_saved_later(thread: Any) -> None:
    """A step that is only marked went on from the question: the save at the end acknowledges."""
    state = thread.hydrate()
    with thread.autosave(state, after_each_step=False) as auto:
        state.slots["paid"] = True
        auto.step()
        assert names(thread) == ["yes"]
    assert (state.version, names(thread)) == (2, [])


def test_every_other_way_to_save(client: Any, name: str) -> None:
    """update, save_all, finish, handing over and a whole state acknowledge as save does."""

    def asked(kind: str) -> Any:
        thread = client.thread(f"{name}-{kind}")
        thread.ask(thread.hydrate(), "pay?")
        thread.approve("yes")
        return thread

    updated = asked("update")
    updated.update(lambda state: state.slots.update(paid=state.answer.approved))
    one, other = asked("one"), asked("other")
    client.save_all([one.prepare(one.hydrate()), other.prepare(other.hydrate())])
    finished, whole, given = asked("finish"), asked("whole"), asked("given")
    finished.finish(finished.hydrate())
    whole.save(whole.hydrate(), overwrite=True)
    given.save(given.hydrate(), ack=given.signals.list())
    left = asked("left")
    left.hand_over("booker", "it is yours", state=left.hydrate())
    for thread in (updated, one, other, finished, whole, given, left):
        assert names(thread) == [], thread.name
    assert updated.hydrate().slots["paid"] is True


def test_a_branch_leaves_it_alone(client: Any, thread: Any) -> None:
    """What is tried on a branch ends no question of main."""
    side = thread.branch("side", at=1)
    state = side.hydrate()
    side.save(state)
    state.slots["tried"] = 1
    side.save(state)
    assert thread.hydrate().answer.payload == "yes"


def test_a_copy_for_another_thread_leaves_it_alone(client: Any, thread: Any, name: str) -> None:
    """A state that is written over another thread is done with nothing."""
    state = thread.hydrate()
    client.thread(f"{name}-copy").save(state, overwrite=True)
    assert names(thread) == ["yes"]


def test_a_writer_acknowledges_once(server: Any, thread: Any, client: Any, name: str) -> None:
    """The first frame is done with the answer; where it is refused, the state to go on from has the answer again."""
    with Client(server.target, namespace=client.namespace) as blocking:
        here = blocking.thread(name)
        state = here.hydrate()
        with here.writer() as writer:
            state.slots["paid"] = 1
            writer.send(state, checkpoint_id="x", labels={"": "no such label"})
            assert state.answer is None
            with pytest.raises(Exception, match="label"):
                writer.flush()
            state = writer.reset()
            assert state.answer.payload == "yes"
            for number in range(3):
                state.slots["paid"] = number
                writer.send(state)
            writer.flush()
        assert (state.version, names(here)) == (4, [])


AGENT = """
import os, signal, sys
from stateward import Client
target, name, point = sys.argv[1:]
with Client(target, namespace=name) as client:
    thread = client.thread(name)
    state = thread.hydrate()
    if state.answer is None:
        sys.exit(3)
    state.slots["paid"] = state.slots.get("paid", 0) + 1
    if point == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    thread.save(state)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_kills_around_the_save(name: str) -> None:
    """Agent and daemon are killed after the answer, before the save and after it: it is used once, and is gone."""
    with run_daemon() as daemon, Client(daemon.target, namespace=name) as client:

        def start(point: str) -> int:
            command = [sys.executable, "-c", AGENT, daemon.target, name, point]
            return warm.run(command, timeout=60).returncode

        def crash() -> None:
            daemon.kill()
            daemon.start()

        thread = client.thread(name)
        thread.ask(thread.hydrate(), "pay?")
        thread.approve("yes")
        crash()
        for point in ("before", "before", "after"):
            assert start(point) == -signal.SIGKILL
            crash()
        assert start("after") == 3
        assert (thread.hydrate().slots["paid"], names(thread)) == (1, [])


def test_a_question_without_acknowledgements(thread: Any) -> None:
    """None stands for no acknowledgements, as in `save`, and the answer to the question before ends all the same."""
    state = thread.hydrate()
    assert state.answer is not None
    assert thread.ask(state, "again?", wait_id="second", ack=None) == "second"
    assert names(thread) == []


# -- bystanders --------------------------------------------------------------------------------------------------------


def test_a_bystander_updates_a_thread_that_was_answered(server: Any, client: Any, thread: Any) -> None:
    """Its update reads no answer, so question and answer are there for the agent, also where it had to try again."""
    tries: list[int] = []

    def note(state: Any) -> None:
        if not tries:
            blocking.thread(thread.name).append("log", "another bystander")
        tries.append(state.version)
        state.slots["seen"] = True

    with Client(server.target, namespace=client.namespace) as blocking:
        thread.update(note)
    head, state = thread.checkpoints.get(), thread.hydrate()
    assert (tries, head.status, head.wait_id, head.question.prompt) == ([1, 2], Status.WAITING, "first", "pay?")
    assert (state.answer.payload, state.slots["seen"]) == ("yes", True)


def test_a_bystander_updates_a_thread_that_waits(client: Any, name: str) -> None:
    """The question can still be answered; who looks for an answer that is not there goes on waiting, too."""
    thread = client.thread(name)
    wait_id = thread.ask(thread.hydrate(), "pay?", reason="too much")
    thread.update(lambda state: state.slots.update(seen=True))
    thread.update(lambda state: state.slots.update(paid=True) if state.answer else None)
    head = thread.checkpoints.get()
    assert (head.version, head.status, head.wait_id, head.status_detail) == (3, Status.WAITING, wait_id, "too much")
    thread.approve("yes")
    assert thread.hydrate().answer.payload == "yes"


@pytest.mark.parametrize("how", ["read", "acknowledged", "status"])
def test_the_agent_goes_on_with_an_update(thread: Any, how: str) -> None:
    """It reads the answer, or names the one that it waited for, or says how the thread goes on."""
    if how == "read":
        thread.update(lambda state: state.slots.update(paid=state.answer.approved))
    elif how == "acknowledged":
        answer = thread.wait_for_answer()
        thread.update(lambda state: state.slots.update(paid=answer.approved), ack=[answer])
    else:
        thread.update(lambda state: state.slots.update(paid=True), status="completed")
    head = thread.checkpoints.get()
    assert (head.status, head.wait_id) == (Status.COMPLETED if how == "status" else Status.RUNNING, "")
    assert (thread.hydrate().slots["paid"], names(thread)) == (True, [])


def test_a_bystander_leaves_a_handoff_open(client: Any, name: str) -> None:
    """What waits for another agent still waits for it after an update."""
    thread = client.thread(name)
    thread.hand_over("booker", "it is yours")
    thread.update(lambda state: state.slots.update(seen=True))
    assert client.take_handoff(name, taker="booker").handoff.summary == "it is yours"


def test_options_that_can_be_read_once(server: Any, client: Any, name: str) -> None:
    """A try after a mismatch acknowledges and records what the first one would have."""
    thread = client.thread(name)
    thread.append("log", "first")
    signals = [thread.signals.send("note", number) for number in range(2)]
    tries: list[int] = []

    def change(state: Any) -> None:
        if not tries:
            blocking.thread(name).append("log", "somebody else")
        tries.append(state.version)

    with Client(server.target, namespace=client.namespace) as blocking:
        thread.update(change, ack=iter(signals), effects=iter([Effect("paid", 1)]))
    assert (tries, names(thread), [each.key for each in thread.effects.list()]) == ([1, 2], [], ["paid"])
