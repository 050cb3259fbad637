"""The danger: a watch on a machine that has only the newest part of a thread calls the rest damaged, or skips it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.process import Fleet, fleet, write_steps
from tests.daemon.wire import Wire

from stateward.testing import Daemon
from stateward.v1 import (
    effect_service_pb2,
    thread_service_pb2,
)
from stateward.v1.write_pb2 import WriteOptions

LINE = 120


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path) as made:
        yield made


def put_many(daemon: Daemon) -> None:
    """More entries than a retry may ask for."""
    wire = Wire(daemon.target)
    for call in range(2):
        request = effect_service_pb2.PutEffectsRequest(
            namespace="default", thread="t", options=WriteOptions(request_id=f"{call}")
        )
        for number in range(600):
            request.effects.add(key=f"{call}.{number}").value.data = b"x"
        wire.effects.PutEffects(request)


def watch(daemon: Daemon, **fields: Any) -> Any:
    request = thread_service_pb2.WatchRequest(namespace="default", thread="t", **fields)
    return Wire(daemon.target).threads.Watch(request, timeout=20)


def sequences(stream: Any, last: int) -> tuple[list[int], str]:
    """What a watch tells up to an entry, and the cursor of this entry."""
    found: list[int] = []
    for answer in stream:
        for event in answer.events:
            found.append(event.sequence)
            if event.sequence == last:
                stream.cancel()
                return found, event.cursor
    raise AssertionError(f"the watch ended after {found[-1:]}")


@pytest.mark.parametrize("is_pruned", [False, True])
def test_a_watch_goes_on_where_only_the_archive_has_the_entries(machines: Fleet, *, is_pruned: bool) -> None:
    """By number and by cursor, also if so much was pruned that a gap could be one of the prune."""
    first = machines.machine("a")
    client = machines.client(first)
    if is_pruned:
        write_steps(client, "t", 3)
        client.thread("t").prune(versions=[2])
        put_many(first)
    write_steps(client, "t", LINE, size=3000)
    write_steps(client, "t", 1, archived=True)
    tip = client.thread("t").info().sequence
    told, cursor = sequences(watch(first, after_sequence=0), tip // 2)
    assert told == list(range(1, tip // 2 + 1))
    for fields, begun in (({"after_cursor": cursor}, tip // 2), ({"after_sequence": 5}, 5), ({"after_sequence": 0}, 0)):
        second = machines.machine("b")
        assert machines.client(second).thread("t").hydrate().version
        assert sequences(watch(second, **fields), tip)[0] == list(range(begun + 1, tip + 1)), fields
