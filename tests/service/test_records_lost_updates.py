"""The danger: a record is overwritten by a writer that did not see it, or a retry is applied twice."""

from __future__ import annotations

import hashlib
import os

import pytest
from google.protobuf.empty_pb2 import Empty
from tests.daemon.wire import refused, replayed, text
from tests.messages import to_write
from tests.service.conftest import Place

from stateward.v1.checkpoint_pb2 import AttributeFilter, AttributeValue
from stateward.v1.lease_pb2 import Holder
from stateward.v1.lease_service_pb2 import AcquireLeaseRequest
from stateward.v1.record_pb2 import RecordWrite, StoredRecord
from stateward.v1.record_service_pb2 import (
    RECORD_ORDER_NEWEST,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    GetRecordsRequest,
    ListRecordPrefixesRequest,
    ListRecordsRequest,
    PutRecordsRequest,
    PutRecordsResponse,
)
from stateward.v1.thread_service_pb2 import ForkThreadRequest, ListThreadsRequest, WatchRequest
from stateward.v1.write_pb2 import Receipt, WriteOptions

SCOPE = "store/users"


def at(place: Place, **fields: object) -> dict[str, object]:
    return {"namespace": place.namespace, "thread": SCOPE, **fields}


def value(key: str, content: str = "", **fields: object) -> RecordWrite:
    return RecordWrite(key=key, value=text(content or key), **fields)


def asked(place: Place, *writes: RecordWrite, request_id: str = "", **fields: object) -> PutRecordsRequest:
    name = request_id or hashlib.sha256(repr(writes).encode()).hexdigest()
    return to_write(PutRecordsRequest, **at(place, writes=writes, request_id=name, **fields))


def put(place: Place, *writes: RecordWrite, request_id: str = "", **fields: object) -> PutRecordsResponse:
    answer: PutRecordsResponse = place.wire.records.PutRecords(asked(place, *writes, request_id=request_id, **fields))
    return answer


def get(place: Place, *keys: str) -> dict[str, StoredRecord]:
    found = place.wire.records.GetRecords(GetRecordsRequest(**at(place, keys=keys))).records
    return {record.key: record for record in found}


def listed(place: Place, **fields: object) -> list[str]:
    """The keys of a list, page for page."""
    request, keys = ListRecordsRequest(**at(place, **fields)), list[str]()
    while True:
        page = place.wire.records.ListRecords(request)
        keys += [record.key for record in page.records]
        if not page.next_page_token:
            return keys
        request.page_token = page.next_page_token


def delete(place: Place, request_id: str, **fields: object) -> DeleteRecordsResponse:
    request = to_write(DeleteRecordsRequest, **at(place, request_id=request_id, **fields))
    answer: DeleteRecordsResponse = place.wire.records.DeleteRecords(request)
    return answer


def test_only_the_expected_revision_is_replaced(place: Place) -> None:
    """The refusal names key and revisions, and nothing of the call is written; a check alone guards other records."""
    first = put(place, value("a", "one"), value("b"))
    assert get(place, "a")["a"].revision == first.revision > 0
    second = put(place, value("a", "two", expected_revision=first.revision))
    assert second.revision > first.revision
    for write in (
        value("a", "three", expected_revision=first.revision), value("a", "three", expected_revision=0),
        RecordWrite(key="a", delete=Empty(), expected_revision=first.revision),
        RecordWrite(key="a", check=Empty(), expected_revision=first.revision),
    ):  # fmt: skip
        refusal = refused(place.wire.records.PutRecords, asked(place, value("new"), write, request_id="again"))
        assert (refusal.reason, refusal.metadata["key"], refusal.metadata["write"]) == ("RECORD_CONFLICT", "a", "1")
        assert refusal.metadata["current_revision"] == str(second.revision)
    assert list(get(place, "a", "new")) == ["a"]
    missing = refused(place.wire.records.PutRecords, asked(place, value("c", expected_revision=5)))
    assert missing.metadata["current_revision"] == "0"
    put(place, value("c", expected_revision=0), RecordWrite(key="a", check=Empty(), expected_revision=second.revision))
    assert get(place, "a")["a"].value.data == b"two"
    assert place.findings() == []


