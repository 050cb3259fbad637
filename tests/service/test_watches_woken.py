"""The danger: each save wakes all idle watches, so a thousand watchers of other threads slow it down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from tests.daemon.inside import Inside, daemon_inside
from tests.daemon.wire import appends

from stateward.v1.checkpoint_service_pb2 import ReadLogRequest, SaveRequest
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, WatchRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.service.calls.feed import SLICE

TIMEOUT_S = 20.0
MANY = SLICE * 2 + 1


class Looks:
    """Counts how often each watch reads."""

    def __init__(self, inside: Inside) -> None:
        watcher = inside.parts.store.watcher  # type: ignore[attr-defined]
        self.seen: list[tuple[str, str, str]] = []
        read = watcher.read

        def counted(watch: Any) -> Any:
            self.seen.append((watch.request.namespace, watch.request.thread, watch.request.labels.get("team", "")))
            return read(watch)

        watcher.read = counted

    def take(self) -> set[tuple[str, str, str]]:
        """Who read since the last time."""
        seen, self.seen = set(self.seen), []
        return seen


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[Inside]:
    with daemon_inside(tmp_path, sweep_interval="0") as running:
        yield running


def save(inside: Inside, thread: str, number: int, namespace: str = "n", labels: dict[str, str] | None = None) -> None:
    options = WriteOptions(request_id=f"{thread}-{number}", create=ThreadOptions(labels=labels or {}))
    inside.wire.save(SaveRequest(namespace=namespace, thread=thread, options=options, diff=appends(f"{number}")))


def watch(inside: Inside, thread: str, namespace: str = "n", **fields: Any) -> Any:
    stream = inside.wire.threads.Watch(WatchRequest(namespace=namespace, thread=thread, **fields), timeout=TIMEOUT_S)
    assert not next(stream).events
    return stream


def settle(inside: Inside, looks: Looks) -> None:
    """Lets what was opened make its first look: a watch that is opened later has made its own by then."""
    save(inside, "last", 0)
    last = watch(inside, "last")
    save(inside, "last", 1)
    next(last)
    looks.take()


def test_a_save_wakes_only_the_watches_of_its_thread(inside: Inside) -> None:
    """Watches of other threads, of other namespaces and of other labels do not even look; those concerned all hear."""
    looks = Looks(inside)
    for thread in ("mine", "idle"):
        save(inside, thread, 1)
        save(inside, thread, 1, namespace="elsewhere")
    others = [
        watch(inside, "idle"), watch(inside, "mine", "elsewhere"), watch(inside, "-", "elsewhere"),
        watch(inside, "-", labels={"team": "blue"}),
    ]  # fmt: skip
    concerned = [watch(inside, "mine"), watch(inside, "-"), *(watch(inside, "mine") for _ in range(MANY))]
    settle(inside, looks)
    save(inside, "mine", 2)
    for stream in concerned:  # The namespace's own watch may not have told of "last" before.
        while "mine" not in {event.thread for event in next(stream).events}:
            pass
    assert looks.take() - {("n", "last", "")} == {("n", "mine", ""), ("n", "-", "")}
    for stream in (*others, *concerned):
        stream.cancel()


def test_a_namespace_is_told_of_the_labels_it_chose_and_of_every_deletion(inside: Inside) -> None:
    """A watch by label hears of a thread that has it, at once, and of a thread that is gone."""
    chosen = watch(inside, "-", labels={"team": "blue"})
    save(inside, "red", 1, labels={"team": "red"})
    save(inside, "blue", 1, labels={"team": "blue"})
    assert next(chosen).events[0].thread == "blue"
    inside.wire.threads.DeleteThread(DeleteThreadRequest(namespace="n", thread="blue"))
    assert next(chosen).events[0].WhichOneof("what") == "deleted"
    chosen.cancel()


def test_a_long_poll_hears_of_its_own_thread_only(inside: Inside) -> None:
    """A read that waits at the end of a log wakes with its thread's next entry, and not with another's."""
    looks: list[str] = []
    reader = inside.parts.store.log_reader  # type: ignore[attr-defined]
    head = reader.head
    reader.head = lambda request: looks.append(request.thread) or head(request)
    save(inside, "mine", 1)
    request = ReadLogRequest(namespace="n", thread="mine", log="messages", from_index=1, wait=Duration(seconds=15))
    waiting = inside.wire.checkpoints.ReadLog.future(request, timeout=TIMEOUT_S)
    idle = watch(inside, "mine")
    for number in range(5):
        save(inside, "other", number)
    save(inside, "mine", 2)
    assert [entry.data for entry in waiting.result().entries] == [b"2"]
    assert looks == ["mine"] * 3  # before the first read, when woken, and before the second read
    idle.cancel()
