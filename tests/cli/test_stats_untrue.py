"""The danger: counts, tools, failures or training data that say something else than the runs did."""

from __future__ import annotations

import gzip
import json
from datetime import timedelta

import pytest

from stateward import ThreadOptions
from stateward.agent import AgentState


@pytest.fixture
def runs(client):
    """Four runs of two agents: completed (trimmed), failed, cancelled, and one at work."""
    for number, status in enumerate(("completed", "failed", "cancelled", "running")):
        thread = client.thread(f"run-{number}")
        state = thread.hydrate()
        agent = ThreadOptions(agent="a" if number % 2 else "b", labels={"parity": str(number % 2)})
        for step in range(1, 5):
            state.logs["messages"].append(
                {"role": "assistant", "tool_calls": [{"id": str(step), "function": {"name": f"tool-{number}"}}]}
            )
            state.logs["messages"].append({"role": "tool", "tool_call_id": str(step), "is_error": status == "failed"})
            if not number:
                state.logs["messages"].trim(keep_last=3)
            state.slots["result"] = f"r{number}"
            is_last = step == 4
            thread.save(state, step=step, status=status if is_last else None, status_detail="why" if is_last else "",
                        metrics={"cost_usd": number + step / 10}, create=agent)  # fmt: skip
    return client


def test_counts_by_status(stateward, runs):
    """Counts are the same from the index and from the threads, for people and for scripts."""
    expected = {"completed": 1, "failed": 1, "cancelled": 1, "running": 1}
    assert stateward("threads", "--count", "--json").json == {"threads": 4, "by_status": expected}
    assert stateward("threads", "--count", "--since", "1h", "--json").json["threads"] == 4
    assert stateward("threads", "--count", "--prefix", "run-", "--json").json["by_status"] == expected
    found = stateward("threads", "--count", "--label", "parity=1", "--json").json["by_status"]
    assert found == {"failed": 1, "running": 1}
    assert stateward("threads", "--count", "-s", "failed").out.split() == [
        "STATUS",
        "THREADS",
        "failed",
        "1",
        "all",
        "1",
    ]
    assert [each["thread"] for each in stateward("threads", "--step", "4", "-s", "failed", "--json").json] == ["run-1"]
    assert stateward("threads", "--step", "4", "--min-step", "1").code == 2


def test_tools_and_failures(stateward, runs):
    """Tools come with calls and failures, by agent and by thread; failures with step, tool and reason."""
    found = stateward("tools", "--json").json
    assert {each["name"]: (each["calls"], each["errors"]) for each in found}["tool-1"] == (4, 4)
    assert [each["name"] for each in stateward("tools", "--agent", "a", "-s", "failed", "--json").json] == ["tool-1"]
    assert stateward("tools", "run-3").out.splitlines()[1].split() == ["tool-3", "4", "1"]
    (failure,) = stateward("failures", "--json").json
    assert (failure["thread"], failure["version"], failure["step"], failure["tool"]) == ("run-1", 4, 4, "tool-1")
    assert "why" in stateward("failures", "--since", "1h").out
    assert stateward("failures", "run-1", "--since", "1h").code == 2


def test_trajectories(stateward, runs, tmp_path):
    """Finished runs have all their messages, also those that a window trimmed, and their tools, metrics and outcome."""
    lines = [json.loads(each) for each in stateward("export", "--trajectories").out.splitlines()]
    assert {each["thread"]: each["status"] for each in lines} == {
        "run-0": "completed",
        "run-1": "failed",
        "run-2": "cancelled",
    }
    first = next(each for each in lines if each["thread"] == "run-0")
    assert len(runs.thread("run-0").hydrate().logs["messages"]) == 3
    assert [each.get("tool_call_id") for each in first["messages"]] == [None, "1", None, "2", None, "3", None, "4"]
    assert (first["messages_missing"], first["outcome"], first["step"]) == (0, "r0", 4)
    assert first["tools"] == [{"name": "tool-0", "calls": 4, "errors": 0}]
    assert (first["agent"], first["labels"], first["metrics"]) == ("b", {"parity": "0"}, {"cost_usd": 0.4})
    file = tmp_path / "runs.jsonl.gz"
    answer = stateward("export", "--trajectories", "-s", "running", "-s", "failed", "-o", file)
    assert "holds 2 runs" in answer.error
    assert len(gzip.decompress(file.read_bytes()).splitlines()) == 2