def test_a_retry_is_applied_once(place: Place) -> None:
    """It gets the first answer, also after others wrote the record; another content under the id is refused."""
    first = put(place, value("a", "one"), RecordWrite(key="b", delete=Empty()), request_id="r")
    put(place, value("a", "two"))
    assert put(place, value("a", "one"), RecordWrite(key="b", delete=Empty()), request_id="r") == replayed(first)
    assert get(place, "a")["a"].value.data == b"two"
    reused = refused(place.wire.records.PutRecords, asked(place, value("a", "other"), request_id="r"))
    assert reused.reason == "REQUEST_ID_REUSED"
    put(place, value("x/1"), value("x/2"))
    gone = delete(place, "d", prefix="x/")
    put(place, value("x/3"))
    assert (gone.deleted, delete(place, "d", prefix="x/")) == (2, replayed(gone))
    assert listed(place) == ["a", "x/3"]


def test_a_lease_guards_records(place: Place) -> None:
    """While somebody holds the lease of the thread, only its token writes and deletes; anybody reads."""
    put(place, value("a"))
    holder = Holder(name="h", incarnation="i")
    acquire = to_write(AcquireLeaseRequest, **at(place, holder=holder, request_id="l"))
    lease = place.wire.leases.AcquireLease(acquire).lease
    assert refused(place.wire.records.PutRecords, asked(place, value("b"))).reason == "LEASE_HELD"
    request = to_write(DeleteRecordsRequest, **at(place, all=Empty(), request_id="d"))
    assert refused(place.wire.records.DeleteRecords, request).reason == "LEASE_HELD"
    put(place, value("b"), lease_token=lease.token)
    assert listed(place) == ["a", "b"]


def test_what_is_not_there_makes_no_thread(place: Place) -> None:
    """Reads, deletes and checks of an unknown scope find nothing; only a value makes it, with its settings."""
    assert get(place, "a") == {}
    assert listed(place) == []
    nothing = PutRecordsResponse(receipt=Receipt())
    assert put(place, RecordWrite(key="a", delete=Empty())) == nothing
    assert put(place, RecordWrite(key="a", check=Empty(), expected_revision=0)) == nothing
    wrong = asked(place, RecordWrite(key="a", check=Empty(), expected_revision=3))
    assert refused(place.wire.records.PutRecords, wrong).reason == "RECORD_CONFLICT"
    gone = to_write(DeleteRecordsRequest, **at(place, all=Empty(), request_id="d"))
    assert refused(place.wire.records.DeleteRecords, gone).reason == "THREAD_NOT_FOUND"
    create = {"labels": {"kind": "store"}}
    put(place, value("a"), create=create)
    thread = place.wire.thread(place.namespace, SCOPE)
    assert (thread.records, thread.record_bytes, thread.last_version, thread.labels["kind"]) == (1, 2, 0, "store")

    def threads(**fields: bool) -> list[str]:
        answer = place.wire.threads.ListThreads(ListThreadsRequest(namespace=place.namespace, **fields))
        return [each.thread for each in answer.threads]

    assert threads(has_versions=False) == threads(has_records=True) == [SCOPE]
    assert threads(has_versions=True) == threads(has_records=False) == ["booking-42"]
    assert place.findings() == []


def test_records_live_beside_versions(place: Place) -> None:
    """They change no version, and the thread's state and its effects are as they were."""
    before = place.state()
    put_here = PutRecordsRequest(
        namespace=place.namespace, thread="booking-42", writes=[value("k")], options=WriteOptions(request_id="r")
    )
    place.wire.records.PutRecords(put_here)
    assert place.state() == before
    assert place.thread().version == 2
    assert place.thread().records == 1
    assert place.findings() == []


@pytest.mark.parametrize("page_size", [1, 3, 100])
def test_lists_have_every_record_once(place: Place, page_size: int) -> None:
    """In the order of keys or the newest first, whatever the pages; a prefix is one of characters."""
    keys = ["a", "a/b", "a/bc", "a/b/c", "a/é", "a/\U0001f600", "a\x1f1", "b", "ÿ"]
    for key in reversed(keys):
        put(place, value(key))
    assert listed(place, page_size=page_size) == sorted(keys)
    assert listed(place, page_size=page_size, prefix="a/b") == ["a/b", "a/b/c", "a/bc"]
    assert listed(place, page_size=page_size, prefix="a/\U0001f600") == ["a/\U0001f600"]
    assert listed(place, page_size=page_size, order=RECORD_ORDER_NEWEST) == keys
    assert listed(place, page_size=page_size, order=RECORD_ORDER_NEWEST, skip=2, prefix="a") == keys[2:7]
    assert listed(place, page_size=page_size, skip=8) == ["ÿ"]
    put(place, value("a/b", "newer"))
    assert listed(place, page_size=page_size, order=RECORD_ORDER_NEWEST)[:2] == ["a/b", "a"]


