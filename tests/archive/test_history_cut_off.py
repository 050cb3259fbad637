"""The danger: a history ends, or fails, where the part of the thread begins that only the archive has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.archive.test_history_pruned_while_completed import prune
from tests.daemon.driven import CALLER, NAMESPACE, Driven, append
from tests.daemon.town import Town
from tests.daemon.unthreaded import run

from stateward.v1.checkpoint_service_pb2 import READ_ORDER_NEWEST_FIRST, READ_ORDER_OLDEST_FIRST, ReadHistoryRequest
from stateward_sidecar.errors import Fenced, StatewardError

VERSIONS = 24


def fill(machine: Driven) -> None:
    for number in range(VERSIONS):
        machine.put(append(os.urandom(800)))
        if number % 2:
            machine.ship_now()


def versions(machine: Driven, **asked: object) -> list[int]:
    async def read() -> list[int]:
        request = ReadHistoryRequest(namespace=NAMESPACE, thread="job", **asked)  # type: ignore[arg-type]
        return [answer.checkpoint.version async for answer in machine.checkpoints.read_history(request, CALLER)]

    return run(read())


@pytest.mark.parametrize("order", [READ_ORDER_NEWEST_FIRST, READ_ORDER_OLDEST_FIRST])
def test_a_history_goes_on_in_the_archive(driven: Town, order: int) -> None:
    """A reader's disk has only the newest versions. It fetches the others when a history comes to them."""
    owner, reader = driven.machine("owner"), driven.machine("reader")
    fill(owner)
    reader.state()
    assert reader.thread().floor_version > 2
    found = versions(reader, order=order)
    assert sorted(found) == list(range(1, VERSIONS + 1))
    assert found == sorted(found, reverse=order == READ_ORDER_NEWEST_FIRST)
    assert not reader.thread().floor_version


def stream(machine: Driven) -> Iterator[tuple[int, str]]:
    """Version and thread of each message, newest first, one by one."""
    request = ReadHistoryRequest(namespace=NAMESPACE, thread="job", order=READ_ORDER_NEWEST_FIRST)
    answers = machine.checkpoints.read_history(request, CALLER)
    while True:
        try:
            answer = run(anext(answers))
        except StopAsyncIteration:
            return
        yield answer.checkpoint.version, answer.checkpoint.thread


def test_a_copy_whose_owner_pruned_meanwhile(driven: Town) -> None:
    """What is fetched in the middle of a history is of today: the line ends before what was pruned."""
    owner, reader = driven.machine("owner"), driven.machine("reader")
    fill(owner)
    reader.state()
    floor = reader.thread().floor_version
    history = stream(reader)
    seen = [next(history) for _ in range(3)]
    prune(owner, 2)
    assert [version for version, _ in [*seen, *history]] == list(range(VERSIONS, floor, -1))
    assert reader.thread().pruned.pairs()


def test_a_copy_that_was_set_aside_meanwhile(driven: Town) -> None:
    """What it shares with its thread keeps the thread's name; what only this disk had is fenced."""
    owner, other = driven.machine("owner"), driven.machine("other")
    fill(owner)
    owner.put(append(b"lost"))
    owner.put(append(b"lost, too"))
    history, late = stream(owner), stream(owner)
    seen = [next(history) for _ in range(4)]
    next(late)
    other.archive.own(NAMESPACE, "job", take_over=True)
    other.put(append(b"of the other"))
    other.ship_now()
    with suppress(StatewardError):
        owner.ship_now()
    assert owner.find("job@@1") is not None
    seen += history
    assert seen == [(version, "job") for version in range(VERSIONS + 2, 0, -1)]
    with pytest.raises(Fenced, match="read it again"):
        list(late)
