"""The danger: whoever follows or folds a log leaves an event out or counts it twice, over pages, cuts and races."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import islice
from typing import Any

import pytest
from tests.daemon.process import eventually

from stateward import Access, Client, ThreadNotFound
from stateward._operations import projecting
from stateward._operations.logs import LogFollower
from stateward._operations.steps import ThreadRef
from stateward.testing import Daemon, run_daemon
from stateward.v1 import checkpoint_service_pb2 as checkpoints


class Sum:
    """A reducer that counts how often it is called."""

    def __init__(self) -> None:
        self.folded = 0

    def __call__(self, total: int, event: int) -> int:
        self.folded += 1
        return total + event


# -- logs as streams ---------------------------------------------------------------------------------------------------


def test_a_log_is_read_from_an_index(thread: Any, client: Any) -> None:
    """Entries come with their index, over as many pages as it takes, at one version."""
    assert list(client.thread("nobody").log("events").read()) == []
    first = thread.append("events", *range(2500))
    entries = iter(thread.log("events").read(3))
    assert next(entries).value == 3
    thread.append("events", "later")  # not at the version that is read
    assert [(entry.index, entry.value) for entry in entries] == [(number, number) for number in range(4, 2500)]
    assert [entry.value for entry in thread.log("events").read(2499)] == [2499, "later"]
    assert [entry.value for entry in thread.log("events").read(2499, version=first.version)] == [2499]
    assert list(thread.log("nothing").read()) == list(thread.branch("none").log("events").read()) == []
    assert next(iter(thread.branch("new", at=first.version).log("events").read(7))).value == 7


def test_a_large_entry_is_read_like_others(server: Daemon, open_client: Callable[..., Any], name: str) -> None:
    """An entry that a save made a blob of comes back as the value it was."""
    thread = open_client(server.target, blob_threshold=1000).thread(name)
    thread.append("events", "x" * 5000, "small")
    assert [entry.value for entry in thread.log("events").read()] == ["x" * 5000, "small"]
    assert thread.hydrate(logs=["events"]).logs["events"]._stored[0].HasField("blob")


def test_a_follower_sees_each_event_once(server: Daemon, thread: Any, client: Any) -> None:
    """What is there, what is appended while it waits, and what comes after the end was cut off."""
    with pytest.raises(ThreadNotFound):
        next(iter(client.thread("nobody").log("events").follow()))
    thread.append("events", "a", "b")
    follower = iter(thread.log("events").follow(1))
    assert next(follower).value == "b"
    with Client(server.target, namespace=client.namespace) as other:
        writer = other.thread(thread.name)
        timer = threading.Timer(0.1, writer.append, ("events", "c"))
        timer.start()
        assert next(follower).value == "c"
        timer.join()
    assert [entry.value for entry in islice(thread.log("events").follow(), 3)] == ["a", "b", "c"]


def test_a_follower_goes_back_to_where_a_log_was_cut() -> None:
    """What is appended after a cut gets indexes again that were told before, and is told."""
    ref = ThreadRef("default", "t", "main")
    follower = LogFollower(ref, "events", 2, 5.0)
    told = []
    for answer, asked in (
        ({"first_index": 2, "next_index": 4, "end_index": 4, "version": 7, "entries": [{"data": b"c"}] * 2}, 2),
        ({"first_index": 4, "next_index": 4, "end_index": 4, "version": 8}, 4),
        ({"first_index": 4, "next_index": 4, "end_index": 1, "version": 9, "rewritten_version": 9}, 4),
        (
            {
                "first_index": 1,
                "next_index": 2,
                "end_index": 2,
                "version": 10,
                "rewritten_version": 9,
                "entries": [{"data": b"B"}],
            },
            1,
        ),
        ({"first_index": 2, "next_index": 2, "end_index": 2, "version": 10, "rewritten_version": 9}, 2),
    ):
        step = follower.next_page()
        request = next(step).request  # type: ignore[union-attr]
        assert (request.from_index, request.wait.seconds) == (asked, 5)
        with pytest.raises(StopIteration) as ended:
            step.send(checkpoints.ReadLogResponse(**answer))  # type: ignore[arg-type]
        told += [entry.index for entry in ended.value.value]
    assert told == [2, 3, 1]


def test_a_follower_may_begin_now(server: Daemon, thread: Any, client: Any) -> None:
    """Without a start only what comes from then on is told."""
    thread.append("events", *range(5))
    follower = iter(thread.log("events").follow(None))
    with Client(server.target, namespace=client.namespace) as other:
        timer = threading.Timer(0.2, other.thread(thread.name).append, ("events", "new"))
        timer.start()
        entry = next(follower)
        timer.join()
    assert (entry.index, entry.value) == (5, "new")


# -- folds that are kept -----------------------------------------------------------------------------------------------


def test_a_replay_folds_only_what_is_new(thread: Any) -> None:
    """With a projection each event is folded once; without, and under another name or log, all of them."""
    assert thread.log("events").replay(Sum(), 7, projection="sum") == 7  # nothing is there yet
    thread.append("events", *range(10))
    for new, total in ((10, 45), (0, 45), (2, 145), (0, 145)):
        if new == 2:
            thread.append("events", 40, 60)
        fold = Sum()
        assert (thread.log("events").replay(fold, 0, projection="sum"), fold.folded) == (total, new)
    for options in ({}, {"projection": "other"}):
        fold = Sum()
        assert (thread.log("events").replay(fold, 0, **options), fold.folded) == (145, 12)
    thread.append("more", *[1] * 20)
    assert thread.log("more").replay(Sum(), 0, projection="sum") == 20  # the name was used for another log


def test_a_reducer_may_be_awaited(client: Any, thread: Any) -> None:
    """With the asyncio client the reducer may be a coroutine function; the other one says that it cannot wait."""

    async def add(total: int, event: int) -> int:
        return total + event

    thread.append("events", 1, 2)
    if isinstance(client, Client):
        with pytest.raises(TypeError, match="AsyncClient"):
            thread.log("events").replay(add, 0)
    else:
        assert thread.log("events").replay(add, 0) == 3


@pytest.mark.parametrize("rewrite", ["replace", "cut", "trim", "delete"])
def test_a_rewritten_log_is_folded_anew(thread: Any, rewrite: str) -> None:
    """Where entries that were folded are no longer what they were, the fold starts again with what there is."""
    thread.append("events", 1, 2, 4)
    assert thread.log("events").replay(Sum(), 0, projection="sum") == 7
    state = thread.hydrate()
    log = state.logs["events"]
    match rewrite:
        case "replace":
            log[1] = 20
        case "cut":
            log.trim(from_index=2)
        case "trim":
            log.trim(keep_last=1)
        case "delete":
            del state.logs["events"]
    thread.save(state)
    left = sum(state.logs["events"])
    assert thread.log("events").replay(Sum(), 0, projection="sum") == left
    thread.append("events", 100)
    fold = Sum()
    assert (thread.log("events").replay(fold, 0, projection="sum"), fold.folded) == (left + 100, 1)


def test_keeping_a_fold_hinders_no_writer(thread: Any) -> None:
    """A state that was hydrated before a fold was kept can be saved after it, and no save is a change of the fold."""
    thread.append("events", 1)
    state = thread.hydrate()
    assert thread.log("events").replay(Sum(), 0, projection="sum") == 1
    state.slots["goal"] = "Paris"
    saved = thread.save(state)
    assert thread.hydrate().version == saved.version
    assert set(thread.hydrate().slots) == {"goal"}
    fold = Sum()
    assert (thread.log("events").replay(fold, 0, projection="sum"), fold.folded) == (1, 0)


def test_a_lost_race_for_a_fold_is_no_error(thread: Any, client: Any) -> None:
    """Two that fold at once both get their value; what is kept is one of theirs, and goes on from there."""
    thread.append("events", 1, 2)
    inner: list[int] = []

    class Interrupted(Sum):
        def __call__(self, total: int, event: int) -> int:
            if not self.folded and not inner:  # another one folds the same and is first to keep it
                inner.append(event)
                with Client(client.target, namespace=client.namespace) as other:
                    handle = other.thread(thread.name)
                    handle.append("events", 4)
                    assert handle.log("events").replay(Sum(), 0, projection="sum") == 7
            return super().__call__(total, event)

    assert thread.log("events").replay(Interrupted(), 0, projection="sum") == 3
    fold = Sum()
    assert (thread.log("events").replay(fold, 0, projection="sum"), fold.folded) == (7, 0)


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_a_fold_prolongs_no_life(thread: Any, status: str) -> None:
    """Of a thread that has ended nothing is kept: a read must not put off its expiry."""
    thread.append("events", 1, 2)
    thread.finish(thread.hydrate(), ttl=timedelta(hours=1), status=status)
    before = thread.info()
    for _ in range(2):
        fold = Sum()
        assert (thread.log("events").replay(fold, 0, projection="sum"), fold.folded) == (3, 2)
    after = thread.info()
    assert (after.expire_time, after.update_time, after.sequence) == (
        before.expire_time,
        before.update_time,
        before.sequence,
    )


def test_a_fold_takes_no_thread(pair: Any, open_client: Any, name: str) -> None:
    """A replay on another machine is a read: the thread stays whose it was."""
    first, second = (open_client(each.target, namespace=name) for each in (pair.first, pair.second))
    thread = first.thread("t")
    thread.append("events", 1, 2)
    thread.ask(thread.hydrate(), "ok?", durability="archived")
    eventually(lambda: first.thread("t").info().access == Access.REMOTE)  # given up, as it waits
    for _ in range(2):
        assert second.thread("t").log("events").replay(Sum(), 0, projection="sum") == 3
        info = second.thread("t").info()
        assert (info.owner_id, info.access) == ("first", Access.REMOTE)


def test_a_fold_while_the_daemon_is_emptied(open_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was folded is returned although it cannot be kept; nobody waits for a daemon that stops."""
    monkeypatch.setattr(projecting, "KEEP_S", 0.2)
    with run_daemon() as daemon:
        client = open_client(daemon.target)
        thread = client.thread("t")
        thread.append("events", 1, 2)
        client.drain()
        begun = time.monotonic()
        assert thread.log("events").replay(Sum(), 0, projection="sum") == 3
        assert time.monotonic() - begun < 5
