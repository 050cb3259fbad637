"""The danger: a retry reaches another machine, which lacks the entry of the first try and takes the request for new."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.archive.test_effects_gone_travel import prune
from tests.daemon.driven import NAMESPACE, Driven, append
from tests.daemon.town import Town, town

from stateward.v1.backup_service_pb2 import ExportThreadRequest, ImportBegin
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.store.check import verify
from stateward_sidecar.store.clean import clear
from stateward_sidecar.store.journal import requests

COUNT = 24


def lost_machine(driven: Town) -> list[SaveRequest]:
    """A machine that archives a thread, a pack a save, and is lost. Returns its requests."""
    first = driven.machine("first")
    made = [append(os.urandom(2000), request_id=f"request-{number}") for number in range(COUNT)]
    for request in made:
        first.put(request)
        first.ship_now()
    driven.end(first)
    return made


@pytest.mark.parametrize("window", [16, 1024])
def test_a_retry_after_a_read_and_a_takeover_is_applied_once(
    driven: Town, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """Whatever a reader's copy lacks, a writer has all entries that a retry may ask for."""
    monkeypatch.setattr(requests, "REQUEST_WINDOW_ENTRIES", window)
    made = lost_machine(driven)
    second = driven.machine("second")
    second.state()
    assert second.thread().floor_sequence > max(COUNT - window, 0)  # the copy lacks some of the window
    second.archive.own("default", "job", take_over=True)
    for request in made[-window:]:
        assert second.put(request).receipt.replayed
    assert second.state().checkpoint.version == COUNT
    second.archive.complete("default", "job")  # what was fetched for retries hinders nobody who wants it all
    assert second.thread().floor_sequence == 0
    for version in range(1, COUNT + 1):
        old = HydrateRequest(namespace="default", thread="job", max_bytes=1 << 20)
        old.version.version = version
        assert len(second.hydrate(old).state.logs["m"].entries) == version


def test_a_missing_row_below_the_floor_is_not_new(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """However a thread came to be ours, a request that its copy does not know is looked for in the archive."""
    made = lost_machine(driven)
    second = driven.machine("second")
    monkeypatch.setattr(second.archive.attacher.window, "fill", lambda *_: None)
    second.state()
    second.archive.own("default", "job", take_over=True)
    monkeypatch.undo()
    assert second.thread().floor_sequence
    assert second.put(made[1]).receipt.replayed
    assert not second.put(append(request_id="new")).receipt.replayed


@pytest.mark.parametrize("is_read_first", [True, False])
@pytest.mark.parametrize("window", [16, 1024])
def test_a_thread_goes_on_without_entries_that_are_lost(
    driven: Town, monkeypatch: pytest.MonkeyPatch, window: int, is_read_first: bool
) -> None:
    """A pack that only retries ask for is gone: nothing can answer them, and new saves are taken all the same."""
    monkeypatch.setattr(requests, "REQUEST_WINDOW_ENTRIES", window)
    lost_machine(driven)
    packs = sorted(key for key, _ in driven.bucket.list("v1/t/") if key.endswith(".pack"))
    oldest = min(packs[1:], key=lambda key: int(key.rpartition("-")[2].removesuffix(".pack")))
    driven.bucket.delete(oldest)
    second = driven.machine("second")
    if is_read_first:
        second.state()
    second.archive.own("default", "job", take_over=True)
    assert second.put(append(b"new", after=COUNT)).version == COUNT + 1
    assert second.put(append(b"newer")).version == COUNT + 2


def applied_anew(driven: Town, monkeypatch: pytest.MonkeyPatch, first: Driven) -> tuple[Driven, SaveRequest]:
    """A machine that took a thread, lacks the entry of version 3, and has applied a retry of its request anew."""
    for module in (clear, requests, verify):
        monkeypatch.setattr(module, "REQUEST_WINDOW_ENTRIES", 1)
        monkeypatch.setattr(module, "REQUEST_WINDOW_S", 0, raising=False)
    made = [append(os.urandom(2000), request_id=f"request-{number}") for number in range(COUNT)]
    for request in made:
        first.put(request)
        first.ship_now()
    second = driven.machine("second")
    second.state()
    second.archive.own(NAMESPACE, "job", take_over=True)
    again = second.put(made[2])
    assert (again.version, again.receipt.replayed) == (COUNT + 1, False)
    second.put(append())
    second.ship_now()
    return second, made[2]


def check(machine: Driven, request: SaveRequest, version: int) -> None:
    answer = machine.put(request)
    assert (answer.version, answer.receipt.replayed) == (version, True)
    assert machine.findings() == []


@pytest.mark.parametrize("removed", ["before", "after"])
@pytest.mark.parametrize("who", ["second", "first"])
def test_a_retry_gets_the_answer_that_is_left(
    driven: Town, monkeypatch: pytest.MonkeyPatch, who: str, removed: str
) -> None:
    """The newer entry of a request id is removed from a disk before or after the older one comes there, or the disk had
    the older one: a retry is not applied once more."""
    first = driven.machine("first")
    machine, request = applied_anew(driven, monkeypatch, first)
    other = machine
    if who == "first":
        machine = first
        first.state()
    if removed == "after":
        machine.archive.complete(NAMESPACE, "job")
        if who == "first":
            machine.archive.own(NAMESPACE, "job", take_over=True)
        check(machine, request, COUNT + 1)
        other = machine
    prune(other, COUNT + 1)
    other.put(append())
    other.ship_now()
    other.sweep()
    if removed == "before" and who == "first":
        machine.state()
        machine.archive.own(NAMESPACE, "job", take_over=True)
        machine.sweep()
    machine.archive.complete(NAMESPACE, "job")
    check(machine, request, 3)
    prune(machine, 3)
    machine.put(append())
    machine.ship_now()
    machine.sweep()
    assert not machine.put(request).receipt.replayed
    assert machine.findings() == []


def test_a_restored_thread_answers_as_its_original(
    driven: Town, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A backup has both entries of a request id."""
    second, request = applied_anew(driven, monkeypatch, driven.machine("first"))
    second.archive.complete(NAMESPACE, "job")
    answers = list(second.store.exporter.open(ExportThreadRequest(namespace=NAMESPACE, thread="job")))
    with town(tmp_path / "another") as elsewhere:
        third = elsewhere.machine("third")
        third.archive.own(NAMESPACE, "job")
        made = third.store.importer.begin(
            ImportBegin(namespace=NAMESPACE, thread="job", options=WriteOptions(request_id="restore"))
        )
        for answer in answers:
            made.take(answer.parts)
        made.finish()
        check(third, request, COUNT + 1)
        prune(third, COUNT + 1)
        third.put(append())
        third.ship_now()
        third.sweep()
        check(third, request, 3)
