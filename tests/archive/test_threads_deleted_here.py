"""The danger: a thread that was deleted on this disk alone counts as dirty, and is waited for, until the next start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.daemon.driven import Driven, append
from tests.daemon.town import Town

from stateward.v1.lease_service_pb2 import AcquireLeaseRequest
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, SetTagRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import ThreadNotFound, UidMismatch
from stateward_sidecar.store.thread import threads as store_threads


def delete_here(machine: Driven) -> None:
    """What DeleteThread with ``local_only`` does."""
    request = DeleteThreadRequest(namespace="default", thread="job", local_only=True)
    machine.write(machine.store.deleter.delete(request), frees_space=True)


def test_nothing_of_it_is_dirty(driven: Town) -> None:
    """What was not archived is gone: a drain ends, and whoever waits for the archive is told at once."""
    machine = driven.machine("first")
    machine.put(append(after=0))
    machine.ship_now()
    sequence = machine.put(append(after=1)).receipt.sequence
    waiting = machine.archive.wait(machine.thread(), sequence)
    assert waiting is not None
    assert machine.archive.stats().dirty_threads == 1
    delete_here(machine)
    stats = machine.archive.stats()
    assert (stats.dirty_threads, stats.owned_threads) == (0, 0)
    with pytest.raises(ThreadNotFound):
        waiting.result(0)
    assert machine.archive.leaver.count_dirty() == 0
    assert machine.state().checkpoint.version == 1


def test_it_can_be_given_up(driven: Town) -> None:
    """HEAD still says that this sidecar owns the thread: another one need not wait for a lease."""
    machine = driven.machine("first")
    machine.put(append(after=0))
    machine.ship_now()
    delete_here(machine)
    machine.archive.detach("default", "job")
    assert driven.machine("second").put(append(after=1)).version == 2


def test_a_thread_with_another_uid_than_expected_stays(driven: Town) -> None:
    """The call says at once that another creation has the name, and deletes neither the copy nor the archive's."""
    machine = driven.machine("first")
    machine.put(append(after=0))
    machine.ship_now()
    request = DeleteThreadRequest(namespace="default", thread="job", options=WriteOptions(expected_uid="0" * 32))
    with pytest.raises(UidMismatch):
        machine.delete(request)
    request.allow_missing = True
    assert not machine.delete(request).receipt.uid
    assert machine.state().checkpoint.version == 1
    assert driven.machine("second").state().checkpoint.version == 1


def token_of(machine: Driven, name: str) -> int:
    """The token of a lease that is granted now."""
    asked = AcquireLeaseRequest(namespace="default", thread="job", options=WriteOptions(request_id=name))
    asked.holder.name, asked.holder.incarnation = name, "1"
    return machine.write(machine.store.leases.acquire(asked)).lease.token


def tag(machine: Driven) -> None:
    """Writes an entry."""
    machine.tag(SetTagRequest(namespace="default", thread="job", tag="t", version={"version": 1}))


def takes_it(machine: Driven) -> None:
    """The next call finds no copy here."""


def reads_it_first(machine: Driven) -> None:
    """There is a copy, and it is not known why."""
    machine.archive.know("default", "job")


def gives_it_up_first(machine: Driven) -> None:
    """HEAD says that nothing is missing, as it does after a thread was given up with all of it archived."""
    machine.archive.detach("default", "job")


@pytest.mark.parametrize("before", [takes_it, reads_it_first, gives_it_up_first])
def test_no_token_is_given_out_twice(driven: Town, before: Callable[[Driven], None]) -> None:
    """The lease went with this disk's copy. Its holder may be alive, and sends its token to others as well."""
    machine = driven.machine("first")
    machine.put(append(after=0))
    machine.ship_now()
    lost = token_of(machine, "lost")
    delete_here(machine)
    before(machine)
    machine.archive.own("default", "job")
    assert token_of(machine, "next") > lost
    machine.ship_now()
    assert driven.machine("second").state().checkpoint.version == 1


