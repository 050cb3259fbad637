"""The danger: a guarded save that was made is refused when it is tried again, because the lock is gone or elsewhere."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
from tests.daemon.driven import CALLER, LEASE_S, NAMESPACE, Driven, append
from tests.daemon.town import Town
from tests.daemon.unthreaded import run

from stateward.v1.checkpoint_service_pb2 import BatchSaveRequest, SaveRequest
from stateward.v1.lease_service_pb2 import AcquireLeaseRequest
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import Fenced, NotOwner, StatewardError, ThreadNotFound


def take_lock(machine: Driven, *, takes_thread: bool = True) -> int:
    """Gets the lease of the thread ``lock``, on whatever machine it is, and archives it. Returns the token."""
    if takes_thread:
        machine.archive.own(NAMESPACE, "lock", take_over=True)
    request = AcquireLeaseRequest(
        namespace=NAMESPACE, thread="lock", holder={"name": "me", "incarnation": "1"}, take_over=True,
        options=WriteOptions(request_id=os.urandom(8).hex()),
    )  # fmt: skip
    token = int(machine.write(machine.store.leases.acquire(request)).lease.token)
    lock = machine.find("lock")
    assert lock is not None
    machine.ship(lock.number)
    return token


def guarded(token: int, request_id: str, after: int) -> SaveRequest:
    request = append(after=after, request_id=request_id)
    request.guard.thread, request.guard.token = "lock", token
    return request


@pytest.mark.parametrize("deleted", [True, False])
def test_a_retry_needs_no_lock(driven: Town, deleted: bool) -> None:
    """The lock was deleted, or another machine has it: retries get the first answers, and new saves are refused."""
    first, second = driven.machine("first"), driven.machine("second")
    token = take_lock(first)
    saves = [first.put(guarded(token, "a", 0)), first.put(guarded(token, "b", 1))]
    if deleted:
        run(first.threads_.delete_thread(DeleteThreadRequest(namespace=NAMESPACE, thread="lock"), CALLER))
    else:
        take_lock(second)
        take_lock(first, takes_thread=False)  # whose ship finds that the thread was taken
    error: type[StatewardError] = ThreadNotFound if deleted else Fenced
    with pytest.raises(error):
        first.put(guarded(token, "c", 2))
    assert [first.put(guarded(token, name, number)).receipt.digest for number, name in enumerate("ab")] == [
        each.receipt.digest for each in saves
    ]
    batch = BatchSaveRequest(saves=[guarded(token, "a", 0)])
    assert run(first.checkpoints.batch_save(batch, CALLER)).saves[0].receipt.digest == saves[0].receipt.digest
    batch = BatchSaveRequest(saves=[append(after=2), guarded(token, "c", 2)])
    batch.saves[0].thread = "other"
    batch.saves[0].options.expected_version = 0
    with pytest.raises(error) as caught:
        run(first.checkpoints.batch_save(batch, CALLER))
    assert caught.value.metadata["item"] == "saves[1]"


@pytest.mark.parametrize("in_batch", [True, False])
def test_an_idle_lock_is_looked_at(driven: Town, in_batch: bool) -> None:
    """Another machine took the lock while nobody wrote it here, and nothing would fence the thread that it guards."""
    first, second = driven.machine("first"), driven.machine("second")
    token = take_lock(first)
    first.put(guarded(token, "a", 0))
    with suppress(NotOwner):
        second.archive.own(NAMESPACE, "lock")
    driven.time.sleep(LEASE_S + 1)
    second.archive.own(NAMESPACE, "lock")
    take_lock(second, takes_thread=False)
    save = guarded(token, "b", 1)
    with pytest.raises(NotOwner):
        run(first.checkpoints.batch_save(BatchSaveRequest(saves=[save]), CALLER)) if in_batch else first.put(save)
    assert first.put(guarded(token, "a", 0)).receipt.replayed
