"""The danger: ARCHIVED is answered for a blob whose bytes nobody could look for, since the bucket did not answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemon.inside import WAIT_S, Inside, daemon_inside
from tests.daemon.wire import TIMEOUT_S, appends
from tests.messages import to_write

from stateward.v1.blob_service_pb2 import BlobBegin, WriteBlobRequest, WriteBlobResponse
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED, Durability
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.write_pb2 import WriteOptions

THREAD = "job"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Inside]:
    with daemon_inside(tmp_path, archive=f"file://{tmp_path}/bucket", archive_interval="60") as inside:
        inside.wire.save(to_write(SaveRequest, thread=THREAD, diff=appends("x"), request_id="first"))
        yield inside


def write(daemon: Inside, level: Durability) -> WriteBlobResponse:
    begin = BlobBegin(thread=THREAD, options=WriteOptions(durability=level))
    parts = [WriteBlobRequest(begin=begin), WriteBlobRequest(data=b"bytes")]
    answer: WriteBlobResponse = daemon.wire.blobs.WriteBlob(iter(parts), timeout=TIMEOUT_S)
    return answer


@pytest.mark.parametrize("level", [DURABILITY_COMMITTED, DURABILITY_ARCHIVED])
def test_a_blob_that_was_archived_once(daemon: Inside, level: Durability) -> None:
    """The answer is the same, whatever was asked for."""
    assert write(daemon, DURABILITY_ARCHIVED).receipt.durability == DURABILITY_ARCHIVED
    over = threading.Event()

    def hang(method: str, key: str) -> None:
        over.wait(WAIT_S)

    daemon.bucket.before = hang
    try:
        again = write(daemon, level)
    finally:
        daemon.bucket.before = lambda method, key: None
        over.set()
    assert (again.existed, again.receipt.durability) == (True, DURABILITY_COMMITTED)
    assert write(daemon, level).receipt.durability == DURABILITY_ARCHIVED