def test_no_token_of_a_thread_without_an_archived_entry_is_given_out_twice(driven: Town) -> None:
    """The archive has only the claim of its name."""
    machine = driven.machine("first")
    machine.put(append(after=0))
    lost = token_of(machine, "lost")
    delete_here(machine)
    machine.put(append(after=0))
    assert token_of(machine, "next") > lost
    machine.ship_now()
    assert driven.machine("second").state().checkpoint.version == 1


def test_nothing_lost_is_no_new_epoch(driven: Town) -> None:
    """The archive had all of it: the line goes on as it was."""
    machine = driven.machine("first")
    machine.put(append(after=0))
    machine.ship_now()
    epoch = machine.thread().epoch
    delete_here(machine)
    machine.put(append(after=1))
    assert machine.thread().epoch == epoch
    machine.ship_now()
    tag(machine)
    delete_here(machine)
    machine.archive.own("default", "job")
    assert machine.thread().epoch == epoch + 1
    tag(machine)
    machine.ship_now()
    delete_here(machine)
    machine.archive.own("default", "job")
    assert machine.thread().epoch == epoch + 1


def test_no_token_is_given_out_twice_after_two_readers(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both load the thread at once, and the hold has what does not stay in memory: nobody keeps it up to date."""
    machine = driven.machine("first")
    machine.put(append(after=0))
    machine.ship_now()
    threads, real = machine.store.threads, store_threads.load_thread
    threads.forget(machine.thread())
    entered, goes_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        found = real(*arguments)
        if threading.current_thread().name == "slow reader":
            entered.set()
            goes_on.wait(10)
        return found

    def read() -> None:
        with machine.store.context.engine.read() as txn:
            threads.find(txn, "default", "job")

    monkeypatch.setattr(store_threads, "load_thread", slow)
    reader = threading.Thread(target=read, name="slow reader")
    reader.start()
    assert entered.wait(10)
    machine.state()
    goes_on.set()
    reader.join()
    lost = token_of(machine, "lost")
    delete_here(machine)
    machine.archive.own("default", "job")
    assert token_of(machine, "next") > lost


def test_no_token_is_given_out_twice_without_a_hold(driven: Town) -> None:
    """It was dropped between the check and the commit, because the process has so many."""
    machine = driven.machine("first")
    machine.put(append(after=0))
    machine.ship_now()
    machine.archive.state.holds.clear()
    lost = token_of(machine, "lost")
    delete_here(machine)
    machine.archive.own("default", "job")
    assert token_of(machine, "next") > lost


def test_no_token_is_given_out_twice_after_the_bucket_was_set_back(driven: Town) -> None:
    """What was archived is lost there, and goes here with the copy: that is how one goes on from the older HEAD."""
    machine = driven.machine("first")
    machine.put(append(after=0))
    machine.ship_now()
    older = dict(driven.bucket.objects)
    lost = token_of(machine, "lost")
    machine.ship_now()
    driven.bucket.objects.clear()
    driven.bucket.objects.update(older)
    machine.archive.attacher.renew(("default", "job"))
    assert machine.archive.stats().rolled_back == 1
    delete_here(machine)
    machine.archive.own("default", "job")
    assert token_of(machine, "next") > lost


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_thread_that_is_deleted_is_not_remembered(driven: Town, elsewhere: bool) -> None:
    """Else so many would be remembered that each take begins a new epoch."""
    machine = driven.machine("first")
    machine.put(append(after=0))
    machine.ship_now()
    token_of(machine, "lost")
    delete_here(machine)
    assert machine.archive.state.cut
    other = driven.machine("other") if elsewhere else machine
    if elsewhere:
        other.archive.own("default", "job", take_over=True)
    other.delete(DeleteThreadRequest(namespace="default", thread="job"))
    machine.put(append(after=0))
    assert not machine.archive.state.cut
