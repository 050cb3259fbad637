"""The danger: an export of a thread at work that is none of its moments, and an import that a crash cut off."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.daemon.wire import Wire, appends, refused, text

from stateward._operations.threads import spans_of
from stateward.testing import run_daemon
from stateward.v1 import backup_service_pb2 as backup
from stateward.v1.blob_service_pb2 import BlobBegin, WriteBlobRequest
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.effect_pb2 import EFFECT_STATE_DONE
from stateward.v1.effect_service_pb2 import BeginEffectRequest, CompleteEffectRequest
from stateward.v1.lease_pb2 import Holder
from stateward.v1.signal_service_pb2 import SendSignalRequest
from stateward.v1.thread_service_pb2 import GetThreadRequest, PruneThreadRequest, SetTagRequest
from stateward.v1.write_pb2 import WriteOptions

PIECES = 12


def place_on(wire: Wire, thread: str = "t") -> dict[str, str]:
    """A thread of its own for each wire."""
    return {"namespace": "torn", "thread": f"{thread}-{wire.name}"}


def fill(wire: Wire) -> tuple[str, int]:
    """A thread with a blob, two versions, a signal and an open claim; returns signal id and claim."""
    at = place_on(wire)
    begin = WriteBlobRequest(begin=BlobBegin(**at, options=WriteOptions(create={})))
    wire.blobs.WriteBlob(iter([begin, *(WriteBlobRequest(data=os.urandom(1 << 20)) for _ in range(PIECES))]))
    for version in range(2):
        wire.save(SaveRequest(**at, options=WriteOptions(expected_version=version), diff=appends("x")))
    signal = wire.signals.SendSignal(
        SendSignalRequest(**at, name="s", options=WriteOptions(request_id="s"))
    ).signal.signal_id
    holder = Holder(name="h", incarnation="1")
    claim = wire.effects.BeginEffect(
        BeginEffectRequest(**at, key="k", holder=holder, options=WriteOptions(request_id="k"))
    ).claim_token
    return signal, claim


def test_an_export_shows_one_moment(wire: Wire) -> None:
    """A signal that is acknowledged meanwhile is still there, without the version that did it; effects may be newer."""
    (signal, claim), at = fill(wire), place_on(wire)
    stream = wire.backups.ExportThread(backup.ExportThreadRequest(**at))
    parts = list(next(stream).parts)  # the blob keeps the daemon at work: nothing else was read yet
    wire.save(SaveRequest(**at, options=WriteOptions(expected_version=2), diff=appends("y"), ack_signals=[signal]))
    wire.threads.SetTag(SetTagRequest(**at, tag="late"))
    done = CompleteEffectRequest(**at, key="k", claim_token=claim, state=EFFECT_STATE_DONE, value=text("v"))
    wire.effects.CompleteEffect(done)
    parts += [part for answer in stream for part in answer.parts]
    assert [part.version.checkpoint.version for part in parts if part.HasField("version")] == [1, 2]
    assert [part.signal.signal.signal_id for part in parts if part.HasField("signal")] == [signal]
    assert [part.effect.effect.state for part in parts if part.HasField("effect")] == [EFFECT_STATE_DONE]
    end = parts[-1].end
    assert (end.last_version, list(end.tags), [branch.version for branch in end.branches]) == (2, [], [2])


def test_a_head_that_was_pruned_meanwhile_is_told(wire: Wire) -> None:
    """An export that lost a branch's head to pruning is refused by name, and not cut down without a word."""
    place = place_on(wire, "pruned")
    begin = WriteBlobRequest(begin=BlobBegin(**place, options=WriteOptions(create={})))
    wire.blobs.WriteBlob(iter([begin, *(WriteBlobRequest(data=os.urandom(1 << 20)) for _ in range(PIECES))]))
    wire.save(SaveRequest(**place, options=WriteOptions(expected_version=0), diff=appends("x")))
    stream = wire.backups.ExportThread(backup.ExportThreadRequest(**place))
    next(stream)
    wire.save(SaveRequest(**place, options=WriteOptions(expected_version=1), diff=appends("y")))
    wire.threads.PruneThread(PruneThreadRequest(**place, versions=spans_of([1])))
    with pytest.raises(grpc.RpcError) as failure:
        list(stream)
    assert failure.value.code() is grpc.StatusCode.OUT_OF_RANGE
    assert "export the thread again" in failure.value.details()


def test_a_crash_leaves_nothing_of_an_import(tmp_path: Path) -> None:
    """A daemon that is killed in the middle has no such thread afterwards, and takes the same import."""
    with run_daemon(tmp_path / "data") as daemon:
        wire = Wire(daemon.target)
        fill(wire)
        answers = wire.backups.ExportThread(backup.ExportThreadRequest(**place_on(wire)))
        parts = [part for answer in answers for part in answer.parts]
        first = backup.ImportThreadRequest(
            begin=backup.ImportBegin(namespace="torn", thread="copy", options=WriteOptions(request_id="r"))
        )
        messages: queue.SimpleQueue[backup.ImportThreadRequest | None] = queue.SimpleQueue()
        call = wire.backups.ImportThread.future(iter(messages.get, None))
        messages.put(first)
        for part in parts[:-1]:
            messages.put(backup.ImportThreadRequest(parts=[part]))
        blobs = daemon.data_dir / "blobs"
        while sum(1 for _ in blobs.iterdir()) < 2:  # the second one is the copy's
            assert not call.done()
        daemon.kill()
        messages.put(None)
        assert call.exception().code() is grpc.StatusCode.UNAVAILABLE
        daemon.start()
        assert (
            refused(Wire(daemon.target).threads.GetThread, GetThreadRequest(namespace="torn", thread="copy")).reason
            == "THREAD_NOT_FOUND"
        )
        again = Wire(daemon.target)
        whole: Iterator[backup.ImportThreadRequest] = iter([first, backup.ImportThreadRequest(parts=parts)])
        assert not again.backups.ImportThread(whole).receipt.replayed
        assert again.findings() == []
        assert sum(1 for _ in blobs.iterdir()) == 2
