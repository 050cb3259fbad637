"""The danger: a tool that fails all the time, and a table that says it never did."""

from __future__ import annotations

from typing import Any

import pytest

from stateward import Client, MsgPack, Window
from stateward.agent import AgentState
from stateward.cli.files import transcripts
from stateward.cli.show.tool_calls import count_calls

OPENAI = [
    {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "search", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "a", "content": "nothing", "status": "error"},
    {"role": "assistant", "tool_calls": [{"id": "b", "name": "book", "args": {}}, {"id": "c", "name": "search"}]},
]
ANTHROPIC = [
    {"role": "assistant", "content": [{"type": "text", "text": "…"}, {"type": "tool_use", "id": "u", "name": "book"}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "u", "is_error": True}]},
]
RESPONSES = [{"type": "function_call", "name": "pay", "call_id": "p"}, {"type": "function_call_output", "call_id": "p"}]


def run(client, name, messages=(), *, calls=(), **options):
    """A thread with one version of these messages."""
    thread = client.thread(name)
    state = thread.hydrate()
    state.logs["messages"].extend(messages)
    state.logs["tool_calls"].extend(calls)
    thread.save(state, **options)
    return thread, state


def tools_used(client: Client, *names: str, agent: str | None = None, **filters: Any) -> list[transcripts.ToolUse]:
    return transcripts.tools_used(client, names, agent, filters)


def failures(client: Client, *names: str, agent: str | None = None, **filters: Any) -> list[transcripts.Failure]:
    return transcripts.failures(client, names, agent, filters)


def called(call_id: str = "c1") -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": call_id, "function": {"name": "search"}}]}


@pytest.mark.parametrize(
    "result",
    [
        {"role": "tool", "id": "c1", "error": True},
        {"role": "tool", "id": "c1", "content": "Error: no such city"},
        {"role": "tool", "tool_call_id": "c1", "content": "error: no"},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "[ERROR] timed out"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "Traceback (most recent call last):\n  File"},
        {"role": "function", "name": "search", "content": "Error executing search"},
        {"type": "function_call_output", "call_id": "c1", "output": "Error: 404"},
        {"type": "tool_result", "id": "c1", "is_error": True},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "Error: x"}]},
    ],
)
def test_results_that_say_an_error(result: dict[str, Any]) -> None:
    """However a result says that it is one, and by whatever name it has the call's id."""
    found = count_calls([called(), result], [])
    assert (found.calls["search"], found.errors["search"]) == (1, 1)


@pytest.mark.parametrize(
    "result",
    [
        {"role": "tool", "tool_call_id": "c1", "content": "Errors and how to avoid them"},
        {"role": "tool", "tool_call_id": "c1", "content": "found 3; Error: none"},
        {"role": "tool", "tool_call_id": "c1", "content": '{"error": null}', "error": None},
        {"role": "assistant", "id": "c1", "content": "Error: I was wrong"},
        {"role": "user", "content": "Error: why?"},
    ],
)
def test_what_is_no_failure(result: dict[str, Any]) -> None:
    """A text that only speaks of errors, and what no tool has said, count for nothing."""
    assert count_calls([called(), result], []).errors["search"] == 0


def test_entries_of_the_log_of_calls() -> None:
    """In the log "tool_calls" the same words count."""
    entries = [
        {"name": "a", "error": True},
        {"name": "b", "result": "Error: x"},
        {"name": "c", "result": {"rows": 1}},
        {"name": "d", "output": "fine"},
    ]
    assert +count_calls([], entries).errors == {"a": 1, "b": 1}


def test_calls_in_the_usual_shapes():
    """Calls and failed results are found in every shape, and what says nothing of tools is passed over."""
    found = count_calls([*OPENAI, *ANTHROPIC, *RESPONSES, "text", None, {"role": 3}, MsgPack(OPENAI[0])], [])
    assert found.calls == {"search": 3, "book": 2, "pay": 1}
    assert found.errors == {"search": 1, "book": 1}
    assert found.last == "search"
    listed = count_calls([], [{"tool": "a"}, {"name": "a", "error": "no"}, {"function": {"name": "b"}}, {"name": 7}])
    assert listed.calls == {"a": 2, "b": 1}
    assert +listed.errors == {"a": 1}


def test_other_words_for_an_error():
    """LangChain's own tool messages have a type in place of a role; a typed call has its error in its result."""
    calls = {"type": "ai", "tool_calls": [{"id": "2", "name": "search"}]}
    found = count_calls([calls, {"type": "tool", "tool_call_id": "2", "status": "error"}], [])
    assert (found.calls, +found.errors) == ({"search": 1}, {"search": 1})
    listed = count_calls(
        [],
        [
            {"name": "a", "status": "TOOL_CALL_STATUS_FAILED"},
            {"name": "b", "result": {"error": "503"}},
            {"name": "c", "status": "TOOL_CALL_STATUS_DONE", "result": {"error": ""}},
            {"name": "d", "result": "error"},
        ],
    )
    assert +listed.errors == {"a": 1, "b": 1}


