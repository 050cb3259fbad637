"""The danger: uploads that are done keep their places while they wait for a slow archive, and nobody else gets one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.daemon.inside import WAIT_S, Inside, daemon_inside, held_back
from tests.daemon.wire import appends
from tests.messages import to_write

from stateward.v1.backup_service_pb2 import (
    ExportThreadRequest,
    ImportBegin,
    ImportThreadRequest,
    ImportThreadResponse,
    ThreadPart,
)
from stateward.v1.blob_service_pb2 import BlobBegin, WriteBlobRequest, WriteBlobResponse
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED, Durability
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.service.api.backup import IMPORTS_MAX
from stateward_sidecar.service.api.blobs import WRITES_MAX

THREAD = "job"
# The answers of the waiting calls come then, with what was reached.
TIMEOUT_S, SOON_S = 8.0, 3.0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Inside]:
    with daemon_inside(tmp_path, archive=f"file://{tmp_path}/bucket", archive_interval="60") as inside:
        asked = {"thread": THREAD, "diff": appends("x"), "request_id": "first", "durability": DURABILITY_ARCHIVED}
        inside.wire.save(to_write(SaveRequest, **asked))  # type: ignore[arg-type]
        yield inside


def shipping_hangs(daemon: Inside) -> AbstractContextManager[None]:
    """New names can still be claimed."""
    return held_back(daemon, lambda method, key: method == "replace" and key.endswith("/HEAD"))


def write_blob(daemon: Inside, number: int, level: Durability) -> WriteBlobResponse:
    begin = BlobBegin(thread=THREAD, options=WriteOptions(durability=level))
    parts = [WriteBlobRequest(begin=begin), WriteBlobRequest(data=b"%d" % number)]
    answer: WriteBlobResponse = daemon.wire.blobs.WriteBlob(iter(parts), timeout=TIMEOUT_S)
    return answer


def restore(daemon: Inside, parts: list[ThreadPart], number: int, level: Durability) -> ImportThreadResponse:
    name = f"copy-{number}"
    begin = ImportBegin(thread=name, options=WriteOptions(request_id=name, durability=level))
    messages = [ImportThreadRequest(begin=begin), ImportThreadRequest(parts=parts)]
    answer: ImportThreadResponse = daemon.wire.backups.ImportThread(iter(messages), timeout=TIMEOUT_S)
    return answer


def test_blobs_that_are_written_give_their_places_back(daemon: Inside) -> None:
    with ThreadPoolExecutor(WRITES_MAX) as pool, shipping_hangs(daemon):
        waiting = [pool.submit(write_blob, daemon, number, DURABILITY_ARCHIVED) for number in range(WRITES_MAX)]
        time.sleep(SOON_S)
        assert not any(each.done() for each in waiting)
        assert write_blob(daemon, WRITES_MAX, DURABILITY_COMMITTED).receipt.sequence
        assert {each.result(WAIT_S).receipt.durability for each in waiting} == {DURABILITY_COMMITTED}


def test_imports_that_are_done_give_their_places_back(daemon: Inside) -> None:
    exported = daemon.wire.backups.ExportThread(ExportThreadRequest(thread=THREAD), timeout=TIMEOUT_S)
    parts = [part for answer in exported for part in answer.parts]
    with ThreadPoolExecutor(IMPORTS_MAX) as pool, shipping_hangs(daemon):
        waiting = [pool.submit(restore, daemon, parts, number, DURABILITY_ARCHIVED) for number in range(IMPORTS_MAX)]
        time.sleep(SOON_S)
        assert not any(each.done() for each in waiting)
        assert restore(daemon, parts, IMPORTS_MAX, DURABILITY_COMMITTED).receipt.sequence
        assert {each.result(WAIT_S).receipt.durability for each in waiting} == {DURABILITY_COMMITTED}
