"""The danger: a question about many runs that gets an answer which is not true, and a finished run that stays for ever,
or goes before it is finished."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from stateward import Status
from stateward.errors import VersionMismatch


@pytest.fixture
def client(real_daemon, open_client, request):
    """A client of the real daemon, with a namespace of its own."""
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return open_client(real_daemon.target, namespace=request.node.name)


def run(client, name, messages=(), **options):
    """A thread with one version of these messages."""
    thread = client.thread(name)
    state = thread.hydrate()
    state.logs["messages"].extend(messages)
    thread.save(state, **options)
    return thread, state


def test_short_filters(client):
    """`status`, `step` and `updated_within` choose as the long forms do, and are not taken beside them."""
    for number in range(4):
        run(client, f"t{number}", ["x"], status="failed" if number % 2 else "running", step=number)

    def names(**filters):
        return sorted(each.name for each in client.threads(**filters))

    assert names(status=Status.FAILED) == names(status="failed") == names(statuses=["failed"]) == ["t1", "t3"]
    assert names(step=2) == ["t2"]
    assert names(step=0, status="failed") == []
    assert (
        len(names(updated_within=timedelta(hours=1))) == len(names(updated_after=datetime(2020, 1, 1, tzinfo=UTC))) == 4
    )
    assert names(updated_after=datetime.now(UTC) + timedelta(hours=1)) == []
    for filters in ({"status": 1, "statuses": [1]}, {"step": 1, "max_step": 2}):
        with pytest.raises(TypeError, match="not both"):
            names(**filters)
    assert client.count_threads() == {Status.RUNNING: 2, Status.FAILED: 2}
    assert client.count_threads(updated_within=timedelta(hours=1)) == {Status.RUNNING: 2, Status.FAILED: 2}
    assert client.count_threads(updated_before=datetime(2020, 1, 1, tzinfo=UTC)) == {}


def test_finishing_sets_the_ttl(client):
    """A finished thread is COMPLETED and expires that long after its last save; saying it again saves nothing."""
    thread, state = run(client, "t", ["x"])
    state.slots["outcome"] = "booked"
    last = thread.finish(state, ttl=timedelta(hours=2), step=9)
    info = thread.info()
    assert (last.version, info.status, info.step, info.options.ttl) == (2, Status.COMPLETED, 9, timedelta(hours=2))
    assert info.expire_time - last.create_time >= timedelta(hours=2)
    assert info.expire_time - last.create_time < timedelta(hours=2, seconds=2)
    assert thread.finish(thread.hydrate(), ttl=timedelta(hours=1)).version == 2
    assert thread.info().options.ttl == timedelta(hours=1)
    again = thread.hydrate()
    again.logs["messages"].append("more")
    assert thread.finish(again, status="failed", status_detail="why").version == 3
    assert thread.info().options.ttl == timedelta(hours=1)


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
        ("updated_within", "5"),
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
    assert thread.info().options.ttl is None
    new = client.thread("new")
    assert new.finish(new.hydrate(), ttl=timedelta(hours=1)).version == 1
    assert new.info().options.ttl == timedelta(hours=1)
