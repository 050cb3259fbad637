"""The danger: a scope that is rewritten for ever fills the disk, or loses a record when it is cleaned."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest
from google.protobuf.empty_pb2 import Empty
from tests.daemon.clocks import MovedClock
from tests.daemon.store import findings, get, make_store, opened, rest, save_many, settle, write
from tests.daemon.wire import appends, text

from stateward.storage.v1.journal_pb2 import ENTRY_KIND_RECORDS
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.record_pb2 import RecordWrite
from stateward.v1.record_service_pb2 import (
    DeleteRecordsRequest,
    GetRecordsRequest,
    ListRecordsRequest,
    PutRecordsRequest,
    PutRecordsResponse,
)
from stateward.v1.state_pb2 import Value
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.codec.entry import stored_bytes
from stateward_sidecar.errors import Corrupt, QuotaExceeded, ShuttingDown
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.clean import recordcleaning
from stateward_sidecar.store.clean.recordcleaning import RecordMover
from stateward_sidecar.store.items import recordputs
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.kinds.record import record_key
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import REQUEST_WINDOW_S
from stateward_sidecar.store.thread.thread import Thread, rows, write_head

PLACE = {"namespace": "default", "thread": "t"}
SECOND = {"seconds": 1}


def put(store: Store, *writes: RecordWrite) -> PutRecordsResponse:
    request = PutRecordsRequest(**PLACE, writes=writes, options=WriteOptions(request_id=os.urandom(8).hex()))
    answer: PutRecordsResponse = write(store, store.record_puts.put(request))
    store.record_mover.consider("default", "t")
    return answer


def value(key: str, data: bytes, **fields: object) -> RecordWrite:
    return RecordWrite(key=key, value=Value(media_type="a/b", data=data), **fields)


def left(store: Store) -> dict[str, bytes]:
    request = ListRecordsRequest(**PLACE, page_size=1000)
    return {each.key: each.value.data for each in store.record_list.read(request).answer.records}


def entries(store: Store) -> list[bool]:
    """For each entry on the disk that has or had values: whether it has them."""
    with store.context.engine.read() as txn:
        found = replay.read_entries(txn, get(store).identity, 1)
        return [
            not entry.is_husk for entry in found
            if entry.header.kind == ENTRY_KIND_RECORDS and entry.header.edit_bytes
        ]  # fmt: skip


def used_bytes(store: Store) -> int:
    """Bytes of all rows of the thread."""
    with store.context.engine.read() as txn:
        return sum(len(key) + len(row) for key, row in rows(txn, get(store).identity.keys.prefix))


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moves begin early, and have small steps."""
    monkeypatch.setattr(recordcleaning, "SLACK_BYTES", 20_000)
    monkeypatch.setattr(recordcleaning, "STEP_BYTES", 5_000)
    monkeypatch.setattr(recordcleaning, "STEP_ENTRIES", 20)


def test_rewriting_does_not_grow(tmp_path: Path, tight: None) -> None:
    """Neither rows nor the note of what was pruned; every record has its last value, and Verify finds nothing."""
    del tight
    dice, model, clock = random.Random(1), dict[str, bytes](), MovedClock()
    with opened(tmp_path, clock) as store:
        sizes = []
        for number in range(400):
            writes = dict.fromkeys(f"k{dice.randint(0, 30)}" for _ in range(2))
            model |= {key: dice.randbytes(dice.randint(0, 1500)) for key in writes}
            put(store, *(value(key, model[key]) for key in writes))
            if number % 100 == 99:
                clock.ahead_s += REQUEST_WINDOW_S + 1
                put(store, value("k0", b"tick"))
                model["k0"] = b"tick"
                rest(store)
                sizes.append(used_bytes(store))
        assert left(store) == model
        assert findings(store) == []
        assert len(get(store).pruned.records.pairs()) == 1
        assert sum(entries(store)) < 120
        assert sizes[-1] < 1.7 * sizes[0] + 400 * 250  # husks of the last 1,024 entries stay for retries
        head = get(store).head
        assert head.record_bytes == sum(len(key) + len(data) for key, data in model.items())
        assert 0 < head.record_stored_bytes <= head.record_entry_bytes < 2 * head.record_stored_bytes + 30_000
    with opened(tmp_path, clock) as store:
        assert left(store) == model
        assert findings(store) == []


