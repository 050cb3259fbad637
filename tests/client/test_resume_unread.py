"""The danger: an agent that pays again, or begins anew, because its state was read in part and did not say so."""

import pytest

from stateward import State
from stateward.agent import AgentState, PlanStep, build_resume_context


@pytest.fixture(scope="module")
def daemon(real_daemon):
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return real_daemon


@pytest.fixture
def thread(daemon, open_client, name):
    """A thread whose agent began to pay, and then made six calls that are over."""
    thread = open_client(daemon.target, namespace=name).thread("run")
    agent = AgentState(thread.hydrate())
    agent.goal = "Order the books"
    agent.summary = "Nothing yet"
    agent.plan.add("Pay")
    agent.plan.add("Write")
    agent.todos.add("Ask for a receipt")
    agent.messages.add("user", "Order them")
    agent.tool_calls.begin("pay", {"n": 1}, id="paid")
    for number in range(6):
        agent.tool_calls.finish(agent.tool_calls.begin("look", {"n": number}, id=f"look{number}"), number)
    thread.save(agent.state)
    return thread


def last_line(text):
    return text.strip().splitlines()[-1]


def test_unfinished_calls_that_were_not_read_are_said(thread):
    """Whether the log of calls was left out or only its end was read, the last line says that calls may be hidden."""
    without = build_resume_context(thread.hydrate(logs={"messages": 3}, slots=["agent/goal"]))
    assert "Unfinished tool calls" not in without
    assert "all unfinished tool calls (not read), " in last_line(without)
    assert "all tool results (not read)" in last_line(without)
    end = build_resume_context(thread.hydrate(logs={"messages": 3, "tool_calls": 2}, slots=["agent/goal"]))
    assert "unfinished tool calls before index 5 (not read)" in last_line(end)
    assert '- look({"n": 5}): 5 (call look5)' in end
    whole_log = build_resume_context(thread.hydrate(logs={"messages": 3, "tool_calls": None}, slots=["agent/goal"]))
    assert 'pay({"n": 1}): was begun, outcome unknown' in whole_log
    assert "tool" not in last_line(whole_log)


def test_slots_that_were_not_read_are_said(thread):
    """The last line names the goal, model, summary, plan and to-dos that a partial state does not have, also where
    only the order of the plan was read; a whole state that lacks them says nothing."""
    said = last_line(build_resume_context(thread.hydrate(logs=["messages", "tool_calls"])))
    for missing in ["goal", "model", "summary so far", "plan steps", "to-dos"]:
        assert f"{missing} (not read)" in said
    said = last_line(build_resume_context(thread.hydrate(slots=["agent/goal", "agent/plan", "agent/plan/2"])))
    assert "1 plan step (not read)" in said
    assert "goal" not in said
    whole = build_resume_context(thread.hydrate())
    assert "Left out" not in whole


def test_the_shortest_last_line_says_it_too(thread):
    """Where there is no room to name what was not read, the line still says that something was not."""
    state = thread.hydrate(slots=["agent/goal"])
    assert " items, and what was not read." in build_resume_context(state, 20)


def test_what_was_not_read_is_not_taken_for_what_is_not_set(thread):
    """Reading or emptying a slot that was not read is an error that names it; setting it anew is not."""
    agent = AgentState(thread.hydrate(logs=["messages"]))
    for read in (lambda: agent.goal, lambda: agent.summary, lambda: agent.model, agent.plan.ids, agent.todos.ids):
        with pytest.raises(ValueError, match=r"read in part, without slot 'agent/(goal|summary|model|plan|todos)'"):
            read()
    with pytest.raises(ValueError, match="without slot 'agent/goal'"):
        agent.goal = None
    assert repr(agent.plan) == "Plan(not read)"
    agent.goal = "Order other books"
    assert agent.goal.text == "Order other books"
    thread.save(agent.state)
    assert AgentState(thread.hydrate()).goal.text == "Order other books"


