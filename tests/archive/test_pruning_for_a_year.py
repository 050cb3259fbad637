"""The danger: a thread that is pruned by a rule grows all the same, a little each day, on the disk or in the bucket."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

import pytest
from tests.archive.test_blobs_collected_elsewhere import archive_verified, take
from tests.daemon import small
from tests.daemon.driven import CALLER, NAMESPACE, Driven, append
from tests.daemon.small import BLOB_KEPT_S
from tests.daemon.town import Town
from tests.daemon.unthreaded import run
from tests.daemon.wire import text

from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.lease_service_pb2 import AcquireLeaseRequest, ReleaseLeaseRequest
from stateward.v1.signal_service_pb2 import SendSignalRequest
from stateward.v1.thread_service_pb2 import MoveBranchRequest, SetTagRequest, UpdateThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.store.journal import journal, replay

WEEK_S, WEEKS, KEPT = 7 * 24 * 3600.0, 52, 3
# By now everything that comes and goes has gone once.
FIRST_WEEKS = 8


@dataclass(frozen=True)
class Size:
    """What a thread needs, on the disk and in the bucket."""

    entries: int
    stored_bytes: int
    rows: int
    objects: int
    bucket_bytes: int


def size(town: Town, machine: Driven) -> Size:
    thread = machine.thread()
    with machine.store.context.engine.read() as txn:
        entries = sum(1 for _ in replay.read_entries(txn, thread.identity, 1))
        rows = txn.stat()["entries"]
    objects = town.bucket.objects
    return Size(entries, thread.head.stored_bytes, rows, len(objects), sum(map(len, objects.values())))


def put_slot(data: bytes) -> SaveRequest:
    """A save that does not let the state grow."""
    request = SaveRequest(namespace=NAMESPACE, thread="job", options=WriteOptions(request_id=os.urandom(8).hex()))
    edit = request.diff.edits.add().set_slot
    edit.slot, edit.value.media_type, edit.value.data = "s", "application/octet-stream", data
    return request


def work(machine: Driven, week: int) -> None:
    """A week of an agent: a message that it answers, results of tools, a lock, a tag, a file, a step that is undone."""
    message = SendSignalRequest(
        namespace=NAMESPACE, thread="job", name="mail", options=WriteOptions(request_id=f"mail {week}")
    )
    message.payload.media_type, message.payload.data = "application/octet-stream", os.urandom(100)
    signal = machine.signal(message).signal.signal_id
    lease = AcquireLeaseRequest(namespace=NAMESPACE, thread="job", options=WriteOptions(request_id=f"lock {week}"))
    lease.holder.name, lease.holder.incarnation = "w", "1"
    token = machine.write(machine.store.leases.acquire(lease)).lease.token
    machine.write(
        machine.store.leases.release(
            ReleaseLeaseRequest(namespace=NAMESPACE, thread="job", options=WriteOptions(lease_token=token))
        )
    )
    for number in range(2):
        request = put_slot(os.urandom(200))
        request.checkpoint_id = f"{week} {number}"
        request.effects.add(anchor=request.checkpoint_id, key="tool", value=text(os.urandom(50).hex()))
        if number == 1:
            request.ack_signals.append(signal)
        machine.put(request)
        machine.ship_now()
    version = machine.thread().head.main_version
    tag = SetTagRequest(namespace=NAMESPACE, thread="job", tag="good")
    tag.version.version = version
    machine.tag(tag)
    move = MoveBranchRequest(namespace=NAMESPACE, thread="job", options=WriteOptions(request_id=f"undo {week}"))
    move.version.version = version - 1
    run(machine.threads_.move_branch(move, CALLER))
    machine.write_blob("job", os.urandom(300))
    machine.ship_now()


def rest(town: Town, machine: Driven) -> None:
    """What happens by itself until the next week: the rule, the clearing, and the ship that follows it."""
    for wait_s in (2 * BLOB_KEPT_S, WEEK_S):
        town.time.sleep(wait_s)
        machine.sweep()
        machine.ship_now()
        machine.write_rows()


def test_a_thread_needs_as_much_after_a_year_as_after_two_months(
    driven: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries, bytes and rows on the disk, objects and bytes in the bucket. In the middle of the year another machine
    goes on."""
    small.shrink(window=8)
    monkeypatch.setattr(journal, "LOOSE_MAX", 8)
    machine = driven.machine("first")
    machine.put(append())
    rule = UpdateThreadRequest(namespace=NAMESPACE, thread="job", update_mask={"paths": ["retention"]})
    rule.update.retention.keep_last = KEPT
    machine.update(rule)
    sizes = list[Size]()
    for week in range(WEEKS):
        if week == WEEKS // 2:
            machine = driven.machine("second")
            take(machine)
        work(machine, week)
        rest(driven, machine)
        sizes.append(size(driven, machine))
    for each in fields(Size):
        seen = [getattr(size, each.name) for size in sizes]
        assert max(seen[FIRST_WEEKS:]) <= 1.5 * max(seen[FIRST_WEEKS // 2 : FIRST_WEEKS]), each.name
    assert (machine.findings(), archive_verified(machine)) == ([], [])
