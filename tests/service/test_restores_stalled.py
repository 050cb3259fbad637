"""The danger: a restore whose client stalls, and calls that wait for its name where others have their work done."""

from __future__ import annotations

import os
import queue
from pathlib import Path

import grpc
import pytest
from tests.daemon.inside import daemon_inside
from tests.daemon.process import eventually
from tests.daemon.wire import appends

from stateward._operations.threads import numbers_of, spans_of
from stateward.v1 import backup_service_pb2 as backup
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.state_pb2 import State, Value
from stateward.v1.thread_service_pb2 import ForkThreadRequest, PruneThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.service.admission.memory import Unfinished
from stateward_sidecar.store.store import BACKGROUND_WORKERS

MIB = 1 << 20
AT = {"namespace": "stalled", "thread": "t"}


def test_copies_that_wait_for_a_name_hold_up_nobody_else(tmp_path: Path) -> None:
    """As many as there are threads for long work wait until the restore ends; meanwhile another thread is pruned."""
    with daemon_inside(tmp_path) as inside:
        wire, importer = inside.wire, inside.parts.store.importer
        for version in range(2):
            wire.save(SaveRequest(**AT, options=WriteOptions(expected_version=version), diff=appends("x")))
        messages: queue.SimpleQueue[backup.ImportThreadRequest | None] = queue.SimpleQueue()
        begin = backup.ImportBegin(namespace="stalled", thread="copy", options=WriteOptions(request_id="r"))
        messages.put(backup.ImportThreadRequest(begin=begin))
        restore = wire.backups.ImportThread.future(iter(messages.get, None))
        eventually(lambda: bool(importer._names._taken))
        copies = [
            wire.threads.ForkThread.future(
                ForkThreadRequest(**AT, new_thread="copy", options=WriteOptions(request_id=f"{number}"))
            )
            for number in range(BACKGROUND_WORKERS)
        ]
        pruned = wire.threads.PruneThread(PruneThreadRequest(**AT, versions=spans_of([1])), timeout=5)
        assert list(numbers_of(pruned.pruned)) == [1]
        assert not any(copy.done() for copy in copies)
        messages.put(None)
        assert restore.exception().code() is grpc.StatusCode.INVALID_ARGUMENT
        made = [copy.exception() is None for copy in copies]
        assert sum(made) == 1
        assert wire.findings() == []


def test_a_large_request_and_a_restore_do_not_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """The request waits for all memory, of which a version that has not come as a whole has a part."""
    monkeypatch.setattr(Unfinished, "_bound", lambda *_: None)  # this process has more memory than a daemon
    with daemon_inside(tmp_path, memory_limit="256MiB") as inside:
        wire, memory = inside.wire, inside.parts.room.requests
        slots = {f"{number}": Value(data=os.urandom(MIB)) for number in range(7)}
        wire.save(SaveRequest(**AT, options=WriteOptions(expected_version=0), state=State(slots=slots)))
        export = wire.backups.ExportThread(backup.ExportThreadRequest(**AT))
        parts = [part for answer in export for part in answer.parts]
        messages: queue.SimpleQueue[backup.ImportThreadRequest | None] = queue.SimpleQueue()
        restore = wire.backups.ImportThread.future(iter(messages.get, None))
        begin = backup.ImportBegin(namespace="stalled", thread="copy", options=WriteOptions(request_id="r"))
        eventually(lambda: not memory.used_bytes)
        messages.put(backup.ImportThreadRequest(begin=begin, parts=parts[:2]))
        for part in parts[2:8]:
            messages.put(backup.ImportThreadRequest(parts=[part]))
        eventually(lambda: memory.used_bytes >= 20 * MIB)
        eventually(messages.empty)
        large = State(slots={"s": Value(data=os.urandom(30 * MIB))})
        request = SaveRequest(
            namespace="stalled", thread="large", options=WriteOptions(expected_version=0), state=large
        )
        save = wire.checkpoints.Save.future(request)
        eventually(lambda: bool(memory._waiting))
        for part in parts[8:]:
            messages.put(backup.ImportThreadRequest(parts=[part]))
        messages.put(None)
        assert restore.result(10).thread.last_version == 1
        assert save.result(10).version == 1
