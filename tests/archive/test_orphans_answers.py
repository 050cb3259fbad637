"""The danger: the answer that an orphan used is called damaged, because its thread has cleaned its signals."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.daemon import small
from tests.daemon.driven import CALLER, NAMESPACE, Driven, append
from tests.daemon.town import Town
from tests.daemon.unthreaded import run

from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.signal_service_pb2 import ListSignalsRequest, SendSignalRequest
from stateward.v1.thread_service_pb2 import PruneThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import StatewardError, VersionPruned
from stateward_sidecar.store.journal import replay

PLACE = {"namespace": NAMESPACE, "thread": "job"}


@pytest.fixture
def window() -> None:
    """Two entries for retries."""
    small.shrink(window=2)


def used(machine: Driven, thread: str, version: int) -> list[str]:
    request = ListSignalsRequest(namespace=NAMESPACE, thread=thread, acknowledged_by=VersionRef(version=version))
    return [each.name for each in run(machine.signals.list_signals(request, CALLER)).signals]


def acknowledge(machine: Driven, signal_id: str) -> int:
    save = append()
    save.ack_signals.append(signal_id)
    return machine.put(save).version


def part(town: Town, clean: Callable[[Driven, int], None]) -> tuple[Driven, str, int]:
    """Two lines use one signal, which is older than what the second machine fetched. Returns that machine, its orphan,
    and the orphan's version that used it. ``clean``: what the thread's owner does then, with its own such version."""
    a, b = town.machine("a"), town.machine("b")
    a.put(append())
    a.ship_now()
    sent = a.signal(SendSignalRequest(**PLACE, name="go", options=WriteOptions(request_id=os.urandom(8).hex()))).signal
    for _ in range(30):
        a.put(append())
        a.ship_now()
    b.archive.own(NAMESPACE, "job", take_over=True)
    b.ship_now()
    version = acknowledge(b, sent.signal_id)
    a.archive.own(NAMESPACE, "job", take_over=True)
    clean(a, acknowledge(a, sent.signal_id))
    with suppress(StatewardError):
        b.archive.confirm(NAMESPACE, "job")
    (orphan,) = [each for each in b.threads() if each.name.startswith("job@@")]
    assert orphan.floor_sequence > sent.sequence
    return b, orphan.name, version


@pytest.mark.usefixtures("window")
def test_it_is_in_the_archive(driven: Town) -> None:
    """The older history is fetched for it, as for any read."""
    b, orphan, version = part(driven, lambda a, _: a.ship_now())
    assert used(b, orphan, version) == ["go"]


@pytest.mark.usefixtures("window")
def test_it_went_with_the_older_history(driven: Town) -> None:
    """The owner pruned what both lines share: that is said to be gone."""

    def clean(a: Driven, version: int) -> None:
        del version
        a.put(append())
        a.prune(PruneThreadRequest(**PLACE, keep_latest_per_branch=1))
        a.ship_now()

    b, orphan, version = part(driven, clean)
    with pytest.raises(VersionPruned, match="went with thread"):
        used(b, orphan, version)


@pytest.mark.usefixtures("window")
def test_it_went_alone(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner pruned its version that used the signal, and no pack has the signal any more."""
    b, orphan, version = part(driven, lambda a, _: a.ship_now())
    monkeypatch.setattr(replay, "has_entry", lambda *_: False)
    with pytest.raises(VersionPruned, match="went with thread"):
        used(b, orphan, version)
