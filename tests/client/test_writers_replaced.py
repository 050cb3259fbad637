"""The danger: who was replaced as a thread's writer goes on acting for it, or a writer stands in its own way."""

import time

import pytest

from stateward import Effect, LeaseHeld, VersionMismatch, Window
from stateward.errors import ServerUnavailable
from stateward.testing import run_daemon


@pytest.fixture(scope="module")
def daemon():
    """One that may be killed, as long as it is started again."""
    with run_daemon() as running:
        yield running


@pytest.fixture
def client(daemon, open_client, name):
    return open_client(daemon.target, holder=f"me-{name}")


@pytest.fixture
def thread(client, name):
    return client.thread(name)


@pytest.fixture
def other(daemon, name):
    """The same thread, for another agent."""
    with daemon.client(holder=f"other-{name}") as client:
        yield client.thread(name)


def test_a_replaced_writer_calls_no_tool(thread, other):
    """The writer's token goes with the other calls of its handle: they are refused once somebody else is the writer."""
    called = []
    with pytest.raises(LeaseHeld), thread.writer() as writer:  # noqa: PT012  the block is what ends
        writer.save(thread.hydrate())
        assert thread.effects.run("before", lambda: called.append("before")) is None
        with other.writer(take_over=True):
            with pytest.raises(LeaseHeld):
                thread.effects.run("pay", lambda: called.append("after"))
            with pytest.raises(LeaseHeld):
                thread.effects.put([Effect("e", 1)])
        writer.save(thread.hydrate())
    assert called == ["before"]
    assert thread.effects.run("pay", lambda: "as anybody") == "as anybody"


def test_what_a_handle_does_beside_its_writer(thread, client, name):
    """Other calls of the handle pass under the writer's lease; those of another handle have no token, and do not."""
    with thread.writer() as writer:
        state = thread.hydrate()
        writer.save(state)
        assert thread.effects.put([Effect("e", 1)]) == 1
        with thread.before("pay", state) as step:
            step.result = 1
        state.slots["n"] = 1
        thread.save(state)
        with thread.autosave(state) as auto:
            state.slots["n"] = 2
            auto.step()
        state.slots["n"] = 3
        assert thread.save(state, windows=[Window("l", keep_last=3)]).version == 5
        thread.append("l", 1)
        with pytest.raises(LeaseHeld):
            client.thread(name).append("l", 2)
        state = thread.hydrate()
        assert writer.save(state).version == 7
    client.thread(name).append("l", 2)
    assert thread.info().lease is None


def test_sends_after_saves_of_the_handle(thread):
    """Versions that other calls made, also on other branches, do not upset what is sent after them."""
    with thread.writer() as writer:
        state = thread.hydrate()
        for number in range(3):
            thread.save(state)
            if number:
                side = thread.branch(f"aside-{number}", at=state.version)
                side.save(thread.hydrate(at=state.version))
            handles = []
            for _ in range(4):
                state.logs["l"].append(number)
                handles.append(writer.send(state))
            writer.flush()
            assert state.version == handles[-1].result().version
    assert thread.hydrate().version == 17
    assert len(thread.hydrate().logs["l"]) == 12


def test_handed_over_by_a_writer(thread, daemon, name):
    """A handoff in a writer's block gives the writer's lease back, and leaving the block is no error."""
    with thread.writer() as writer:
        state = thread.hydrate()
        state.slots["draft"] = 1
        writer.save(state)
        thread.hand_over("editor", "done", state=state)
        with daemon.client(holder=f"other-{name}") as client:
            assert client.take_handoff(name, wait=0).handoff.summary == "done"
        with pytest.raises(LeaseHeld):
            writer.save(thread.hydrate())


def test_leases_in_one_another(thread, other):
    """What was held before is held again, in whatever order they end; one that was lost lets its handle not write."""
    outer, inner = thread.lease(), thread.writer(take_over=True)
    with outer:
        with inner as writer:
            writer.save(thread.hydrate())
            thread.append("l", 1)
        with pytest.raises(LeaseHeld):
            thread.append("l", 2)
    thread.append("l", 3)
    outer.__enter__()
    inner = thread.lease(take_over=True)
    inner.__enter__()
    outer.release()
    thread.append("l", 4)
    inner.release()
    other.append("l", 5)
    thread.append("l", 6)
    assert list(thread.hydrate().logs["l"]) == [1, 3, 4, 5, 6]


def come_back(daemon, thread):
    """Starts the daemon; returns when the client has found it, which gRPC may take a moment for."""
    daemon.start()
    while True:
        try:
            return thread.hydrate()
        except ServerUnavailable:
            continue


# -- the daemon is away ------------------------------------------------------------------------------------------------


def test_a_save_during_an_outage(daemon, open_client, name):
    """It takes the time that it is tried for, once; when the daemon is back the next one passes."""
    thread = open_client(daemon.target, holder=f"me-{name}", retry_timeout=0.4).thread(name)
    with thread.writer() as writer:
        state = thread.hydrate()
        writer.save(state)
        daemon.kill()
        state.slots["n"] = 1
        for _ in range(2):
            begun = time.monotonic()
            with pytest.raises(ServerUnavailable):
                writer.save(state)
            assert time.monotonic() - begun < 5
        come_back(daemon, thread)
        writer.flush()
        assert writer.save(state).version == 2
        state.slots["n"] = 2
        writer.send(state)
        writer.flush()
    assert thread.hydrate().slots["n"] == 2


def test_sends_during_an_outage(daemon, open_client, name):
    """Frames that were sent on and given up are told until a reset: their state fits no version any more."""
    thread = open_client(daemon.target, holder=f"me-{name}", retry_timeout=0.4).thread(name)
    with thread.writer() as writer:
        state = thread.hydrate()
        writer.save(state)
        daemon.kill()
        state.slots["n"] = 2
        writer.send(state)
        with pytest.raises(ServerUnavailable):
            writer.flush()
        come_back(daemon, thread)
        with pytest.raises(ServerUnavailable):
            writer.save(state)
        state = writer.reset()
        assert "n" not in state.slots
        assert writer.save(state).version == 2


def test_replaced_during_an_outage(daemon, open_client, name, other):
    """Who finds another writer when the daemon is back has lost the lease for good."""
    thread = open_client(daemon.target, holder=f"me-{name}", retry_timeout=0.4).thread(name)
    with pytest.raises(LeaseHeld), thread.writer() as writer:  # noqa: PT012  the block is what ends
        state = thread.hydrate()
        writer.save(state)
        daemon.kill()
        with pytest.raises(ServerUnavailable):
            writer.save(state)
        come_back(daemon, thread)
        with other.writer(take_over=True) as taker:
            taker.save(other.hydrate())
            for _ in range(2):
                with pytest.raises(LeaseHeld):
                    writer.save(state)
        writer.flush()
    with pytest.raises(VersionMismatch):
        thread.save(state)
