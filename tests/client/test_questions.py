"""The danger: a question about many runs that gets an answer which is not true, and a finished run that stays for ever,
or goes before it is finished."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from stateward import MsgPack, Status, Window
from stateward.agent import AgentState
from stateward.errors import VersionMismatch
from stateward.insight import count_calls

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


@pytest.fixture
def client(real_daemon, open_client, request):
    """A client of the real daemon, with a namespace of its own."""
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return open_client(real_daemon.target, namespace=request.node.name)


def run(client, name, messages=(), *, calls=(), **options):
    """A thread with one version of these messages."""
    thread = client.thread(name)
    state = thread.hydrate()
    state.logs["messages"].extend(messages)
    state.logs["tool_calls"].extend(calls)
    thread.save(state, **options)
    return thread, state


def test_short_filters(client):
    """`status`, `step` and `updated_since` choose as the long forms do, and are not taken beside them."""
    for number in range(4):
        run(client, f"t{number}", ["x"], status="failed" if number % 2 else "running", step=number)

    def names(**filters):
        return sorted(each.name for each in client.threads(**filters))

    assert names(status=Status.FAILED) == names(status="failed") == names(statuses=["failed"]) == ["t1", "t3"]
    assert names(step=2) == ["t2"]
    assert names(step=0, status="failed") == []
    assert (
        len(names(updated_since=timedelta(hours=1))) == len(names(updated_since=datetime(2020, 1, 1, tzinfo=UTC))) == 4
    )
    assert names(updated_since=datetime.now(UTC) + timedelta(hours=1)) == []
    for filters in ({"status": 1, "statuses": [1]}, {"step": 1, "max_step": 2}):
        with pytest.raises(TypeError, match="not both"):
            names(**filters)
    assert client.count_threads() == {Status.RUNNING: 2, Status.FAILED: 2}
    assert client.count_threads(updated_since=timedelta(hours=1)) == {Status.RUNNING: 2, Status.FAILED: 2}
    assert client.count_threads(updated_before=datetime(2020, 1, 1, tzinfo=UTC)) == {}


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
    found = {each.name: (each.calls, each.errors) for each in client.tools_used("t")}
    assert found == {"pay": (1, 0), "book": (1, 1)}
    (failure,) = client.failures()
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
    (used,) = client.tools_used()
    assert len(thread.hydrate().logs["messages"]) == 3
    assert (used.calls, used.errors) == (6, 6)
    thread.prune(keep_latest_per_branch=1)
    (used,) = client.tools_used()
    assert used.calls < 6


def test_calls_in_blobs(client):
    """An entry that is large enough to be kept apart counts as every other does."""
    run(client, "one", calls=[{"name": "search", "result": "z" * (1 << 21)}], status="failed")
    assert [(each.name, each.calls) for each in client.tools_used("one")] == [("search", 1)]
    assert [each.tool for each in client.failures()] == ["search"]


def test_tools_that_were_used(client):
    """Calls add up over threads, most used first; what stands in two logs of a thread counts once."""
    run(client, "one", OPENAI, calls=[{"name": "search"}, {"name": "search"}, {"name": "extra"}])
    run(client, "two", ANTHROPIC)
    run(client, "three", ["no call"])
    found = {each.name: each for each in client.tools_used()}
    assert list(found) == ["book", "search", "extra"]
    assert (found["search"].calls, found["search"].errors, found["search"].threads) == (2, 1, 1)
    assert (found["book"].calls, found["book"].threads, found["book"].last_error_thread) == (2, 2, "two")
    assert [each.name for each in client.tools_used("two")] == ["book"]
    assert client.tools_used(status="failed") == []
    assert client.tools_used(agent="nobody") == []


def test_where_it_failed(client):
    """A failure names version, step, reason and the tool before it; one that was got over is told when asked for."""
    thread, state = run(client, "one", OPENAI[:1], step=4, status="failed", status_detail="timeout")
    state.logs["messages"].append(ANTHROPIC[0])
    thread.save(state, step=5)
    run(client, "two", ANTHROPIC, step=7, status="failed", status_detail="refused")
    (failure,) = client.failures()
    assert (failure.thread, failure.version, failure.step, failure.status_detail) == ("two", 1, 7, "refused")
    assert (failure.tool, failure.is_overcome) == ("book", False)
    (before,) = client.failures("one")
    assert (before.version, before.step, before.status_detail, before.tool) == (1, 4, "timeout", "search")
    assert before.is_overcome
    assert [each.thread for each in client.failures("one", "two")] == ["two", "one"]


def test_finishing_sets_the_ttl(client):
    """A finished thread is COMPLETED and expires that long after its last save; saying it again saves nothing."""
    thread, state = run(client, "t", ["x"])
    state.slots["outcome"] = "booked"
    last = thread.finish(state, ttl=timedelta(hours=2), step=9)
    info = thread.get()
    assert (last.version, info.status, info.step, info.options.ttl) == (2, Status.COMPLETED, 9, timedelta(hours=2))
    assert info.expire_time - last.create_time >= timedelta(hours=2)
    assert info.expire_time - last.create_time < timedelta(hours=2, seconds=2)
    assert thread.finish(thread.hydrate(), ttl=timedelta(hours=1)).version == 2
    assert thread.get().options.ttl == timedelta(hours=1)
    again = thread.hydrate()
    again.logs["messages"].append("more")
    assert thread.finish(again, status="failed", status_detail="why").version == 3
    assert thread.get().options.ttl == timedelta(hours=1)


def test_finishing_keeps_step_and_metrics(client):
    """A finished run is found by the step and the metrics that it had, unless it ends with others."""
    thread, state = run(client, "t", ["x"], step=5, metrics={"cost_usd": 1.0})
    last = thread.finish(state)
    assert (last.step, last.metrics) == (5, {"cost_usd": 1.0})
    assert [each.name for each in client.threads(step=5)] == ["t"]
    thread, state = run(client, "other", ["x"], step=5, metrics={"cost_usd": 1.0})
    last = thread.finish(state, step=6, metrics={"cost_usd": 2.0})
    assert (last.step, last.metrics) == (6, {"cost_usd": 2.0})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("labels", {"a": 1}),
        ("labels", {1: "a"}),
        ("labels", ["a"]),
        ("step", "5"),
        ("min_step", 1.5),
        ("page_size", "4"),
        ("name_prefix", 3),
        ("statuses", "failed"),
        ("updated_after", "2026-01-31"),
        ("updated_before", 5),
        ("updated_since", 5),
    ],
)
def test_filters_of_the_wrong_kind(client, name, value):
    """A filter that is not of its kind is refused by its name."""
    with pytest.raises(TypeError, match=f"^{name} takes "):
        next(iter(client.threads(**{name: value})))


def test_an_unfinished_thread_gets_no_ttl(client):
    """Where the last save is refused the thread keeps living: its TTL is set only afterwards."""
    thread, state = run(client, "t", ["x"])
    thread.append("messages", "somebody else")
    with pytest.raises(VersionMismatch):
        thread.finish(state, ttl=timedelta(seconds=1))
    assert thread.get().options.ttl is None
    new = client.thread("new")
    assert new.finish(new.hydrate(), ttl=timedelta(hours=1)).version == 1
    assert new.get().options.ttl == timedelta(hours=1)