def test_what_is_deleted_leaves_no_values(tmp_path: Path) -> None:
    """If no record is left, no value is on the disk."""
    with opened(tmp_path) as store:
        put(store, *(value(f"a/{number}", os.urandom(900)) for number in range(40)))
        request = DeleteRecordsRequest(**PLACE, all=Empty(), options=WriteOptions(request_id="d"))
        read = store.record_list.to_delete(request)
        assert write(store, store.record_puts.delete(request, read)).deleted == 40
        store.record_mover.consider("default", "t")
        settle(store)
        assert left(store) == {}
        assert findings(store) == []
        assert not any(entries(store))
        head = get(store).head
        assert (head.records, head.record_bytes, head.record_stored_bytes) == (0, 0, 0)
        put(store, value("again", b"x"))
        assert left(store) == {"again": b"x"}
        assert findings(store) == []


@pytest.mark.parametrize("survives", range(4))
def test_a_kill_between_steps_loses_nothing(tmp_path: Path, tight: None, survives: int) -> None:
    """Each step of a move is a result of its own; the next start clears what the last one left."""
    del tight
    model = dict[str, bytes]()
    store = make_store(tmp_path)
    store.start()
    store.record_mover.start = lambda thread: None  # type: ignore[method-assign]
    for number in range(150):
        model[f"k{number % 20}"] = os.urandom(700)
        put(store, value(f"k{number % 20}", model[f"k{number % 20}"]))
    steps = RecordMover(store.context, store.threads, store.pruner)
    for _ in range(survives):
        assert steps.step(get(store))
    settle(store)
    store.close()
    with opened(tmp_path) as store:
        assert left(store) == model
        assert findings(store) == []
        store.record_mover.move(get(store))
        assert left(store) == model
        assert findings(store) == []
        with store.context.engine.read() as txn:
            assert txn.get(layout.uncleared_key(get(store).number)) is None


def test_expired_records_go(tmp_path: Path) -> None:
    """They are hidden at once, and the sweep removes them in bounded steps; others stay, and so do renewed ones."""
    clock = MovedClock()
    with opened(tmp_path, clock) as store:
        put(store, *(value(f"{number:04}", b"x", ttl=SECOND) for number in range(450)))
        put(store, value("long", b"x", ttl={"seconds": 100}), value("kept", b"x"), value("0001", b"renewed"))
        clock.ahead_s = 2
        assert sorted(left(store)) == ["0001", "kept", "long"]
        assert put(store, value("0002", b"new", expected_revision=0)).revision
        assert get(store).head.records == 452
        store.sweeper.sweep()
        assert get(store).head.records == 4
        assert sorted(left(store)) == ["0001", "0002", "kept", "long"]
        assert findings(store) == []
        put(store, value("long", b"x"))
        store.sweeper.sweep()
        clock.ahead_s = 200
        store.sweeper.sweep()
        assert get(store).head.record_expire_second == 0
        assert findings(store) == []


def test_a_wrong_clock_deletes_nothing(tmp_path: Path) -> None:
    """A jump by more than an hour hides records, and the sweep leaves them: they are shown when the clock is right."""
    clock = MovedClock()
    with opened(tmp_path, clock) as store:
        put(store, value("a", b"x", ttl={"seconds": 600}))
        clock.off_s = 86_400
        store.sweeper.sweep()
        assert left(store) == {}
        clock.off_s = 0
        assert left(store) == {"a": b"x"}


