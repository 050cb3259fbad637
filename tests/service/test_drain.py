"""The danger: a machine that is taken away while it still takes work, or a method that nobody thought of."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.daemon.wire import Wire, appends, refused

from stateward.testing import Daemon, run_daemon
from stateward.v1 import (
    admin_service_pb2,
    archive_service_pb2,
    backup_service_pb2,
    blob_service_pb2,
    call_service_pb2,
    checkpoint_service_pb2,
    effect_service_pb2,
    lease_service_pb2,
    record_service_pb2,
    signal_service_pb2,
    thread_service_pb2,
    workspace_service_pb2,
    writer_service_pb2,
)
from stateward.v1.admin_service_pb2 import DrainRequest, DrainResponse, GetStatsRequest
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, ForkThreadRequest, WaitDurableRequest, WatchRequest
from stateward.v1.write_pb2 import Receipt, WriteOptions
from stateward_sidecar.service.methods import METHODS

WORK = {
    "AcquireLease", "Attach", "BatchSave", "BeginEffect", "CollectGarbage", "Compact", "CompleteEffect",
    "DeleteBranch", "DeleteEffects", "DeleteRecords", "DeleteTag", "DeleteThread", "ForkThread", "ImportThread",
    "MoveBranch", "PruneThread", "PutEffects", "PutRecords", "RekeyThread", "ReleaseLease", "RenewEffect",
    "RenewLease", "RestoreArchive", "RunCalls", "Save", "SendSignal", "SetTag", "UpdateThread", "Write", "WriteBlob",
    "WriteObjects",
}  # fmt: skip
SERVICES = (
    admin_service_pb2, archive_service_pb2, backup_service_pb2, blob_service_pb2, call_service_pb2,
    checkpoint_service_pb2, effect_service_pb2, lease_service_pb2, record_service_pb2, signal_service_pb2,
    thread_service_pb2, workspace_service_pb2, writer_service_pb2,
)  # fmt: skip


@pytest.fixture(scope="module")
def own_daemon() -> Iterator[Daemon]:
    """A daemon without an archive, with two threads."""
    with run_daemon() as running:
        yield running


@pytest.fixture
def own_wire(own_daemon: Daemon) -> Iterator[Wire]:
    opened = Wire(own_daemon.target)
    for name in ("a", "b"):
        opened.save(SaveRequest(thread=name, diff=appends("first"), options=WriteOptions(request_id=f"first {name}")))
    yield opened
    drain(opened, undo=True)
    opened.close()


def drain(wire: Wire, **fields: object) -> DrainResponse:
    answer: DrainResponse = wire.admin.Drain(DrainRequest(**fields), timeout=20)  # type: ignore[arg-type]
    return answer


def health(wire: Wire, name: str) -> int:
    asked = health_pb2.HealthCheckRequest(service=name)
    status: int = health_pb2_grpc.HealthStub(wire.channel).Check(asked, timeout=10).status
    return status


def test_every_method_of_the_contract_is_either_work_or_goes_on() -> None:
    """A method that is new in the contract has its row in the daemon's table, and a word here if it is work."""
    methods = {
        method.name for module in SERVICES for each in module.DESCRIPTOR.services_by_name.values()
        for method in each.methods
    }  # fmt: skip
    assert set(METHODS) == methods
    assert {name for name in METHODS if not METHODS[name].goes_on} == WORK


def test_work_is_refused_and_reads_go_on(own_wire: Wire) -> None:
    """SHUTTING_DOWN with a word on draining, nothing written; hydrate, stats, watch and WaitDurable answer."""
    answer = drain(own_wire)
    assert (answer.dirty_threads, answer.detached_threads, answer.ready) == (2, 0, False)
    before = own_wire.entries_written()
    for refusal in (
        refused(
            own_wire.checkpoints.Save,
            SaveRequest(thread="a", diff=appends("second"), options=WriteOptions(request_id="second")),
        ),
        refused(
            own_wire.checkpoints.Save,
            SaveRequest(thread="new", diff=appends("second"), options=WriteOptions(request_id="third")),
        ),
        refused(
            own_wire.threads.ForkThread,
            ForkThreadRequest(thread="a", new_thread="c", options=WriteOptions(request_id="fork")),
        ),
        refused(own_wire.threads.DeleteThread, DeleteThreadRequest(thread="a")),
    ):
        assert (refusal.reason, refusal.code) == ("SHUTTING_DOWN", grpc.StatusCode.UNAVAILABLE)
        assert "draining" in refusal.message
    assert own_wire.entries_written() == before
    assert [entry.data for entry in own_wire.hydrate(HydrateRequest(thread="a")).logs["messages"].entries] == [b"first"]
    stats = own_wire.admin.GetStats(GetStatsRequest(), timeout=10)
    assert (stats.threads, stats.draining) == (2, True)
    first = WaitDurableRequest(thread="a", receipt=Receipt(sequence=1))
    assert own_wire.threads.WaitDurable(first, timeout=10).receipt.sequence == 1
    watch = own_wire.threads.Watch(WatchRequest(thread="a"), timeout=10)
    assert next(watch).cursor
    watch.cancel()


def test_probes_are_told_and_liveness_stays(own_wire: Wire) -> None:
    """An orchestrator sends nothing here any more, and does not kill the daemon for it; undo brings both back."""
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    assert [health(own_wire, name) for name in ("", "readiness", "liveness")] == [serving] * 3
    assert not drain(own_wire).ready
    assert not drain(own_wire).ready
    assert [health(own_wire, name) for name in ("", "readiness", "liveness")] == [not_serving, not_serving, serving]
    assert drain(own_wire, undo=True).ready
    assert [health(own_wire, name) for name in ("", "readiness", "liveness")] == [serving] * 3
    own_wire.save(SaveRequest(thread="a", diff=appends("second"), options=WriteOptions(request_id="after undo")))


def test_a_restart_takes_work_again(own_daemon: Daemon, own_wire: Wire) -> None:
    """Draining is a state of the process and not of the disk."""
    drain(own_wire)
    own_daemon.stop()
    own_daemon.start()
    own_wire.save(SaveRequest(thread="a", diff=appends("third"), options=WriteOptions(request_id="after restart")))


@pytest.mark.parametrize("seconds", [-1, 3601])
def test_a_wrong_time_is_named(own_wire: Wire, seconds: int) -> None:
    """A grace time outside of an hour is INVALID_FIELD, and nothing is drained."""
    asked = DrainRequest()
    asked.grace.seconds = seconds
    assert refused(own_wire.admin.Drain, asked).field == "grace"
    assert health(own_wire, "readiness") == health_pb2.HealthCheckResponse.SERVING
