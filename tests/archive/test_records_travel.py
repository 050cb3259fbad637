"""The danger: another machine has other records than the one that wrote them, or calls a thread with some damaged."""

from __future__ import annotations

import random

import pytest
from google.protobuf.empty_pb2 import Empty
from tests.daemon.driven import CALLER, NAMESPACE, Driven, append
from tests.daemon.town import Town
from tests.daemon.unthreaded import run
from tests.daemon.wire import text

from stateward.v1.archive_service_pb2 import ListArchiveRequest
from stateward.v1.record_pb2 import RecordWrite
from stateward.v1.record_service_pb2 import (
    ListRecordsRequest,
    PutRecordsRequest,
    PutRecordsResponse,
)
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.archive.fleet.fleet import ArchiveLister
from stateward_sidecar.errors import RecordConflict
from stateward_sidecar.store.check import verify
from stateward_sidecar.store.clean import clear, recordcleaning
from stateward_sidecar.store.journal import journal, requests
from stateward_sidecar.store.versions import snapshots

KEYS = [f"k/{number:02}" for number in range(40)]


def put(machine: Driven, *writes: RecordWrite, request_id: str = "") -> PutRecordsResponse:
    name = request_id or f"{machine.number} {random.random()}"
    request = PutRecordsRequest(namespace=NAMESPACE, thread="job", writes=writes, options=WriteOptions(request_id=name))
    answer: PutRecordsResponse = run(machine.records.put_records(request, CALLER))
    return answer


def value(key: str, content: str, **fields: object) -> RecordWrite:
    return RecordWrite(key=key, value=text(content), **fields)


def left(machine: Driven) -> dict[str, str]:
    """All records of the thread, as the machine shows them."""
    request = ListRecordsRequest(namespace=NAMESPACE, thread="job", page_size=1000)
    found = run(machine.records.list_records(request, CALLER)).records
    return {record.key: record.value.data.decode(errors="replace") for record in found}


def shuffle(machine: Driven, model: dict[str, str], seed: int, rounds: int = 30, *, is_shipped: bool = True) -> None:
    """Writes, replaces and deletes records, several in a call."""
    dice = random.Random(seed)
    put(machine, value("first", f"{seed}"))
    model["first"] = f"{seed}"
    for number in range(rounds):
        writes = []
        for key in dice.sample(KEYS, dice.randint(1, 6)):
            if dice.random() < 0.3:
                writes.append(RecordWrite(key=key, delete=Empty()))
                model.pop(key, None)
            else:
                model[key] = f"{seed} {number} {key} " + "x" * dice.randint(0, 900)
                writes.append(value(key, model[key]))
        put(machine, *writes)
        if seed % 2:  # beside versions, so that a reader fetches the newest part alone
            machine.put(append(dice.randbytes(400)))
        if is_shipped and number % 5 == 0:
            machine.ship_now()
    machine.ship_now()