def test_filters_compare_by_type(place: Place) -> None:
    """Numbers as numbers, texts as texts; a missing attribute is only not equal."""
    for key, attribute in {
        "one": AttributeValue(int_value=1), "half": AttributeValue(double_value=0.5),
        "text": AttributeValue(string_value="1"), "yes": AttributeValue(bool_value=True),
    }.items():  # fmt: skip
        put(place, value(key, attributes={"a": attribute}))
    put(place, value("none"))

    def found(operator: int, **wanted: object) -> list[str]:
        condition = AttributeFilter(key="a", operator=operator, value=AttributeValue(**wanted))
        return listed(place, filters=[condition], page_size=1)

    of = AttributeFilter.Operator.Value
    assert found(of("OPERATOR_EQ"), double_value=1.0) == found(0, int_value=1) == ["one"]
    assert found(of("OPERATOR_NE"), int_value=1) == ["half", "none", "text", "yes"]
    assert found(of("OPERATOR_GT"), double_value=0.5) == ["one"]
    assert found(of("OPERATOR_GTE"), double_value=0.5) == ["half", "one"]
    assert found(of("OPERATOR_LT"), int_value=1) == ["half"]
    assert found(of("OPERATOR_LTE"), string_value="2") == ["text"]
    assert found(of("OPERATOR_EQ"), bool_value=True) == ["yes"]


def test_prefixes_are_counted(place: Place) -> None:
    """Up to the last delimiter, or cut at a depth; page for page."""
    put(place, *(value(key) for key in ("a/1", "a/2", "a/b/1", "a/b/c/1", "top", "z/1")))

    def prefixes(**fields: object) -> dict[str, int]:
        request, found = ListRecordPrefixesRequest(**at(place, delimiter="/", page_size=2, **fields)), dict[str, int]()
        while True:
            page = place.wire.records.ListRecordPrefixes(request)
            found |= {each.prefix: each.records for each in page.prefixes}
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    assert prefixes() == {"": 1, "a/": 2, "a/b/": 1, "a/b/c/": 1, "z/": 1}
    assert prefixes(max_depth=1) == {"": 1, "a/": 4, "z/": 1}
    assert prefixes(prefix="a/", max_depth=1) == {"a/": 2, "a/b/": 2}


def test_a_watch_tells_of_records_if_asked(place: Place) -> None:
    """What was written, without values, and what was deleted; others see nothing of it."""
    first = put(place, value("a"), value("b"))
    put(place, RecordWrite(key="a", delete=Empty()))

    def events(**fields: object) -> list[str]:
        request = WatchRequest(**at(place, after_sequence=0, **fields))
        stream = place.wire.threads.Watch(request, timeout=5)
        seen: list[str] = []
        for message in stream:
            for event in message.events:
                seen += [f"{each.key} {each.revision}" for each in event.records_changed.written]
                seen += [f"-{key}" for key in event.records_changed.deleted]
            if (message.events and event.sequence >= 2) or not fields:
                stream.cancel()
                break
        return seen

    assert events(include_records=True) == [f"a {first.revision}", f"b {first.revision}", "-a"]
    assert events() == []


def test_a_watch_that_is_behind_gets_what_was_moved(place: Place) -> None:
    """The entry that wrote a record may be left out once the record was moved: then the event of the move has it."""
    kept = put(place, value("kept"))
    for number in range(8):
        put(place, value("large", os.urandom(50_000).hex()), request_id=f"large {number}")
    request = WatchRequest(**at(place, after_sequence=kept.receipt.sequence, include_records=True))  # type: ignore[arg-type]
    for message in place.wire.threads.Watch(request, timeout=10):
        changes = [event.records_changed for event in message.events]
        if "kept" in (record.key for each in changes for record in each.written):
            break
    moved = {record.key: record.revision for each in changes if each.moved for record in each.written}
    assert moved["kept"] == kept.revision
    assert get(place, "kept")["kept"].revision == kept.revision


