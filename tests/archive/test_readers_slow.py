"""The danger: a reader is slower than the grace time of what it reads, and is told that history is lost."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from tests.archive import test_journal_cleaned_elsewhere as locks
from tests.daemon import small
from tests.daemon.driven import NAMESPACE, Driven, append
from tests.daemon.town import Town

from stateward.v1.checkpoint_service_pb2 import HydrateRequest
from stateward_sidecar.bucket.base import Object
from stateward_sidecar.errors import Corrupt, VersionPruned

LONGER_THAN_GRACE_S = 700


def work(owner: Driven, count: int) -> None:
    for _ in range(count):
        owner.put(append(os.urandom(300)))
        owner.ship_now()


def at_each_read(reader: Driven, patch: pytest.MonkeyPatch, happens: Callable[[int], None]) -> None:
    """``happens`` gets the number of each object of the thread's history that the reader asks for, before it does."""
    get, count = reader.bucket.get, [0]

    def slow(key: str, *sizes: int) -> Object:
        if key.endswith((".pack", ".snap", ".index")):
            count[0] += 1
            happens(count[0])
        return get(key, *sizes)

    patch.setattr(reader.bucket, "get", slow)


def version_1(machine: Driven) -> int:
    request = HydrateRequest(namespace=NAMESPACE, thread="job", max_bytes=1 << 20)
    request.version.version = 1
    return machine.hydrate(request).checkpoint.version


@pytest.mark.parametrize("first", [1, 4])  # an index, a pack
def test_history_that_is_pruned_while_it_is_read(driven: Town, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """The owner prunes meanwhile, and removes what nobody needs: these versions are pruned, and nothing is lost."""
    small.shrink(window=2)
    owner, reader = driven.machine("owner"), driven.machine("reader")
    owner.put(append())
    owner.ship_now()
    locks.work(owner, 12)
    reader.state()
    assert reader.thread().floor_sequence

    def happens(number: int) -> None:
        for _ in range(6 if number == first else 0):
            locks.work(owner, 6)
            locks.prune(owner)
            driven.time.sleep(LONGER_THAN_GRACE_S)
            work(owner, 2)

    at_each_read(reader, monkeypatch, happens)
    reader.archive.complete(NAMESPACE, "job")
    with pytest.raises(VersionPruned):
        version_1(reader)
    assert reader.state().checkpoint.version == owner.thread().head.last_version


def test_history_that_is_lost(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """HEAD still names it, so it is CORRUPT after one more look."""
    owner, reader = driven.machine("owner"), driven.machine("reader")
    work(owner, 30)
    reader.state()
    asked: list[int] = []
    at_each_read(reader, monkeypatch, asked.append)
    for key in [key for key in driven.bucket.objects if key.endswith(".pack")]:
        driven.bucket.delete(key)
    with pytest.raises(Corrupt, match="missing in the archive"):
        reader.archive.complete(NAMESPACE, "job")
    assert len(asked) < 40


def test_history_that_moves_while_it_is_read(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner joins packs meanwhile, and removes the old ones when their grace time is over."""
    owner, reader = driven.machine("owner"), driven.machine("reader")
    work(owner, 30)
    reader.state()

    def happens(number: int) -> None:
        if number <= 3:
            for _ in range(2):
                work(owner, 15)
                driven.time.sleep(LONGER_THAN_GRACE_S)

    at_each_read(reader, monkeypatch, happens)
    reader.archive.complete(NAMESPACE, "job")
    assert version_1(reader) == 1
    assert not reader.thread().floor_sequence
