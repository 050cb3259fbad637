"""The danger: an agent that asks people and tools again, because the answers it had are not in its prompt."""

import pytest

from stateward import State
from stateward.agent import AgentState, ContentPart, build_resume_context
from stateward.signals import Signal
from stateward.v1 import signal_pb2, state_pb2


@pytest.fixture(scope="module")
def daemon(real_daemon):
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return real_daemon


@pytest.fixture
def client(daemon, open_client, name):
    return open_client(daemon.target, namespace=name)


def test_the_answer_of_a_person_is_in_the_prompt(client):
    """What waited when the state was hydrated is shown unless the caller says otherwise, and not once it is dealt
    with."""
    thread = client.thread("run")
    wait_id = thread.ask(thread.hydrate(), "ok?")
    client.thread("run").approve(wait_id, sender="ann")
    state = thread.hydrate()
    assert "## Pending signals\n\n- approve from ann" in build_resume_context(state, budget=4000)
    assert "Pending signals" not in build_resume_context(state, signals=[])
    other = build_resume_context(state, signals=[{"free": "form"}])
    assert '- {"free": "form"}' in other
    assert "approve" not in other
    thread.save(state, ack=state.signals)
    assert "Pending signals" not in build_resume_context(state)


def test_a_signal_that_cannot_be_decoded_breaks_no_prompt():
    """A payload that is not what its sender says is shown by its size."""
    state = State()
    payload = state_pb2.Value(media_type="application/json", data=b"{no")
    state.signals = (Signal.from_proto(signal_pb2.Signal(name="answer", payload=payload)),)
    assert "- answer: [3 bytes of application/json]" in build_resume_context(state)


def test_results_of_tools_are_in_the_prompt(client):
    """Results, errors, kept values and blobs of calls that are over, whether a message made the call or not."""
    thread = client.thread("run")
    agent = AgentState(thread.hydrate())
    calls = agent.tool_calls
    found = calls.begin("search", {"q": 1}, id="c1")
    agent.messages.add("assistant", "I search", tool_calls=[found])
    calls.finish(found, {"found": "RESULT-42"})
    calls.fail(calls.begin("mail", id="c2"), "no network\n## Goal")
    calls.finish(calls.begin("wait", id="c3"))
    calls.finish(calls.begin("paint", id="c4"), thread.blobs.write(b"picture" * 1000, media_type="image/png"))
    calls.begin("open", id="c5")
    thread.save(agent.state)
    state = thread.hydrate()
    section = build_resume_context(state).partition("## Recent tool results\n\n")[2]
    assert section.splitlines() == [
        '- search({"q": 1}): {"found": "RESULT-42"} (call c1)',
        "- mail(): failed: no network",
        "  ## Goal (call c2)",
        "- wait(): done, without a result (call c3)",
        "- paint(): [blob of 7000 bytes, image/png] (call c4)",
    ]
    assert not state.logs["tool_calls"]._watched, "the next save would compare them"
    partial = thread.hydrate(logs=["tool_calls"])
    assert "- paint(): [slot agent/results/c4] (call c4)" in build_resume_context(partial)


def test_a_result_is_shown_once():
    """Where the message that answers a call says the result, it is not shown again; where it only points to a slot, or
    was left out for its size, the result is."""
    agent = AgentState(State())
    calls = agent.tool_calls
    for id_, parts in [("c1", ["RESULT-1"]), ("c2", [ContentPart(slot="agent/results/c2")]), ("c3", ["x" * 9000])]:
        calls.finish(calls.begin("search", id=id_), f"RESULT-{id_[1:]}")
        agent.messages.add("tool", *parts, answers=id_)
    calls.finish(calls.begin("search", id="c4"), "RESULT-4")
    agent.state.logs["messages"].append({"role": "tool", "tool_call_id": "c4", "content": "RESULT-4"})
    text = build_resume_context(agent.state)
    assert [text.count(f"RESULT-{number}") for number in (1, 2, 3, 4)] == [1, 1, 1, 1]
    assert "- search(): RESULT-1" not in text
    assert "- search(): RESULT-4" not in text


def test_long_results_and_many_leave_room():
    """A long result is shortened and says so; messages and results take turns, so that neither starves the other."""
    agent = AgentState(State())
    for number in range(100):
        agent.tool_calls.finish(agent.tool_calls.begin("look", {"text": "a" * 2000}), f"{number:03}" + "r" * 5000)
        agent.messages.add("user", f"message {number:03} " + "m" * 300)
    text = build_resume_context(agent.state, 2000)
    assert "4,503 more characters" in text
    results, messages = text.count("- look("), text.count("- **user**")
    assert results > 2
    assert abs(results - messages) <= 1
    assert "099r" in text
    assert "message 099" in text
    assert f"{100 - messages} messages, {100 - results} tool results." in text
