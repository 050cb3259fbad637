"""The danger: a deletion of records that began in one thread ends in the next one of the name."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.empty_pb2 import Empty
from tests.daemon.store import opened, write

from stateward.v1.record_service_pb2 import DeleteRecordsRequest, ListRecordsRequest, PutRecordsRequest
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.errors import UidMismatch
from stateward_sidecar.store.store import Store

PLACE = {"namespace": "default", "thread": "t"}


def put(store: Store, *keys: str) -> int:
    """Puts records in one call. Returns their revision."""
    request = PutRecordsRequest(**PLACE)
    for key in keys:
        request.writes.add(key=key).value.data = b"x"
    return int(write(store, store.record_puts.put(request)).revision)


def test_the_next_thread_keeps_a_whole_put(tmp_path: Path) -> None:
    """Its records have the same keys and revisions as those that were read, and one that nobody read."""
    with opened(tmp_path) as store:
        request = DeleteRecordsRequest(**PLACE, all=Empty())
        first = put(store, "a", "b")
        read = store.read(store.record_list.to_delete, request)
        write(store, store.deleter.delete(DeleteThreadRequest(**PLACE)))
        assert put(store, "a", "b", "c") == first
        with pytest.raises(UidMismatch):
            write(store, store.record_puts.delete(request, read))
        page = store.read(store.record_list.read, ListRecordsRequest(**PLACE))
        assert [record.key for record in page.answer.records] == ["a", "b", "c"]
