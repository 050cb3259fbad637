"""The danger: a read that begins the time to live of records anew reaches the next thread of the name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.daemon.driven import CALLER, NAME, NAMESPACE, Driven
from tests.daemon.town import twins
from tests.daemon.unthreaded import run

from stateward.v1.record_pb2 import RecordWrite, StoredRecord
from stateward.v1.record_service_pb2 import GetRecordsRequest, PutRecordsRequest
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward.v1.write_pb2 import WriteOptions


def put(twin: Driven, word: str) -> None:
    """Writes the record, which lives for 100 s, and makes the thread if there is none."""
    write = RecordWrite(key="k")
    write.value.data, write.value.media_type = word.encode(), "text/plain"
    write.ttl.FromSeconds(100)
    request = PutRecordsRequest(
        namespace=NAMESPACE, thread=NAME, writes=[write], options=WriteOptions(request_id=word, create=ThreadOptions())
    )
    run(twin.records.put_records(request, CALLER))


def get(twin: Driven, *, refreshes: bool) -> StoredRecord:
    """Reads the record."""
    request = GetRecordsRequest(namespace=NAMESPACE, thread=NAME, keys=["k"], refresh_ttl=refreshes)
    (record,) = run(twin.records.get_records(request, CALLER)).records
    return record


def test_the_next_thread_keeps_its_times(tmp_path: Path) -> None:
    """The thread is deleted and made again between the read and the write: the answer is what was read, and the record
    of the next thread ends when it would have ended."""
    with twins(tmp_path) as pair:
        put(pair.a, "old")
        pair.time.sleep(50)
        before, write = get(pair.a, refreshes=False), pair.a.ownership.write

        async def late(*arguments: Any, **how: Any) -> Any:
            pair.a.ownership.write = write  # type: ignore[method-assign]
            pair.a.delete(DeleteThreadRequest(namespace=NAMESPACE, thread=NAME))
            put(pair.a, "next")
            pair.time.sleep(50)
            next_ones.append(get(pair.a, refreshes=False))
            return await write(*arguments, **how)

        next_ones = list[StoredRecord]()
        pair.a.ownership.write = late  # type: ignore[method-assign]
        assert get(pair.a, refreshes=True) == before
        assert [get(pair.a, refreshes=False)] == next_ones
        assert get(pair.a, refreshes=True).expire_time.seconds == next_ones[0].expire_time.seconds + 50
