"""The danger: one damaged thread ends the daemon, is answered as missing or as INTERNAL, or cannot even be deleted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.daemon.wire import Wire, appends, refused
from tests.faults.rig import HEALTHY, OTHER, SPACE, Made, copy, kind, victims

from stateward.testing import Daemon, run_daemon
from stateward.v1 import checkpoint_service_pb2 as c
from stateward.v1 import thread_service_pb2 as t
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.error_reason_pb2 import ERROR_REASON_CORRUPT, ERROR_REASON_KEY_UNAVAILABLE
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.storage.keyslots import SLOT_BYTES
from stateward_sidecar.storage.keywraps import THREAD
from stateward_sidecar.storage.layout import tail_number
from stateward_sidecar.store.thread.blocks import pack_row, unpack_row


@pytest.fixture
def damaged(made: Made, tmp_path: Path) -> Iterator[tuple[Daemon, Wire]]:
    """One entry of alpha (its version 5) has a flipped bit; beta's data key as well."""
    from tests.daemon.store import opened
    from tests.faults.rig import read_rows

    rows = read_rows(made.directory)
    key, entries = next(
        (key, found)
        for key, value in rows.items()
        if kind(key) == "TJ" and victims(made, key, value) == {"alpha"}
        if 6 in dict(found := list(unpack_row(tail_number(key), memoryview(value))))
    )
    record = bytearray(dict(entries)[6])
    record[-5] ^= 4
    row = pack_row(tail_number(key), [(each, bytes(record) if each == 6 else whole) for each, whole in entries])
    directory = copy(made, tmp_path / "data", {key: row})
    with opened(made.directory, key=made.key, settles=False) as store, store.context.engine.read() as txn:
        uid = store.threads.get(txn, SPACE, "beta").identity.uid
    keys = bytearray((directory / "keys").read_bytes())
    slot = next(at for at in range(0, len(keys), SLOT_BYTES) if keys[at] == THREAD and keys[at + 4 : at + 20] == uid)
    keys[slot + 60] ^= 1
    (directory / "keys").write_bytes(keys)
    shutil.copy(f"{made.directory}.key", tmp_path / "data.key")
    with run_daemon(directory, sweep_interval=0) as daemon:
        wire = Wire(daemon.target)
        yield daemon, wire
        wire.close()


def test_a_damaged_entry_is_data_loss_by_name_and_version(damaged: tuple[Daemon, Wire]) -> None:
    """CORRUPT is DATA_LOSS and says thread and version; versions before it read on."""
    _, wire = damaged
    at = {"namespace": SPACE, "thread": "alpha"}
    found = refused(wire.checkpoints.Hydrate, c.HydrateRequest(**at, version=VersionRef(version=5)))
    assert (found.reason, found.code) == ("CORRUPT", grpc.StatusCode.DATA_LOSS)
    assert (found.metadata["thread"], found.metadata["version"]) == ("alpha", "5")
    assert "alpha" in found.message
    wire.hydrate(c.HydrateRequest(**at, version=VersionRef(version=4)))


def test_a_damaged_key_is_key_unavailable_by_name(damaged: tuple[Daemon, Wire]) -> None:
    """Reads and saves of a thread whose key is damaged are KEY_UNAVAILABLE; it is not begun anew."""
    _, wire = damaged
    at = {"namespace": SPACE, "thread": "beta"}
    for call, request in (
        (wire.checkpoints.Hydrate, c.HydrateRequest(**at)),
        (wire.checkpoints.Save, c.SaveRequest(**at, options=WriteOptions(expected_version=0), diff=appends("x"))),
        (wire.threads.GetThread, t.GetThreadRequest(**at)),
        (wire.threads.Watch, t.WatchRequest(**at, after_sequence=0)),
        (wire.threads.ForkThread, t.ForkThreadRequest(**at, new_thread="copy")),
    ):
        found = refused(call, request)
        assert (found.reason, found.code) == ("KEY_UNAVAILABLE", grpc.StatusCode.FAILED_PRECONDITION)
        assert found.metadata["thread"] == "beta"


def test_other_threads_go_on(damaged: tuple[Daemon, Wire]) -> None:
    """Beside damaged threads others save, read and are listed, and Verify names exactly the damaged ones."""
    daemon, wire = damaged
    wire.save(
        c.SaveRequest(namespace=OTHER, thread=HEALTHY, options=WriteOptions(expected_version=1), diff=appends("and on"))
    )
    wire.save(c.SaveRequest(namespace=SPACE, thread="new", options=WriteOptions(expected_version=0), diff=appends("x")))
    listed = wire.threads.ListThreads(t.ListThreadsRequest(namespace=SPACE)).threads
    assert {"new", "large"} <= {thread.thread for thread in listed}
    findings = wire.findings()
    named = {(finding.reason, finding.thread) for finding in findings if finding.thread}
    assert named == {(ERROR_REASON_CORRUPT, "alpha")}
    assert {finding.reason for finding in findings if not finding.thread} == {ERROR_REASON_KEY_UNAVAILABLE}
    assert any((finding.thread, finding.version) == ("alpha", 5) for finding in findings)
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.stderr


def test_a_damaged_thread_can_be_deleted(damaged: tuple[Daemon, Wire]) -> None:
    """What cannot be read any more can still be removed, so that Verify is clean again."""
    _, wire = damaged
    wire.threads.DeleteThread(t.DeleteThreadRequest(namespace=SPACE, thread="alpha"), timeout=20)
    assert [finding for finding in wire.findings() if finding.thread == "alpha"] == []