@pytest.fixture(params=["whole", "moved", "moved, entries dropped"])
def moving(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How much of the journal still counts."""
    monkeypatch.setattr(recordcleaning, "SLACK_BYTES", 1 << 20 if request.param == "whole" else 2000)
    monkeypatch.setattr(recordcleaning, "STEP_BYTES", 2000)
    if request.param == "moved, entries dropped":
        for module in (clear, requests, verify):
            monkeypatch.setattr(module, "REQUEST_WINDOW_ENTRIES", 1)
            monkeypatch.setattr(module, "REQUEST_WINDOW_S", 0, raising=False)
    name: str = request.param
    return name


@pytest.mark.parametrize("seed", range(3))
def test_another_machine_has_the_same_records(driven: Town, moving: str, seed: int) -> None:
    """On an empty disk, on a copy that was there before, and when it goes on; Verify finds nothing anywhere."""
    first, reader = driven.machine("first"), driven.machine("reader")
    model: dict[str, str] = {}
    shuffle(first, model, seed)
    assert left(first) == left(reader) == model
    shuffle(first, model, seed + 100)
    assert (first.thread().pruned.records.last > 0) == (moving != "whole")
    assert first.findings() == []
    assert left(first) == model
    revision = put(first, value("last", "1")).revision
    model["last"] = "1"
    first.ship_now()
    driven.end(first)
    empty = driven.machine("empty")
    for machine in (reader, empty):
        if seed % 2:
            machine.state()
        assert left(machine) == model
        assert machine.findings() == []
    reader.archive.own(NAMESPACE, "job", take_over=True)
    assert put(reader, value("last", "2", expected_revision=revision)).revision > revision
    with pytest.raises(RecordConflict):
        put(reader, value("last", "3", expected_revision=revision))
    model["last"] = "2"
    shuffle(reader, model, seed + 200)
    reader.restart()
    assert left(reader) == model
    assert reader.findings() == []
    assert left(empty) == model
    assert empty.findings() == []


def test_a_lost_write_cannot_be_expected(driven: Town) -> None:
    """The successor gives its revision to nobody else, so a caller that saw it is refused."""
    first, second = driven.machine("first"), driven.machine("second")
    put(first, value("a", "1"))
    first.ship_now()
    lost = put(first, value("a", "lost")).revision
    driven.end(first)
    second.archive.own(NAMESPACE, "job", take_over=True)
    for content in ("2", "3"):
        assert put(second, value("a", content)).revision > lost
    with pytest.raises(RecordConflict):
        put(second, value("a", "4", expected_revision=lost))


def test_a_retry_elsewhere_gets_the_first_answer(driven: Town, moving: str) -> None:
    """Although the machine has not fetched the records yet."""
    del moving
    first, second = driven.machine("first"), driven.machine("second")
    shuffle(first, {}, 7)
    answer = put(first, value("a", "1"), request_id="again")
    first.ship_now()
    driven.end(first)
    second.archive.own(NAMESPACE, "job", take_over=True)
    assert put(second, value("a", "1"), request_id="again").revision == answer.revision


def test_the_archive_does_not_grow(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """HEAD names packs of what is left, and not of what was replaced since the beginning."""
    monkeypatch.setattr(journal, "INLINE_EDITS_MAX", 1 << 20)  # entries of records are never in pieces
    monkeypatch.setattr(recordcleaning, "SLACK_BYTES", 2000)
    monkeypatch.setattr(recordcleaning, "STEP_BYTES", 2000)
    for module in (clear, requests, verify):
        monkeypatch.setattr(module, "REQUEST_WINDOW_ENTRIES", 1)
        monkeypatch.setattr(module, "REQUEST_WINDOW_S", 0, raising=False)
    first, dice, sizes, written = driven.machine("first"), random.Random(5), list[int](), 0
    for number in range(120):
        data = dice.randbytes(500)
        written += len(data)
        put(first, RecordWrite(key=f"k{number % 6}", value={"media_type": "a/b", "data": data}))
        if number % 4 == 3:
            first.ship_now()
            head = first.archive.state.holds[first.thread().number].head
            sizes.append(sum(ref.size_bytes for ref in head.objects) + sum(map(len, head.tail)))
    assert written > 50_000
    assert max(sizes) < 25_000
    assert len(left(first)) == 6
    assert first.findings() == []


def test_a_floor_that_rises_while_history_is_fetched(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs have what was cleared since the HEAD that a reader has: it counts for nothing, and is no damage."""
    monkeypatch.setattr(journal, "INLINE_EDITS_MAX", 1 << 20)
    monkeypatch.setattr(snapshots, "WEIGHT_MIN_BYTES", 1 << 20)  # no old pack goes into an index; they are merged
    monkeypatch.setattr(recordcleaning, "SLACK_BYTES", 500)
    first, readers = driven.machine("first"), list[Driven]()
    for number in range(48):
        put(first, value(f"{number % 3}", "x" * 300))
        first.ship_now()
        if number in (18, 21, 24, 27):
            readers.append(driven.machine("reader"))
            state = readers[-1].archive.state
            for _ in ArchiveLister(state, readers[-1].archive.attacher).list(ListArchiveRequest(index=True)):
                pass
    for reader in readers:
        assert reader.thread().floor_sequence
        reader.archive.complete(NAMESPACE, "job")
        assert left(reader) == left(first)
        assert reader.findings() == []


def test_an_idle_owner_that_was_replaced_deletes_no_expired_records(driven: Town) -> None:
    """Its sweep asks HEAD before it writes: its entry would become an orphan that only a person can delete."""
    first, second = driven.machine("first"), driven.machine("second")
    put(first, value("short", "1", ttl={"seconds": 60}), value("long", "2"))
    first.ship_now()
    second.archive.own(NAMESPACE, "job", take_over=True)
    put(second, value("new", "3"))
    second.ship_now()
    driven.time.sleep(61)
    first.sweep()
    for number in first.outbox():
        first.ship(number)
    assert [thread.name for thread in first.threads()] == ["job"]
    second.sweep()
    second.ship_now()
    assert left(first) == left(second) == {"long": "2", "new": "3"}
    assert first.findings() == second.findings() == []
