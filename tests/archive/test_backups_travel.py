"""The danger: a thread restored from a backup reaches the archive in part, so it is lost, or loses its blobs, with the
machine that restored it."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import run
from tests.cli.everything import HOLDER, fill, read
from tests.daemon.process import Fleet
from tests.daemon.wire import Wire

from stateward.testing import run_daemon
from stateward.v1.lease_service_pb2 import AcquireLeaseRequest
from stateward.v1.thread_service_pb2 import AttachRequest, WaitDurableRequest
from stateward.v1.write_pb2 import Receipt, WriteOptions


def test_restored_thread_outlives_its_machine(machines: Fleet, tmp_path: Path) -> None:
    """A backup is restored and archived; another machine can export it, and after a loss reads all of it, blobs too."""
    path = tmp_path / "all.jsonl.gz"
    with run_daemon() as lonely:
        original = Wire(lonely.target)
        fill(original, "space")
        assert run("--target", lonely.target, "-n", "space", "export", "rich", "--versions", "-o", path).code == 0
        first, second = machines.machine("first"), machines.machine("second")
        answer = run("--target", first.target, "-n", "space", "import", path)
        assert (answer.code, answer.err) == (0, "")
        wire = Wire(first.target)
        asked = {"namespace": "space", "thread": "rich"}
        sequence = wire.thread(**asked).sequence
        wait = WaitDurableRequest(**asked, receipt=Receipt(sequence=sequence), durability="DURABILITY_ARCHIVED")
        wire.threads.WaitDurable(wait)
        elsewhere = tmp_path / "elsewhere.jsonl"
        answer = run("--target", second.target, "-n", "space", "export", "rich", "--versions", "-o", elsewhere)
        assert (answer.code, "holds 1 thread, 7 versions, " in answer.err) == (0, True), answer.err
        first.kill()
        other = Wire(second.target)
        other.threads.Attach(AttachRequest(**asked, mode="ATTACH_MODE_TAKE_OVER"))
        before, after = (read(each, "space", "rich", is_restored=each is other) for each in (original, other))
        for found in (before, after):
            for field in ("access", "owner_id", "owner_epoch"):
                found["thread"].ClearField(field)
                found["described"].thread.ClearField(field)
        for key, value in before.items():
            assert after[key] == value, key
        token = original.described(**asked).lease.token
        lease = AcquireLeaseRequest(**asked, holder=HOLDER, options=WriteOptions(request_id="next"))
        assert other.leases.AcquireLease(lease).lease.token > token
        assert other.findings() == []