def test_trajectories_of_typed_calls(stateward, client):
    """Calls of the project's own schema are there with arguments and results, also those that were trimmed."""
    thread = client.thread("t")
    state = thread.hydrate()
    agent = AgentState(state)
    for number in range(3):
        call = agent.tool_calls.begin("pay", {"eur": number}, id=f"c{number}")
        agent.messages.add("assistant", "", tool_calls=[call])
        thread.save(state, step=number)
        agent = AgentState(state)
        if number == 1:
            agent.tool_calls.fail(f"c{number}", "503")
        else:
            agent.tool_calls.finish(f"c{number}", {"ok": number, "receipt": "z" * (2 << 20) * (not number)})
        thread.save(state)
    state.logs["tool_calls"].trim(keep_last=1)
    thread.finish(state)
    (line,) = [json.loads(each) for each in stateward("export", "--trajectories").out.splitlines()]
    assert [(each["name"], each["argumentsJson"]) for each in line["tool_calls"]] == [
        ("pay", json.dumps({"eur": number})) for number in range(3)
    ]
    first, second, third = (each["result"] for each in line["tool_calls"])
    assert len(first["inline"]["receipt"]) == 2 << 20
    assert (second["error"], third["inline"]["ok"]) == ("503", 2)
    assert (line["tool_calls_missing"], line["tools"]) == (0, [{"name": "pay", "calls": 3, "errors": 1}])


def test_threads_without_a_version(stateward, client, tmp_path):
    """A thread that an effect made costs nobody the export, and commands about it say that it has no version yet."""
    client.thread("nov").effects.cached("search", {"q": 1}, lambda: 1)
    thread = client.thread("t")
    state = thread.hydrate()
    state.logs["messages"].append({"role": "user"})
    thread.save(state)
    for arguments in (["--status", "running"], ["nov", "t"]):
        answer = stateward("export", "--trajectories", *arguments)
        assert [json.loads(each)["thread"] for each in answer.out.splitlines()] == ["t"]
        assert answer.code == 0
    assert "'nov' has no version" in answer.error
    answer = stateward("export", "--all", "--messages-only")
    assert (answer.code, len(answer.out.splitlines())) == (0, 1)
    assert "'nov' has no version" in answer.error
    answer = stateward("export", "--all", "--versions")  # a backup has the effect
    assert (answer.code, answer.err) == (0, "")
    assert '"nov"' in answer.out
    for command in ("show", "history", "replay"):
        answer = stateward(command, "nov")
        assert answer.code == 1
        assert "'nov' has no version yet" in answer.error
    assert "'nov' has no version yet" in stateward("diff", "nov", "0").error


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--max-metric", "cost_usd=1.4"], ["run-0", "run-1"]),
        (["--min-metric", "cost_usd=1.4"], ["run-1", "run-2"]),
        (["--min-metric", "cost_usd=1", "--max-metric", "cost_usd=2"], ["run-1"]),
        (["--max-metric", "tokens=5"], []),
        (["--label", "parity=0"], ["run-0", "run-2"]),
        (["--agent", "a"], ["run-1"]),
        (["--status", "completed", "--since", "1h"], ["run-0"]),
        (["--prefix", "run-2"], ["run-2"]),
        (["run-3", "--outcome", "none"], ["run-3"]),
    ],
)
def test_trajectories_that_fit(stateward, runs, arguments, found):
    """Status, labels, agent, time and metrics choose runs; a run without a metric that is limited does not fit."""
    lines = [json.loads(each) for each in stateward("export", "--trajectories", *arguments).out.splitlines()]
    assert sorted(each["thread"] for each in lines) == found


def test_what_was_pruned_is_counted(stateward, runs):
    """Messages that no version has any more are said to be missing."""
    runs.thread("run-0").prune(keep_latest_per_branch=1)
    (line,) = [json.loads(each) for each in stateward("export", "--trajectories", "run-0").out.splitlines()]
    assert (len(line["messages"]), line["messages_missing"]) == (3, 5)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--all", "--label", "a=b"],
        ["--trajectories", "--all"],
        ["--trajectories", "run-1", "--status", "failed"],
        ["--trajectories", "--min-metric", "cost"],
        ["--trajectories", "--max-metric", "cost=x"],
    ],
)
def test_wrong_use_of_export(stateward, arguments):
    """Options that do not go together are refused, and nothing is written."""
    answer = stateward("export", *arguments)
    assert (answer.code, answer.out) == (2, "")


def test_finished_threads_are_counted_until_they_expire(stateward, client):
    """A finished thread with a TTL says when it goes."""
    thread = client.thread("t")
    thread.finish(thread.hydrate(), ttl=timedelta(hours=1))
    assert stateward("threads", "--count", "--json").json["by_status"] == {"completed": 1}
