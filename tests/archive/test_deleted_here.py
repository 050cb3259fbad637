"""The danger: a thread that was deleted on this disk alone counts as dirty, and is waited for, until the next start."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.archive.driven import Driven, Town, append

from stateward.v1.lease_service_pb2 import AcquireLeaseRequest
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, SetTagRequest
from stateward_sidecar.errors import ThreadNotFound


def delete_here(machine: Driven) -> None:
    """What DeleteThread with ``local_only`` does."""
    request = DeleteThreadRequest(namespace="default", thread="job")
    machine.write(machine.store.deleter.delete(request), frees_space=True)


def test_nothing_of_it_is_dirty(driven: Town) -> None:
    """What was not archived is gone: a drain ends, and whoever waits for the archive is told at once."""
    machine = driven.machine("first")
    machine.put(append(after=0))
    machine.ship_now()
    sequence = machine.put(append(after=1)).sequence
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
    """The call says at once that there is no such thread, and deletes neither the copy nor the archive's."""
    machine = driven.machine("first")
    machine.put(append(after=0))
    machine.ship_now()
    request = DeleteThreadRequest(namespace="default", thread="job", expected_uid="0" * 32)
    with pytest.raises(ThreadNotFound):
        machine.delete(request)
    request.allow_missing = True
    assert not machine.delete(request).uid
    assert machine.state().checkpoint.version == 1
    assert driven.machine("second").state().checkpoint.version == 1


def token_of(machine: Driven, name: str) -> int:
    """The token of a lease that is granted now."""
    asked = AcquireLeaseRequest(namespace="default", thread="job", request_id=name)
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