def test_typed_calls(client):
    """Calls of the project's own schema count, with those that failed."""
    thread = client.thread("t")
    state = thread.hydrate()
    agent = AgentState(state)
    agent.tool_calls.finish(agent.tool_calls.begin("pay", {"eur": 5}), {"ok": 1})
    agent.tool_calls.fail(agent.tool_calls.begin("book", {"i": 1}), "503")
    thread.save(state, status="failed")
    found = {each.name: (each.calls, each.errors) for each in tools_used(client, "t")}
    assert found == {"pay": (1, 0), "book": (1, 1)}
    (failure,) = failures(client)
    assert failure.tool == "book"


def test_calls_that_a_window_trimmed(client):
    """What slid out of a window counts too, with its results, as long as the versions that have it are there."""
    thread = client.thread("t")
    state = thread.hydrate()
    window = Window("messages", keep_last=3)
    for number in range(6):
        state.logs["messages"].append({"role": "assistant", "tool_calls": [{"id": str(number), "name": "search"}]})
        state.logs["messages"].append({"role": "tool", "tool_call_id": str(number), "status": "error"})
        thread.save(state, windows=[window])
    (used,) = tools_used(client)
    assert len(thread.hydrate().logs["messages"]) == 3
    assert (used.calls, used.errors) == (6, 6)
    thread.prune(keep_latest_per_branch=1)
    (used,) = tools_used(client)
    assert used.calls < 6


def test_calls_in_blobs(client):
    """An entry that is large enough to be kept apart counts as every other does."""
    run(client, "one", calls=[{"name": "search", "result": "z" * (1 << 21)}], status="failed")
    assert [(each.name, each.calls) for each in tools_used(client, "one")] == [("search", 1)]
    assert [each.tool for each in failures(client)] == ["search"]


def test_tools_that_were_used(client):
    """Calls add up over threads, most used first; what stands in two logs of a thread counts once."""
    run(client, "one", OPENAI, calls=[{"name": "search"}, {"name": "search"}, {"name": "extra"}])
    run(client, "two", ANTHROPIC)
    run(client, "three", ["no call"])
    found = {each.name: each for each in tools_used(client)}
    assert list(found) == ["book", "search", "extra"]
    assert (found["search"].calls, found["search"].errors, found["search"].threads) == (2, 1, 1)
    assert (found["book"].calls, found["book"].threads, found["book"].last_error_thread) == (2, 2, "two")
    assert [each.name for each in tools_used(client, "two")] == ["book"]
    assert tools_used(client, status="failed") == []
    assert tools_used(client, agent="nobody") == []


def test_calls_of_threads_without_a_version(client, stateward):
    """The effects of a thread that nobody has saved count, and a lock's thread or a scope of records hides none."""
    client.thread("effects").effects.run("charge-1", lambda: 5, name="charge")
    with client.thread("lease").lease(), client.lock("lock"):
        client.records("records").put("a", 1)
    for names in ([], ["effects", "lease", "locks/lock", "records"]):
        counted = stateward("tools", *names, "--json")
        assert [(each["name"], each["calls"]) for each in counted.json] == [("charge", 1)], counted.err
        assert (stateward("failures", *names).code, stateward("failures", *names).out) == (0, "")
    assert (stateward("export", "--trajectories").code, stateward("export", "--all").code) == (0, 0)


def test_where_it_failed(client):
    """A failure names version, step, reason and the tool before it; one that was got over is told when asked for."""
    thread, state = run(client, "one", OPENAI[:1], step=4, status="failed", status_detail="timeout")
    state.logs["messages"].append(ANTHROPIC[0])
    thread.save(state, step=5)
    run(client, "two", ANTHROPIC, step=7, status="failed", status_detail="refused")
    (failure,) = failures(client)
    assert (failure.thread, failure.version, failure.step, failure.status_detail) == ("two", 1, 7, "refused")
    assert (failure.tool, failure.is_overcome) == ("book", False)
    (before,) = failures(client, "one")
    assert (before.version, before.step, before.status_detail, before.tool) == (1, 4, "timeout", "search")
    assert before.is_overcome
    assert [each.thread for each in failures(client, "one", "two")] == ["two", "one"]


def test_what_questions_read(client):
    """A question about all threads sees each of them once; one page is read once."""
    for number in range(12):
        client.thread(f"t{number}").append("tool_calls", {"name": "search"})
    (used,) = tools_used(client, page_size=5)
    assert (used.calls, used.threads) == (12, 12)
