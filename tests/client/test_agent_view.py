"""The danger: a typed view that sends more than what changed, loses a change, or lets a blob go that only it names."""

import subprocess
import sys

import pytest

from stateward import Blob, State, values
from stateward.agent import AgentState, ContentPart, Goal, ModelParameters, PlanStep, StepStatus, Todo


@pytest.fixture(scope="module")
def daemon(real_daemon):
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return real_daemon


@pytest.fixture
def thread(daemon, open_client, name):
    return open_client(daemon.target, namespace=name).thread("run")


def fill(agent):
    agent.goal = "A room in Paris"
    agent.goal.constraints.append("below 150 €")
    agent.summary = "Nothing yet"
    agent.model = ModelParameters(name="m", version="2026-01", temperature=0.2, seed=7, max_tokens=500)
    for number in range(100):
        agent.plan.add(f"Look at hotel number {number} and write down its price", depends_on=["1"] if number else ())
    agent.todos.add("ask for a receipt")
    agent.messages.add("user", "A room in Paris, please", ContentPart(json='{"city":"Paris"}'))
    agent.decisions.add("Lutetia", reason="cheapest", alternatives=["Le Bristol"])
    agent.facts.add("It has rooms", source="search", confidence=0.9)
    call = agent.tool_calls.begin("search", {"city": "Paris"}, id="c1")
    agent.messages.add("assistant", tool_calls=[call])


def test_all_of_it_comes_back(thread):
    """What the view wrote is there after a hydrate, equal message by message."""
    agent = AgentState(thread.hydrate())
    fill(agent)
    wrote = [agent.goal, agent.summary, agent.model, *agent.plan, *agent.todos]
    logs = [agent.messages, agent.decisions, agent.facts, agent.tool_calls]
    wrote += [entry for log in logs for entry in log]
    thread.save(agent.state, step=1)
    found = AgentState(thread.hydrate())
    read = [found.goal, found.summary, found.model, *found.plan, *found.todos]
    read += [entry for log in (found.messages, found.decisions, found.facts, found.tool_calls) for entry in log]
    assert read == wrote
    assert (found.model.seed, found.plan["7"].depends_on, found.facts[0].confidence) == (7, ["1"], 0.9)
    assert found.goal.constraints == ["below 150 €"]


def test_one_step_is_one_small_edit(thread):
    """The status of one step of a hundred is one edit of some dozens of bytes, whether set or edited in place."""
    agent = AgentState(thread.hydrate())
    fill(agent)
    thread.save(agent.state)
    agent.plan.set_status("50", "done", "too dear")
    [edit] = agent.state._collect().diff.edits
    assert edit.set_slot.slot == "agent/plan/50"
    assert edit.ByteSize() < 220
    thread.save(agent.state)
    agent.plan["51"].status = StepStatus.STEP_STATUS_SKIPPED
    assert thread.save(agent.state).edit_bytes < 220
    statuses = [step.status for step in AgentState(thread.hydrate()).plan][48:52]
    assert statuses == [1, StepStatus.STEP_STATUS_DONE, StepStatus.STEP_STATUS_SKIPPED, 1]


def test_appends_and_outcomes_send_only_themselves(thread):
    """A message and a decision are appended, and an outcome replaces its one entry."""
    agent = AgentState(thread.hydrate())
    fill(agent)
    thread.save(agent.state)
    agent.messages.add("user", "And?")
    agent.decisions.add("wait")
    agent.tool_calls.finish("c1", {"hotels": ["Lutetia"]})
    kinds = [(edit.WhichOneof("edit"), edit.ByteSize() < 250) for edit in agent.state._collect().diff.edits]
    assert kinds == [("append", True), ("append", True), ("replace_entry", True)]
    thread.save(agent.state)
    found = AgentState(thread.hydrate())
    assert found.tool_calls.result("c1") == {"hotels": ["Lutetia"]}
    assert found.tool_calls.unfinished() == []
    assert not found.state._collect().diff.edits


