"""The danger: a lifecycle rule moves objects to a class that cannot be read, and the whole bucket counts as refused."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from tests.daemon.driven import NAMESPACE, Driven, append
from tests.daemon.town import Town

from stateward.v1.checkpoint_service_pb2 import HydrateRequest
from stateward_sidecar.bucket.base import Object, ObjectCold
from stateward_sidecar.errors import Corrupt


def freeze(machine: Driven, patch: pytest.MonkeyPatch, is_cold: Callable[[str], bool]) -> None:
    """This machine cannot read such objects."""
    get = machine.bucket.get

    def thawed(key: str, *sizes: int) -> Object:
        if is_cold(key):
            raise ObjectCold(key)
        return get(key, *sizes)

    patch.setattr(machine.bucket, "get", thawed)


@pytest.fixture
def owner(driven: Town) -> Driven:
    """A machine whose thread has much history, and which is gone."""
    first = driven.machine("first")
    for _ in range(30):
        first.put(append(os.urandom(300)))
        first.ship_now()
    first.archive.detach(NAMESPACE, "job")
    return first


def test_old_packs(driven: Town, owner: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is taken over and goes on; the versions in them are CORRUPT, and the message says what to do. They can
    be read when the objects are restored."""
    second = driven.machine("second")
    second.state()
    lacks = second.thread().floor_version
    assert lacks > 1
    freeze(second, monkeypatch, lambda key: key.endswith(".pack"))
    second.archive.own(NAMESPACE, "job", take_over=True)
    assert second.put(append(after=30)).version == 31
    second.ship_now()
    with pytest.raises(Corrupt, match=r"\.pack is in a storage class that must be restored"):
        second.archive.complete(NAMESPACE, "job")
    assert not second.wire.refuses
    assert not second.wire.away_s
    monkeypatch.undo()
    second.archive.complete(NAMESPACE, "job")
    request = HydrateRequest(namespace=NAMESPACE, thread="job", max_bytes=1 << 20)
    request.version.version = 1
    assert second.hydrate(request).checkpoint.version == 1


def test_a_head(driven: Town, owner: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else can take this thread, and its name is not taken for free. All other threads work on."""
    second = driven.machine("second")
    freeze(second, monkeypatch, lambda key: key.endswith("/HEAD"))
    for call in (second.state, lambda: second.put(append(after=0))):
        with pytest.raises(Corrupt, match="HEAD is in a storage class that must be restored"):
            call()
    assert not second.wire.refuses
    assert not second.wire.away_s
    monkeypatch.undo()
    second.archive.own(NAMESPACE, "job")
    assert second.put(append(after=30)).version == 31
