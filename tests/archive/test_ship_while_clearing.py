"""The danger: a ship reads entries again that were cleared since it began, and HEAD says that they are whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.empty_pb2 import Empty
from tests.archive.test_records_travel import left as records_left
from tests.archive.test_records_travel import put, value
from tests.daemon.driven import CALLER, NAMESPACE, Driven, append
from tests.daemon.town import Town
from tests.daemon.unthreaded import run
from tests.daemon.wire import text

from stateward._operations.threads import spans_of
from stateward.v1.effect_service_pb2 import DeleteEffectsRequest, ListEffectsRequest
from stateward.v1.thread_service_pb2 import PruneThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.archive.fleet.fleet import Fleet
from stateward_sidecar.archive.fleet.inspect import flaws_of
from stateward_sidecar.archive.ship import ship
from stateward_sidecar.store.check import verify
from stateward_sidecar.store.clean import clear, recordcleaning
from stateward_sidecar.store.clean.pruneplan import Plan
from stateward_sidecar.store.journal import journal, requests
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.versions import snapshots


def after_moment(machine: Driven, act: Callable[[], object]) -> None:
    """Does something once, right after the next ship has looked at the thread; the ship has nothing of HEAD in memory,
    as in a process that has many threads, or after a restart."""
    outbox, real = machine.archive.state.outbox, machine.archive.state.outbox.moment

    def moment(*arguments: object) -> object:
        found = real(*arguments)  # type: ignore[arg-type]
        outbox.moment = real  # type: ignore[method-assign]
        act()
        return found

    outbox.moment = moment  # type: ignore[method-assign, assignment]
    hold = machine.hold_of("job")
    assert hold is not None
    hold.tail = hold.pieces = None


def prune(machine: Driven, *versions: int) -> None:
    """Without the service, which archives first what is there."""
    request = PruneThreadRequest(namespace=NAMESPACE, thread="job", versions=spans_of(versions))
    machine.store.pruner.prune(request)


def fill(machine: Driven, count: int) -> None:
    for number in range(count):
        request = append(os.urandom(30))
        request.effects.add(anchor="free", key=f"{number}", value=text(f"{number}"))
        machine.put(request)
    machine.ship_now()


def flaws(machine: Driven) -> list[str]:
    """What is wrong with the thread in the archive, after all of it was read."""
    thread, fleet = machine.thread(), Fleet(machine.archive.state)
    (found,) = fleet.read([machine.archive.state.place(thread.identity.namespace_keys, "job")])
    return [flaw.message for flaw in flaws_of(machine.archive.state, found)]


@pytest.fixture
def first(driven: Town, monkeypatch: pytest.MonkeyPatch) -> Driven:
    """A machine whose HEADs carry many entries."""
    monkeypatch.setattr(ship, "TAIL_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(ship, "TAIL_SOFT_BYTES", 1 << 20)
    return driven.machine("first")


def test_versions_are_pruned_during_a_ship(driven: Town, first: Driven) -> None:
    """The machine is lost after this ship. What the ship archived is readable elsewhere."""
    fill(first, 6)
    first.put(append(b"newest"))
    state = first.state().state
    after_moment(first, lambda: prune(first, *range(1, 6)))
    first.ship_now()
    assert first.thread().archived_sequence >= 13
    assert flaws(first) == []
    driven.end(first)
    second = driven.machine("second")
    assert second.state().state == state
    assert second.findings() == []


def test_effects_are_deleted_during_a_ship(driven: Town, first: Driven) -> None:
    """Their values are in HEAD, or HEAD says that they are gone."""
    fill(first, 6)
    first.put(append(b"newest"))
    request = DeleteEffectsRequest(
        namespace=NAMESPACE, thread="job", anchor="free", all=Empty(), options=WriteOptions(request_id="delete")
    )
    after_moment(first, lambda: first.store.effect_deleter.delete(request))
    first.ship_now()
    assert flaws(first) == []
    driven.end(first)
    second = driven.machine("second")
    second.state()
    asked = ListEffectsRequest(namespace=NAMESPACE, thread="job", page_size=1000)
    second.archive.complete(NAMESPACE, "job")
    assert len(second.store.effect_list.read(asked).effects) in (0, 6)


def test_records_are_moved_during_a_ship(driven: Town, first: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks for these moves, and an entry that was cleared cannot even be installed elsewhere."""
    monkeypatch.setattr(journal, "INLINE_EDITS_MAX", 1 << 16)
    for number in range(6):
        put(first, value(f"{number}", os.urandom(200).hex()))
    first.ship_now()
    monkeypatch.setattr(recordcleaning, "SLACK_BYTES", 500)
    last = os.urandom(200).hex()

    def write() -> None:
        for _ in range(12):
            put(first, value("5", last))

    put(first, value("6", "x"))
    after_moment(first, write)
    first.ship_now()
    assert first.thread().pruned.records.last > 0
    assert flaws(first) == []
    driven.end(first)
    second = driven.machine("second")
    assert sorted(records_left(second)) == [f"{number}" for number in range(7)]
    assert second.findings() == []


