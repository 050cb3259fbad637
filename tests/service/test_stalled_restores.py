"""The danger: a restore whose client stalls, and calls that wait for its name where others have their work done."""

from __future__ import annotations

import queue
import time
from pathlib import Path

import grpc
from tests.service.inside import daemon_inside
from tests.service.wire import appends

from stateward.v1 import backup_service_pb2 as backup
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.thread_service_pb2 import ForkThreadRequest, PruneThreadRequest
from stateward_sidecar.store.store import BACKGROUND_WORKERS

AT = {"namespace": "stalled", "thread": "t"}


def test_copies_that_wait_for_a_name_hold_up_nobody_else(tmp_path: Path) -> None:
    """As many as there are threads for long work wait until the restore ends; meanwhile another thread is pruned."""
    with daemon_inside(tmp_path) as inside:
        wire, importer = inside.wire, inside.parts.store.importer
        for version in range(2):
            wire.save(SaveRequest(**AT, expected_version=version, diff=appends("x")))
        messages: queue.SimpleQueue[backup.ImportThreadRequest | None] = queue.SimpleQueue()
        begin = backup.ImportBegin(namespace="stalled", thread="copy", request_id="r")
        messages.put(backup.ImportThreadRequest(begin=begin))
        restore = wire.backups.ImportThread.future(iter(messages.get, None))
        until = time.monotonic() + 10
        while not importer._names._taken and time.monotonic() < until:
            assert not restore.done()
        copies = [
            wire.threads.ForkThread.future(ForkThreadRequest(**AT, new_thread="copy", request_id=f"{number}"))
            for number in range(BACKGROUND_WORKERS)
        ]
        pruned = wire.threads.PruneThread(PruneThreadRequest(**AT, versions={"versions": [1]}), timeout=5)
        assert list(pruned.pruned_versions) == [1]
        assert not any(copy.done() for copy in copies)
        messages.put(None)
        assert restore.exception().code() is grpc.StatusCode.INVALID_ARGUMENT
        made = [copy.exception() is None for copy in copies]
        assert sum(made) == 1
        assert wire.findings() == []