def test_a_plan_that_was_not_read_is_not_replaced(thread):
    """Nothing changes where the order, or a step that would have to go, was not read."""
    steps = [PlanStep(id="9", text="Start again")]
    for slots, missing in [(["agent/goal"], "agent/plan"), (["agent/plan", "agent/plan/1"], "agent/plan/2")]:
        state = thread.hydrate(slots=slots)
        with pytest.raises(ValueError, match=f"without slot '{missing}'"):
            AgentState(state).plan = steps
        assert not state._collect().diff.edits
    state = thread.hydrate(slots=["agent/plan/1"])
    with pytest.raises(ValueError, match="without slot 'agent/plan'"):
        del AgentState(state).plan["1"]
    assert not state._collect().diff.edits
    agent = AgentState(thread.hydrate(slots=["agent/plan", "agent/plan/2"]))
    assert "2" in agent.plan
    assert "none" not in agent.plan
    for look in (lambda: "1" in agent.plan, lambda: len(agent.plan), agent.plan.ready):
        with pytest.raises(ValueError, match="without slot 'agent/plan/1'"):
            look()


def test_a_projection_that_names_what_is_needed_works(thread):
    """With the slots named, a partial state is read, added to and replaced like a whole one, and leaves no garbage."""
    slots = ["agent/goal", "agent/plan", "agent/plan/1", "agent/plan/2"]
    agent = AgentState(thread.hydrate(slots=slots, logs=["tool_calls"]))
    assert agent.goal.text == "Order the books"
    assert [call.id for call in agent.tool_calls.unfinished()] == ["paid"]
    agent.tool_calls.finish("paid", "yes")
    agent.plan.add("Rest")
    agent.plan.set_status("1", "done")
    thread.save(agent.state)
    agent.plan = [agent.plan["3"], PlanStep(id="4", text="End")]
    agent.goal = None
    assert agent.goal is None
    thread.save(agent.state)
    found = AgentState(thread.hydrate())
    assert [step.text for step in found.plan] == ["Rest", "End"]
    places = [name for name in found.state.slots if name.startswith(("agent/plan", "agent/goal"))]
    assert sorted(places) == ["agent/plan", "agent/plan/3", "agent/plan/4"]
    agent = AgentState(thread.hydrate(slots=["agent/plan"]))  # the order alone is enough to add, or to replace all
    agent.plan.add("After it")
    agent.plan = [PlanStep(id=id_, text="new") for id_ in ("3", "4", "5")]
    thread.save(agent.state)
    assert [step.text for step in AgentState(thread.hydrate()).plan] == ["new"] * 3


def test_a_summary_covers_no_messages_that_were_not_read(thread):
    """A summary set where the messages were not read does not say how many it covers."""
    agent = AgentState(thread.hydrate(slots=["agent/goal"]))
    agent.messages.add("assistant", "I do")
    agent.summary = "Much"
    assert agent.summary.messages_before_index == 0
    agent = AgentState(thread.hydrate(logs={"messages": 1}))
    agent.summary = "Much"
    assert agent.summary.messages_before_index == 1


def test_a_whole_state_is_never_called_partial():
    """Of a whole state, what is not there is not set: nothing is said, and nothing is an error."""
    agent = AgentState(State())
    assert (agent.goal, agent.plan.ids(), build_resume_context(agent.state)) == (None, [], "")
    agent.goal = None
    agent.todos = []


def test_what_was_asked_for_and_is_not_there_is_not_set(client):
    """A young thread: a slot and a log that were asked for do not exist, and that is known."""
    thread = client.thread("young")
    thread.append("l", 1)
    agent = AgentState(thread.hydrate(slots=["agent/goal"], logs=["tool_calls"]))
    assert (agent.goal, agent.tool_calls.unfinished()) == (None, [])
    call = agent.tool_calls.begin("pay", {"n": 1})
    agent.tool_calls.finish(call, 1)
    assert agent.tool_calls.unfinished() == []
    with pytest.raises(ValueError, match="without slot 'agent/summary'"):
        _ = agent.summary
    said = last_line(build_resume_context(agent.state))
    assert "goal" not in said
    assert "tool" not in said
    assert "summary so far (not read)" in said