def test_a_refresh_is_a_write_only_if_it_is_due(tmp_path: Path, tight: None) -> None:
    """A record that is read all the time lives on, costs ten writes in its TTL, and keeps revision and value."""
    del tight
    clock = MovedClock()
    with opened(tmp_path, clock) as store:
        first = put(store, value("a", os.urandom(3000), ttl={"seconds": 100}), value("b", b"x"))
        before, content = get(store).head.tip_sequence, left(store)
        for _ in range(300):
            clock.ahead_s += 1
            page = store.record_list.get(GetRecordsRequest(**PLACE, keys=["a", "b"]))
            assert {each.key for each in page.answer.records} == {"a", "b"}
            if page.due:
                assert page.due == ["a"]
                write(store, store.record_puts.refresh("default", "t", page.uid, page.due))
        assert 25 <= get(store).head.tip_sequence - before <= 31
        assert left(store) == content
        assert findings(store) == []
        found = store.record_list.get(GetRecordsRequest(**PLACE, keys=["a"])).answer.records[0]
        assert (found.revision, found.ttl.seconds) == (first.revision, 100)
        for number in range(200):  # moves carry a refreshed record, whose value is in an older entry
            put(store, value("c", os.urandom(600) + bytes((number,))))
        rest(store)
        assert get(store).pruned.records.last > first.receipt.sequence
        assert left(store)["a"] == content["a"]
        assert findings(store) == []
        clock.ahead_s += 101
        assert "a" not in left(store)


def test_limits_are_refused_before_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many records or bytes in a thread; replacing and deleting still work."""
    monkeypatch.setattr(recordputs, "RECORDS_MAX", 3)
    monkeypatch.setattr(recordputs, "RECORD_BYTES_MAX", 100)
    with opened(tmp_path) as store:
        put(store, value("a", b"x"), value("b", b"x"), value("c", b"x"))
        for writes in ([value("d", b"x")], [value("a", bytes(100))]):
            before = get(store).head
            with pytest.raises(QuotaExceeded):
                put(store, *writes)
            assert get(store).head == before
        put(store, RecordWrite(key="a", delete=Empty()), value("d", b"x"))
        assert sorted(left(store)) == ["b", "c", "d"]


def test_a_row_that_was_set_back_is_found(tmp_path: Path) -> None:
    """Else a compare-and-swap against the old revision would succeed."""
    with opened(tmp_path) as store:
        first = put(store, value("a", b"one"))
        key = record_key(get(store).identity, "a")
        with store.context.engine.read() as txn:
            old = bytes(txn.get(key) or b"")
        put(store, value("a", b"two"))
        write(store, lambda txn, batch: txn.put(key, old))
        assert any("row of a record" in each.message for each in findings(store))
    with opened(tmp_path) as store, pytest.raises(Corrupt):
        put(store, value("a", b"three", expected_revision=first.revision))


def test_an_order_follows_the_commits(tmp_path: Path) -> None:
    """The list in memory is what a new start makes of the rows, also after a write that failed beside others."""
    dice = random.Random(3)
    with opened(tmp_path) as store:
        put(store, value("k", b"x"))
        left(store)
        for _ in range(60):
            keys = dice.sample(range(300), dice.choice((1, 3, 60)))
            put(store, *(value(f"{key}", b"x") if dice.random() < 0.6 else RecordWrite(key=f"{key}", delete=Empty())
                         for key in keys))  # fmt: skip
            orders = store.context.cache.record_orders(get(store).number)
            assert orders is not None
            kept = orders.newest
            assert kept.record_sum == get(store).head.record_sum
            shown = [item.key for item in kept.walk("")]
            assert shown == sorted(shown)
            assert kept.count == len(shown) == get(store).head.records
            assert kept.text_bytes == sum(map(len, shown))
        found = left(store)
    with opened(tmp_path) as store:
        assert left(store) == found


def test_first_put_is_text(tmp_path: Path) -> None:
    """A text value keeps its media type."""
    with opened(tmp_path) as store:
        put(store, RecordWrite(key="a", value=text("é")))
        record = store.record_list.get(GetRecordsRequest(**PLACE, keys=["a"])).answer.records[0]
        assert record.value == text("é")
        assert record.value_bytes == len(record.value.data)


def test_a_stop_during_a_move_is_no_damage(tmp_path: Path, tight: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move that the daemon's stop ends is not logged as damage, and the next start continues it."""
    del tight
    logged = list[str]()
    monkeypatch.setattr(recordcleaning, "log_damage", lambda event, *_, **__: logged.append(event))
    store = make_store(tmp_path)
    store.start()
    store.record_mover.start = lambda thread: None  # type: ignore[method-assign]
    for _ in range(60):
        put(store, value("k", data := os.urandom(700)))
    thread = get(store)
    assert recordcleaning.is_due(thread.head)
    store.context.writer.stop()
    with pytest.raises(ShuttingDown):
        store.record_mover.move(thread)
    store.record_mover._run(thread)
    assert logged == []
    store.close()
    with opened(tmp_path) as store:
        store.record_mover.move(get(store))
        assert left(store) == {"k": data}
        assert not recordcleaning.is_due(get(store).head)
        assert findings(store) == []


