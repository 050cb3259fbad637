"""The danger: a list leaves out a record that was there all the time, because a commit came between two looks."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.empty_pb2 import Empty
from tests.daemon.store import between, get, opened, save, write

from stateward.v1.backup_service_pb2 import ExportThreadRequest
from stateward.v1.record_pb2 import RecordWrite
from stateward.v1.record_service_pb2 import (
    RECORD_ORDER_KEY,
    RECORD_ORDER_NEWEST,
    DeleteRecordsRequest,
    GetRecordsRequest,
    ListRecordPrefixesRequest,
    ListRecordsRequest,
    PutRecordsRequest,
)
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_service_pb2 import ForkThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.store.clean import recordcleaning
from stateward_sidecar.store.clean.recordcleaning import RecordMover
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread import recordorder
from stateward_sidecar.store.thread.recordorder import Item, OrderChange, RecordOrder

PLACE = {"namespace": "default", "thread": "t"}
KEYS = [f"a/{number}" for number in range(6)]
Read = Callable[[Store], list[str]]


def put(store: Store, *writes: RecordWrite) -> None:
    options = WriteOptions(request_id=os.urandom(8).hex())
    write(store, store.record_puts.put(PutRecordsRequest(**PLACE, writes=writes, options=options)))


def value(key: str, data: bytes = b"x" * 9000) -> RecordWrite:
    return RecordWrite(key=key, value=Value(media_type="a/b", data=data))


def read_list(order: int, page_size: int) -> Read:
    """Reads all pages."""

    def read(store: Store) -> list[str]:
        found, request = list[str](), ListRecordsRequest(**PLACE, order=order, page_size=page_size, prefix="a/")
        while True:
            answer = store.read(store.record_list.read, request).answer
            found += [record.key for record in answer.records]
            request.page_token = answer.next_page_token
            if not request.page_token:
                return sorted(found)

    return read


def read_keys(store: Store) -> list[str]:
    answer = store.read(store.record_list.get, GetRecordsRequest(**PLACE, keys=[*KEYS, "a/new"])).answer
    return [record.key for record in answer.records]


def read_hot(store: Store) -> list[str]:
    page = store.record_list.get_hot(GetRecordsRequest(**PLACE, keys=[*KEYS, "a/new"]))
    assert page is not None
    return [record.key for record in page.answer.records]


def count(store: Store) -> list[str]:
    request = ListRecordPrefixesRequest(**PLACE, prefix="a/", delimiter="/")
    answer = store.read(store.record_list.prefixes, request)
    return ["any"] * sum(each.records for each in answer.prefixes)


def to_delete(store: Store) -> list[str]:
    return list(store.read(store.record_list.to_delete, DeleteRecordsRequest(**PLACE, prefix="a/")).revisions)


def export(store: Store) -> list[str]:
    request = ExportThreadRequest(**PLACE)
    found = [part.record.record.key for answer in store.exporter.open(request) for part in answer.parts
             if part.HasField("record")]  # fmt: skip
    return sorted(key for key in found if key.startswith("a/"))


def copy(store: Store) -> list[str]:
    """A whole copy, which has as many entries of records as the source has records."""
    name = f"copy-{os.urandom(4).hex()}"
    store.forker.fork(ForkThreadRequest(**PLACE, new_thread=name, all_versions=True))
    request = ListRecordsRequest(namespace="default", thread=name, page_size=1000, prefix="a/")
    return [record.key for record in store.read(store.record_list.read, request).answer.records]


READS: dict[str, Read] = {
    "by key": read_list(RECORD_ORDER_KEY, 1000), "two a page": read_list(RECORD_ORDER_KEY, 2),
    "newest": read_list(RECORD_ORDER_NEWEST, 1000), "get": read_keys, "hot get": read_hot, "prefixes": count,
    "delete": to_delete, "export": export, "copy": copy,
}  # fmt: skip


@pytest.mark.parametrize("name", READS)
def test_what_is_moved_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A move writes each record again and raises the floor above its old row: the reader sees one of the two."""
    monkeypatch.setattr(recordcleaning, "SLACK_BYTES", 0)
    monkeypatch.setattr(recordcleaning, "STEP_BYTES", 1)
    with opened(tmp_path) as store:
        put(store, *map(value, KEYS))
        READS["by key"](store)
        expected = READS[name](store)
        assert len(expected) == len(KEYS)
        mover = RecordMover(store.context, store.threads, store.pruner)
        floors = set[int]()

        def act() -> None:
            for _ in range(3):
                put(store, value("b", os.urandom(2000)))
            assert mover.step(get(store))
            floors.add(get(store).pruned.records.last)

        with between(store, monkeypatch, act):
            for _ in range(4):
                assert READS[name](store) == expected
        assert len(floors) >= 4


