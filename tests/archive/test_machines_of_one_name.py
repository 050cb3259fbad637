"""The danger: machines of one name take each other's threads, and a replaced one reads its old state for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest
from tests.daemon.driven import LEASE_S, Driven, append
from tests.daemon.town import Town

from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.bucket.base import BucketUnavailable
from stateward_sidecar.errors import ArchiveUnavailable, NotOwner


def version(machine: Driven) -> int:
    return machine.state().checkpoint.version


def asked(machine: Driven, verb: Callable[[Driven], object]) -> int:
    """How many requests a verb costs."""
    before = machine.requests
    verb(machine)
    return machine.requests - before


def go_away(machine: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on its bucket answers nothing, until ``monkeypatch.undo``."""

    def fail(key: str, *_: int) -> NoReturn:
        raise BucketUnavailable(f"{key}: away")

    monkeypatch.setattr(machine.bucket, "get", fail)


def replaced(driven: Town) -> tuple[Driven, Driven]:
    """An owner that was replaced while it was idle, at version 2 of 2; and the new one."""
    first, second = driven.machine("first"), driven.machine("second")
    first.put(append(after=0))
    first.ship_now()
    second.archive.own("default", "job", take_over=True)
    second.put(append(after=1))
    second.ship_now()
    return first, second


def test_one_name_is_not_one_owner(driven: Town) -> None:
    """The lease stands between two data directories, however their daemons are called."""
    first, second = driven.machine("host"), driven.machine("host")
    first.put(append(after=0))
    first.ship_now()
    with pytest.raises(NotOwner):
        second.put(append(after=1))
    driven.time.sleep(LEASE_S)
    assert second.put(append(after=1)).version == 2


def test_a_restart_needs_no_lease(driven: Town) -> None:
    """A data directory is its own successor at once, whatever it is called, and also without a copy of the thread."""
    first = driven.machine("host")
    first.put(append(after=0))
    first.ship_now()
    first.disk.owner_id = "renamed"
    first.restart()
    assert first.put(append(after=1)).version == 2
    first.ship_now()
    first.restart()
    request = DeleteThreadRequest(namespace="default", thread="job", local_only=True)
    first.write(first.store.deleter.delete(request), frees_space=True)
    assert first.put(append(after=2)).version == 3


def test_what_an_owner_reads_is_of_a_bounded_age(driven: Town) -> None:
    """For a lease it may believe itself the owner; then a read asks, and shows what the archive has."""
    first, _ = replaced(driven)
    assert (version(first), asked(first, version)) == (1, 0)
    driven.time.sleep(LEASE_S)
    assert version(first) == 2
    assert first.state().owner_id == "second"
    with pytest.raises(NotOwner):
        first.put(append(after=2))


def test_reading_what_was_just_shipped_asks_nobody(driven: Town) -> None:
    """A busy owner never asks for a read, and an idle one once a lease."""
    first = driven.machine("first")
    for number in range(3):
        first.put(append(after=number))
        first.ship_now()
        driven.time.sleep(LEASE_S - 1)
        assert asked(first, version) == 0
    driven.time.sleep(1)
    assert asked(first, version) == 1
    driven.time.sleep(LEASE_S - 1)
    assert asked(first, version) == 0


def test_an_owner_reads_on_while_the_bucket_is_away(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may commit as well; what the archive has is shown as soon as it answers."""
    first, _ = replaced(driven)
    driven.time.sleep(LEASE_S)
    go_away(first, monkeypatch)
    assert version(first) == 1
    assert version(first) == 1
    monkeypatch.undo()
    first.wire.background()
    assert version(first) == 2


def test_a_failure_long_past_is_no_excuse(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that did nothing since its bucket failed asks it again before it reads."""
    first, _ = replaced(driven)
    driven.time.sleep(LEASE_S)
    go_away(first, monkeypatch)
    assert version(first) == 1
    monkeypatch.undo()
    driven.time.sleep(LEASE_S)
    assert version(first) == 2


def test_what_is_only_a_copy_is_never_read_blindly(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who never owned a thread says that the archive is away."""
    first, second = replaced(driven)
    driven.time.sleep(LEASE_S)
    assert version(first) == 2
    go_away(first, monkeypatch)
    with pytest.raises(ArchiveUnavailable):
        version(first)
    assert version(second) == 2
