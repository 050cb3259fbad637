"""The danger: the retry of a fork or an import says that nothing of the thread is archived, and it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemon.inside import Inside, daemon_inside
from tests.daemon.wire import TIMEOUT_S, appends
from tests.messages import to_write

from stateward.v1.backup_service_pb2 import ExportThreadRequest, ImportBegin, ImportThreadRequest
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED, Durability
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.thread_service_pb2 import ForkThreadRequest
from stateward.v1.write_pb2 import Receipt, WriteOptions

THREAD = "job"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Inside]:
    with daemon_inside(tmp_path, archive=f"file://{tmp_path}/bucket", archive_interval="60") as inside:
        asked = {"thread": THREAD, "diff": appends("x"), "request_id": "first", "durability": DURABILITY_ARCHIVED}
        inside.wire.save(to_write(SaveRequest, **asked))  # type: ignore[arg-type]
        yield inside


def fork(daemon: Inside, level: Durability) -> Receipt:
    options = WriteOptions(request_id="fork", durability=level)
    request = ForkThreadRequest(thread=THREAD, new_thread="copy", options=options)
    receipt: Receipt = daemon.wire.threads.ForkThread(request, timeout=TIMEOUT_S).receipt
    return receipt


def restore(daemon: Inside, level: Durability) -> Receipt:
    exported = daemon.wire.backups.ExportThread(ExportThreadRequest(thread=THREAD), timeout=TIMEOUT_S)
    parts = [part for answer in exported for part in answer.parts]
    begin = ImportBegin(thread="copy", options=WriteOptions(request_id="import", durability=level))
    messages = [ImportThreadRequest(begin=begin), ImportThreadRequest(parts=parts)]
    receipt: Receipt = daemon.wire.backups.ImportThread(iter(messages), timeout=TIMEOUT_S).receipt
    return receipt


@pytest.mark.parametrize("make", [fork, restore])
def test_a_retry_says_how_far_the_copy_is_archived(daemon: Inside, make) -> None:  # type: ignore[no-untyped-def]
    first = make(daemon, DURABILITY_ARCHIVED)
    again = make(daemon, DURABILITY_COMMITTED)
    assert (first.durability, first.replayed, again.replayed) == (DURABILITY_ARCHIVED, False, True)
    again.replayed = False
    assert again == first