def test_a_move_reads_no_saves_in_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many saves lie before the first entry of records; a step begins where a read found it."""
    monkeypatch.setattr(recordcleaning, "SLACK_BYTES", 0)
    monkeypatch.setattr(recordcleaning, "FOUND_AT_ONCE", 7)
    with opened(tmp_path) as store:
        save_many(
            store,
            (SaveRequest(diff=appends("x"), options=WriteOptions(request_id=str(number))) for number in range(40))
        )  # fmt: skip
        first = put(store, value("a", os.urandom(500))).receipt.sequence
        save_many(
            store,
            (SaveRequest(diff=appends("x"), options=WriteOptions(request_id=f"b{number}")) for number in range(40))
        )  # fmt: skip
        store.record_mover.start = lambda thread: None  # type: ignore[method-assign]
        for _ in range(4):
            put(store, value("a", b"last" + os.urandom(500)), value("b", b"b"))
        read = list[int]()
        entries_of = blocks.entries

        def watched(txn: lmdb.Transaction, keys: layout.ThreadKeys, begin: int) -> Iterator[tuple[int, bytes]]:
            for sequence, record in entries_of(txn, keys, begin):
                if threading.current_thread().name == "writer":
                    read.append(sequence)
                yield sequence, record

        monkeypatch.setattr(recordcleaning.blocks, "entries", watched)
        model = left(store)
        mover = RecordMover(store.context, store.threads, store.pruner)
        assert mover.step(get(store))
        assert min(read) == first == 41
        assert get(store).pruned.records.last >= first
        while mover.step(get(store)):
            pass
        assert left(store) == model
        assert findings(store) == []


def test_a_step_moves_nothing_of_another_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the entry that was found is not there any more, the floor stays."""
    monkeypatch.setattr(recordcleaning, "SLACK_BYTES", 0)
    with opened(tmp_path) as store:
        store.record_mover.start = lambda thread: None  # type: ignore[method-assign]
        for _ in range(4):
            put(store, value("a", os.urandom(500)))
        mover, found = RecordMover(store.context, store.threads, store.pruner), []

        def find(thread: Thread) -> recordcleaning._Begin:
            found.append(RecordMover._find(mover, thread))
            return recordcleaning._Begin(found[0].sequence + 1, found[0].digest)

        monkeypatch.setattr(mover, "_find", find)
        assert not mover.step(get(store))
        assert not get(store).pruned.records.pairs()


@pytest.mark.parametrize("wrong_by", [-10_000, 10_000_000])
def test_a_wrong_count_is_right_after_a_pass(tmp_path: Path, tight: None, wrong_by: int) -> None:
    """A move ends behind what was the last entry, whatever the head says of the bytes that are left to move."""
    del tight
    with opened(tmp_path) as store:
        store.record_mover.start = lambda thread: None  # type: ignore[method-assign]
        for number in range(150):
            put(store, value(f"k{number % 20}", os.urandom(700)))
        model = left(store)

        def spoil(txn: lmdb.Transaction, batch: Batch) -> None:
            draft = store.threads.draft(txn, batch, "default", "t")
            assert draft is not None
            head = draft.next_head()
            head.record_entry_bytes += wrong_by
            write_head(txn, draft.identity, head)
            draft.head = head
            store.threads.keep_draft(batch, draft)

        write(store, spoil)
        store.record_mover.move(get(store))
        with store.context.engine.read() as txn:
            found = replay.read_entries(txn, get(store).identity, get(store).pruned.records.last + 1)
            found = (each for each in found if each.header.kind == ENTRY_KIND_RECORDS and each.header.edit_bytes)
            exact = sum(map(stored_bytes, found))
        assert get(store).head.record_entry_bytes - exact == min(wrong_by, 0)  # too few are no reason to move
        assert (left(store), findings(store)) == (model, [])
