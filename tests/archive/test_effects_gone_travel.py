"""The danger: another machine brings deleted effects back, or calls a thread damaged that has some."""

from __future__ import annotations

import os

import pytest
from google.protobuf.empty_pb2 import Empty
from tests.daemon.driven import CALLER, NAMESPACE, Driven, append
from tests.daemon.town import Town
from tests.daemon.unthreaded import run
from tests.daemon.wire import text

from stateward._operations.threads import spans_of
from stateward.v1.effect_pb2 import Effect
from stateward.v1.effect_service_pb2 import DeleteEffectsRequest, EffectKeys, ListEffectsRequest
from stateward.v1.thread_service_pb2 import PruneThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.store.check import verify
from stateward_sidecar.store.clean import clear
from stateward_sidecar.store.journal import replay, requests


def fill(machine: Driven, count: int, *, after: int = 0, is_shipped: bool = True) -> None:
    """Versions with two effects, one of which is replaced."""
    for number in range(after + 1, after + count + 1):
        request = append(os.urandom(400))
        request.checkpoint_id = f"c{number}"
        for key in ("a", "b"):
            request.effects.add(anchor=f"c{number}", key=key, value=text(f"{number} {key}"))
        machine.put(request)
        again = append(b"again")
        again.effects.add(anchor=f"c{number}", key="b", value=text("other"), on_conflict=Effect.CONFLICT_RULE_REPLACE)
        again.effects.add(anchor="free", key=f"{number}", value=text("free"))
        machine.put(again)
        if is_shipped:
            machine.ship_now()


def prune(machine: Driven, *versions: int) -> None:
    machine.prune(PruneThreadRequest(namespace=NAMESPACE, thread="job", versions=spans_of(versions)))


def left(machine: Driven) -> list[str]:
    machine.archive.complete(NAMESPACE, "job")
    asked = ListEffectsRequest(namespace=NAMESPACE, thread="job", page_size=1000)
    found = machine.store.effect_list.read(asked).effects
    return sorted(f"{each.effect.anchor} {each.effect.key}" for each in found if each.effect.anchor != "free")


@pytest.mark.parametrize("is_dropped", [False, True], ids=["husks", "entries dropped"])
def test_another_machine_has_the_same_effects(driven: Town, is_dropped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an empty disk, on a copy that was there before, and with old packs that still have the entries."""
    if is_dropped:
        for module in (clear, requests, verify):
            monkeypatch.setattr(module, "REQUEST_WINDOW_ENTRIES", 1)
            monkeypatch.setattr(module, "REQUEST_WINDOW_S", 0, raising=False)
    first, reader = driven.machine("first"), driven.machine("reader")
    fill(first, 8)
    reader.state()
    assert len(left(reader)) == 16
    prune(first, 1, 3, 5, 7, 9)
    first.ship_now()
    fill(first, 6, after=8)
    prune(first, 11, 13)
    first.ship_now()
    wanted = left(first)
    assert wanted == sorted(f"c{number} {key}" for number in range(8, 15) for key in "ab")
    assert first.findings() == []
    state = first.state().state
    driven.end(first)
    for machine in (reader, driven.machine("empty")):
        assert machine.state().state == state
        assert left(machine) == wanted
        assert machine.findings() == []
    reader.archive.own(NAMESPACE, "job", take_over=True)
    prune(reader, 15)
    reader.ship_now()
    assert left(reader) == wanted[2:] if wanted[0].startswith("c8") else True
    reader.restart()
    assert reader.findings() == []


def test_values_wait_until_they_are_archived(driven: Town) -> None:
    """A HEAD that is being written may still have the effects, and another machine may take the thread from it."""
    first = driven.machine("first")
    fill(first, 4)
    request = append(b"more")
    request.effects.add(anchor="c1", key="late", value=text("late"))
    first.put(request)
    late = first.thread().head.tip_sequence - 1
    first.store.pruner.prune(  # without the service, which archives all that is there before
        PruneThreadRequest(namespace=NAMESPACE, thread="job", versions=spans_of([1]))
    )
    assert "c1 late" not in left(first)

    def is_cut() -> bool:
        with first.store.context.engine.read() as txn:
            return next(replay.read_entries(txn, first.thread().identity, late)).is_husk

    assert not is_cut()
    first.ship_now()
    first.sweep()
    assert is_cut()
    assert first.findings() == []


def test_deleted_effects_travel(driven: Town) -> None:
    """In a thread of which nothing was pruned; a reader with an old copy loses them, too."""
    first, reader = driven.machine("first"), driven.machine("reader")
    fill(first, 8)
    reader.state()
    assert len(left(reader)) == 16
    for number in range(1, 8):
        asked = DeleteEffectsRequest(namespace=NAMESPACE, thread="job", anchor=f"c{number}", all=Empty())
        asked.options.request_id = f"{number}"
        assert first.store.effect_deleter.delete(asked).deleted == 2
        first.ship_now()
    driven.end(first)
    for machine in (reader, driven.machine("empty")):
        machine.state()
        assert left(machine) == ["c8 a", "c8 b"]
        assert machine.findings() == []
    last = driven.machine("last")  # which fetches what it needs, and archives the deletion
    last.archive.own(NAMESPACE, "job", take_over=True)
    asked = DeleteEffectsRequest(
        namespace=NAMESPACE, thread="job", anchor="c8", keys=EffectKeys(keys=["b"]),
        options=WriteOptions(request_id="last"),
    )
    assert run(last.effects.delete_effects(asked, CALLER)).deleted == 1
    last.ship_now()
    reader.state()
    assert left(last) == left(reader) == ["c8 a"]


def test_a_prune_that_was_not_archived_is_set_aside(driven: Town) -> None:
    """The thread has the effects that were archived; the orphan has what was left of them there."""
    first, second = driven.machine("first"), driven.machine("second")
    fill(first, 4)
    prune(first, 1, 3)
    second.archive.own(NAMESPACE, "job", take_over=True)
    fill(second, 1, after=4)
    first.ship_now()
    assert left(second) == sorted(f"c{number} {key}" for number in range(1, 6) for key in "ab")
    assert left(first) == left(second)
    assert first.findings() == second.findings() == []