@pytest.mark.parametrize("name", sorted(READS.keys() - {"two a page"}))  # a list of several pages is of several moments
def test_what_is_renamed_is_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A call deletes one record and puts another: the reader sees one of the two, never none or both."""
    with opened(tmp_path) as store:
        put(store, *map(value, KEYS))
        READS["by key"](store)
        is_new = False

        def act() -> None:
            nonlocal is_new
            old, new = ("a/new", "a/0") if is_new else ("a/0", "a/new")
            put(store, RecordWrite(key=old, delete=Empty()), value(new))
            is_new = not is_new

        with between(store, monkeypatch, act):
            for _ in range(5):
                found = READS[name](store)
                assert len(found) == len(KEYS)
                assert name == "prefixes" or len({"a/0", "a/new"} & set(found)) == 1


@pytest.mark.parametrize("commits", [1, recordorder.KEPT + 2])
def test_an_old_transaction_has_its_own_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:  # fmt: skip
    """Also if more commits came in between than orders are kept; the order is not made anew for every page."""
    with opened(tmp_path) as store:
        put(store, *map(value, KEYS))
        read = READS["by key"]
        assert read(store) == KEYS
        made = 0
        is_over, make = False, store.record_list._views._read

        def counted(*arguments: Any) -> Any:
            nonlocal made
            made += 1
            return make(*arguments)

        monkeypatch.setattr(store.record_list._views, "_read", counted)

        def act() -> None:
            nonlocal is_over
            for _ in range(0 if is_over else commits):
                put(store, value("a/0", os.urandom(4)))
            is_over = True

        with between(store, monkeypatch, act):
            assert read(store) == KEYS
        assert made == 0


def test_other_writes_change_no_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save of the same thread between two looks."""
    with opened(tmp_path) as store:
        put(store, *map(value, KEYS))
        numbers = itertools.count()
        with between(store, monkeypatch, lambda: save(store, f"s{next(numbers)}") and None):
            for read in READS.values():
                assert len(read(store)) == len(KEYS)


def test_orders_never_change() -> None:
    """Whatever commits do, an order stays as it was; chunks are divided and joined, and keep all items."""

    def item(number: int, revision: int = 1) -> Item:
        return Item(f"{number:05}", revision, 0, b"")

    order = first = RecordOrder(map(item, range(0, 4000, 2)), b"0")
    model = {f"{number:05}": 1 for number in range(0, 4000, 2)}
    steps = [range(1, 4000, 2), range(0, 3990, 3), range(100, 200), range(3000, 3001)]
    for revision, step in enumerate(steps, 2):
        changes = []
        for number in step:
            key = f"{number:05}"
            is_deleted = number % 3 == 0 and revision == 3
            changes.append(OrderChange(key, None if is_deleted else item(number, revision)))
            if is_deleted:
                model.pop(key, None)
            else:
                model[key] = revision
        order = order.changed(changes, bytes([revision]))
        assert {each.key: each.revision for each in order.walk("")} == model
        assert [each.key for each in order.walk("")] == sorted(model)
        assert (order.count, order.text_bytes) == (len(model), 5 * len(model))
    assert [each.key for each in order.walk("001")] == [key for key in sorted(model) if key.startswith("001")]
    assert [each.key for each in order.walk("001", "00150")] == [
        key for key in sorted(model) if key.startswith("001") and key > "00150"
    ]
    assert [each.key for each in first.walk("")] == [f"{number:05}" for number in range(0, 4000, 2)]
    empty = order.changed([OrderChange(key, None) for key in model], b"z")
    assert (list(empty.walk("")), empty.count, empty.text_bytes) == ([], 0, 0)
    assert [each.key for each in empty.changed([OrderChange("x", item(1))], b"y").walk("")] == ["00001"]
