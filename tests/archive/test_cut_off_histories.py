"""The danger: a history ends, or fails, where the part of the thread begins that only the archive has."""

from __future__ import annotations

import os

import pytest
from tests.archive.driven import Driven, Town, append
from tests.archive_model.process import run
from tests.archive_model.sidecar import CALLER, NAMESPACE

from stateward.v1.checkpoint_service_pb2 import READ_ORDER_NEWEST_FIRST, READ_ORDER_OLDEST_FIRST, ReadHistoryRequest

VERSIONS = 24


def versions(machine: Driven, **asked: object) -> list[int]:
    async def read() -> list[int]:
        request = ReadHistoryRequest(namespace=NAMESPACE, thread="job", **asked)  # type: ignore[arg-type]
        return [answer.checkpoint.version async for answer in machine.checkpoints.read_history(request, CALLER)]

    return run(read())


@pytest.mark.parametrize("order", [READ_ORDER_NEWEST_FIRST, READ_ORDER_OLDEST_FIRST])
def test_a_history_goes_on_in_the_archive(driven: Town, order: int) -> None:
    """A reader's disk has only the newest versions. It fetches the others when a history comes to them."""
    first, reader = driven.machine("first"), driven.machine("reader")
    for number in range(VERSIONS):
        first.put(append(os.urandom(800)))
        if number % 2:
            first.ship_now()
    reader.state()
    assert reader.thread().floor_version > 2
    found = versions(reader, order=order)
    assert sorted(found) == list(range(1, VERSIONS + 1))
    assert found == sorted(found, reverse=order == READ_ORDER_NEWEST_FIRST)
    assert not reader.thread().floor_version
