"""The danger: a thread that was deleted on this disk alone counts as dirty, and is waited for, until the next start."""

from __future__ import annotations

import pytest
from tests.archive.driven import Driven, Town, append

from stateward.v1.thread_service_pb2 import DeleteThreadRequest
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