def test_wrong_requests_are_refused(untouched: Place) -> None:
    """With the field, before anything is written."""
    place = untouched
    for writes, field in (
        ([], "writes"), ([RecordWrite(key="a")], "writes[0]"), ([value("")], "writes[0].key"),
        ([value("k" * 1025)], "writes[0].key"), ([value("a"), value("a")], "writes[1].key"),
        ([RecordWrite(key="a", check=Empty())], "writes[0].expected_revision"),
        ([RecordWrite(key="a", delete=Empty(), expected_revision=0)], "writes[0].expected_revision"),
        ([value("a", expected_revision=-1)], "writes[0].expected_revision"),
        ([RecordWrite(key="a", delete=Empty(), ttl={"seconds": 5})], "writes[0].delete"),
        ([value("a", ttl={"nanos": 5})], "writes[0].ttl"),
        ([RecordWrite(key="a", value={"number": 1})], "writes[0].value.number"),
        ([RecordWrite(key="a", value={"data": bytes(1_000_001)})], "writes[0].value"),
        ([value("a", attributes={"x": AttributeValue()})], "writes[0].attributes['x']"),
    ):  # fmt: skip
        refusal = refused(place.wire.records.PutRecords, asked(place, *writes, request_id="r"))
        assert (refusal.reason, refusal.field) == ("INVALID_FIELD", field)
    for verb, request, field in (
        ("PutRecords", PutRecordsRequest(**at(place, writes=[value("a")])), "options.request_id"),
        ("GetRecords", GetRecordsRequest(**at(place)), "keys"),
        ("GetRecords", GetRecordsRequest(**at(place, keys=["a", "a"])), "keys[1]"),
        ("ListRecords", ListRecordsRequest(**at(place, skip=-1)), "skip"),
        ("ListRecords", ListRecordsRequest(**at(place, order=9)), "order"),
        ("ListRecords", ListRecordsRequest(**at(place, filters=[AttributeFilter(key="a")])), "filters[0].value"),
        ("ListRecords", ListRecordsRequest(**at(place, page_token="x")), "page_token"),
        ("ListRecordPrefixes", ListRecordPrefixesRequest(**at(place)), "delimiter"),
        ("DeleteRecords", to_write(DeleteRecordsRequest, **at(place, request_id="r")), "what"),
        ("DeleteRecords", to_write(DeleteRecordsRequest, **at(place, request_id="r", prefix="")), "prefix"),
    ):  # fmt: skip
        refusal = refused(getattr(place.wire.records, verb), request)
        assert (refusal.reason, refusal.field) == ("INVALID_FIELD", field)


def test_a_whole_copy_has_the_records(place: Place) -> None:
    """Also of a scope without versions. They keep revisions, and later writes of the copy are above them."""
    first = put(place, *(value(f"{number:03}", "x" * 300, attributes={"n": AttributeValue(int_value=number)})
                         for number in range(200)))  # fmt: skip
    put(place, RecordWrite(key="000", delete=Empty()), value("001", "new", ttl={"seconds": 600}))
    copy = to_write(ForkThreadRequest, **at(place, new_thread="copy", all_versions=True, request_id="f"))
    made = place.wire.threads.ForkThread(copy).thread
    assert (made.records, made.last_version) == (199, 0)
    assert place.wire.threads.ForkThread(copy).thread.uid == made.uid

    def all_of(thread: str) -> list[StoredRecord]:
        asked_for = ListRecordsRequest(namespace=place.namespace, thread=thread, page_size=1000)
        found: list[StoredRecord] = list(place.wire.records.ListRecords(asked_for).records)
        return found

    assert all_of("copy") == all_of(SCOPE)
    assert all_of("copy")[1].revision == first.revision
    later = PutRecordsRequest(
        namespace=place.namespace, thread="copy", writes=[value("002", "z")], options=WriteOptions(request_id="l")
    )
    assert place.wire.records.PutRecords(later).revision > max(each.revision for each in all_of(SCOPE))
    one = to_write(ForkThreadRequest, **at(place, new_thread="one", request_id="o"))
    assert refused(place.wire.threads.ForkThread, one).reason == "VERSION_NOT_FOUND"
    assert place.findings() == []