def test_packs_are_merged_later(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prune clears what a merge of packs reads: this HEAD names the packs as they are, and a later one the merged."""
    monkeypatch.setattr(snapshots, "WEIGHT_MIN_BYTES", 1 << 20)  # no old pack goes into an index
    first = driven.machine("first")
    fill(first, 4)
    outbox, real = first.archive.state.outbox, first.archive.state.outbox.entries
    asked = []

    def entries(thread: Thread, after: int, until: int) -> object:
        if until < thread.head.tip_sequence and not asked:
            asked.append(until)
            prune(first, *range(1, 10))
        return real(thread, after, until)

    outbox.entries = entries  # type: ignore[method-assign, assignment]
    for _ in range(30):
        first.put(append(os.urandom(400)))
        state = first.state().state
        first.ship_now()
        if asked:
            break
    assert asked
    assert flaws(first) == []
    lost = dict(driven.bucket.objects)
    first.put(append(b"more"))
    first.ship_now()
    assert flaws(first) == []
    driven.end(first)
    driven.bucket.objects = lost
    second = driven.machine("second")
    assert second.state().state == state
    second.archive.complete(NAMESPACE, "job")
    assert second.findings() == []


def test_entries_for_retries_go_during_a_ship(first: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were pruned before the ship, and so much is written during it that no retry may ask for them any more."""
    for module in (requests, clear):
        monkeypatch.setattr(module, "REQUEST_WINDOW_ENTRIES", 4)
    monkeypatch.setattr(clear, "REQUEST_WINDOW_S", 0)
    fill(first, 6)
    first.put(append(b"next"))
    clearer = first.store.pruner._clearer
    clear_now = clearer.clear
    prune(first, 3)
    first.ship_now()
    monkeypatch.setattr(clearer, "clear", lambda *_: None)  # it gets to that only during the ship
    prune(first, *range(4, 7))
    first.put(append(b"newest"))

    def write_on() -> None:
        for _ in range(6):
            first.put(append(b"more"))
        monkeypatch.setattr(clearer, "clear", clear_now)
        first.sweep()

    after_moment(first, write_on)
    first.ship_now()
    assert first.thread().archived_sequence == first.thread().head.tip_sequence
    assert flaws(first) == []


def go_on(other: Driven) -> None:
    """Another machine takes the thread, and writes and removes entries."""
    other.archive.own(NAMESPACE, "job", take_over=True)
    for _ in range(12):
        put(other, value("k", os.urandom(200).hex()))
        other.ship_now()
    other.sweep()
    other.put(append(b"next"))
    other.ship_now()


def test_a_prune_is_planned_while_another_machine_goes_on(
    driven: Town, first: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what the other one wrote, entries of records are gone by the time the thread comes back."""
    for module in (requests, clear, verify):
        monkeypatch.setattr(module, "REQUEST_WINDOW_ENTRIES", 1)
    monkeypatch.setattr(clear, "REQUEST_WINDOW_S", 0)
    monkeypatch.setattr(recordcleaning, "SLACK_BYTES", 500)
    fill(first, 6)
    second, pruner = driven.machine("second"), first.store.pruner
    commit = pruner._commit_request

    def late(request: PruneThreadRequest, plan: Plan | None) -> Any:
        monkeypatch.setattr(pruner, "_commit_request", commit)
        go_on(second)
        first.archive.own(NAMESPACE, "job", take_over=True)
        return commit(request, plan)

    monkeypatch.setattr(pruner, "_commit_request", late)
    prune(first, 3)
    assert 3 in first.thread().pruned
    assert first.findings() == []


def test_a_deletion_of_effects_is_planned_while_another_machine_goes_on(
    driven: Town, first: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for the effects that a caller names."""
    for module in (requests, clear, verify):
        monkeypatch.setattr(module, "REQUEST_WINDOW_ENTRIES", 1)
    monkeypatch.setattr(clear, "REQUEST_WINDOW_S", 0)
    monkeypatch.setattr(recordcleaning, "SLACK_BYTES", 500)
    fill(first, 6)
    second, deleter = driven.machine("second"), first.store.effect_deleter
    plan = deleter._plan

    def late(*arguments: Any) -> Any:
        made = plan(*arguments)
        monkeypatch.setattr(deleter, "_plan", plan)
        go_on(second)
        first.archive.own(NAMESPACE, "job", take_over=True)
        return made

    monkeypatch.setattr(deleter, "_plan", late)
    asked = DeleteEffectsRequest(
        namespace=NAMESPACE, thread="job", anchor="free", all=Empty(), options=WriteOptions(request_id="delete")
    )
    run(first.effects.delete_effects(asked, CALLER))
    assert first.findings() == []