def test_a_result_that_is_a_blob_stays_named(thread):
    """A blob lies in a slot of its own, where the daemon sees it: one inside a message would be swept."""
    agent = AgentState(thread.hydrate())
    blob = thread.blobs.write(b"picture" * 1000, media_type="image/png")
    call = agent.tool_calls.begin("paint")
    agent.tool_calls.finish(call, blob)
    thread.save(agent.state)
    found = AgentState(thread.hydrate())
    result = found.tool_calls.result(call.id)
    assert isinstance(result, Blob)
    assert thread.blobs.read(result) == b"picture" * 1000
    assert f"agent/results/{call.id}" in found.state.slots


def test_it_is_readable_without_its_import():
    """A program that knows nothing of the types, such as `stateward show`, reads them as messages, not as bytes."""
    wrote = values.encode(Goal(text="Paris"), "")
    code = (
        "import sys; from stateward import values; from stateward.v1.state_pb2 import Value; "
        "assert 'stateward.agent' not in sys.modules; "
        "print(values.decode(Value.FromString(bytes.fromhex(sys.argv[1])), '').text)"
    )
    command = [sys.executable, "-c", code, wrote.SerializeToString().hex()]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "Paris\n"


def test_outcomes_of_calls():
    """Results of every kind, failures, and what is not there."""
    calls = AgentState(State()).tool_calls
    first, second, third = calls.begin("a"), calls.begin("b", [1]), calls.begin("c", idempotency_key="k")
    assert first.idempotency_key == first.id != second.id
    assert third.idempotency_key == "k"
    calls.finish(first)
    calls.fail(second, "no network")
    assert calls.result(first) is None
    assert calls.result(third) is None
    with pytest.raises(RuntimeError, match="no network"):
        calls.result(second)
    assert calls.unfinished() == [third]
    with pytest.raises(KeyError, match="nothing"):
        calls.finish("nothing", 1)


def test_plans_are_edited_as_lists_with_ids():
    """Order, removal, replacement, dependencies; ids are unique."""
    agent = AgentState(State())
    agent.plan.add("a")
    agent.plan.add("b", depends_on=["1"])
    agent.plan.add("c", id="extra", depends_on=["2"])
    assert agent.plan.ids() == ["1", "2", "extra"]
    assert [step.id for step in agent.plan.ready()] == ["1"]
    agent.plan.set_status("1", "skipped")
    assert [step.id for step in agent.plan.ready()] == ["2"]
    del agent.plan["1"]
    assert agent.plan.add("d").id == "3"
    with pytest.raises(ValueError, match="already"):
        agent.plan.add("e", id="extra")
    with pytest.raises(ValueError, match="in_progress"):
        agent.plan.set_status("2", "finished")
    with pytest.raises(KeyError):
        agent.plan["1"]
    agent.plan = [PlanStep(id="3", text="d"), PlanStep(id="9", text="n")]
    assert [step.text for step in agent.plan] == ["d", "n"]
    assert sorted(agent.state.slots) == ["agent/plan", "agent/plan/3", "agent/plan/9"]
    with pytest.raises(ValueError, match="needs its own id"):
        agent.todos = [Todo(text="no id")]


def test_what_is_of_another_type_is_said():
    """A slot or entry that somebody else filled is a TypeError that names it, and nothing is overwritten."""
    state = State()
    state.slots["agent/goal"], state.slots["agent/plan"] = {"city": "Paris"}, ["a"]
    state.logs["messages"].append({"role": "user"})
    agent = AgentState(state)
    with pytest.raises(TypeError, match=r"slots.agent/goal holds a dict"):
        agent.goal  # noqa: B018
    with pytest.raises(TypeError, match=r"slots.agent/plan"):
        agent.plan.add("b")
    with pytest.raises(TypeError, match=r"logs.messages\[0\]"):
        list(agent.messages)
    with pytest.raises(ValueError, match="0 to 1"):
        agent.facts.add("x", confidence=2)
    agent.goal = None
    assert agent.goal is None
    assert "agent/goal" not in state.slots
