"""The danger: a thread, or its copy here, is deleted while a call uses it, and the call is told something else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.archive.test_threads_deleted_here import delete_here
from tests.daemon import small
from tests.daemon.driven import NAMESPACE, Driven, append
from tests.daemon.town import Town, town

from stateward.v1.checkpoint_service_pb2 import HydrateRequest
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.errors import NotOwner, ThreadNotFound, VersionMismatch

SAVES = 12
REQUESTS = ("find", "read", "get_range", "replace", "create")
PLACES_MAX = 40


class Deletion:
    """Deletes the thread before or after the n-th request to the bucket, or the n-th commit, that comes from now on.
    Without ``elsewhere``, the copy on this disk alone; with it, that machine deletes the thread everywhere.
    """

    def __init__(self, machine: Driven, at: int, *, after: bool, elsewhere: Driven | None = None) -> None:
        self._machine, self._left, self._after, self._elsewhere = machine, at, after, elsewhere
        self.is_over = False
        for name in REQUESTS:
            self._wrap(machine.wire, name)
        self._wrap(machine.store.context.writer, "submit")

    def _wrap(self, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **how: Any) -> Any:
            mine, self._left = self._left == 0, self._left - 1
            if mine and not self._after:
                self._delete()
            result = real(*arguments, **how)
            if mine and self._after:
                if name == "submit" and result._done is not None:
                    with suppress(Exception):  # its caller gets the error
                        result.wait()
                self._delete()
            return result

        setattr(owner, name, call)

    def _delete(self) -> None:
        if self._elsewhere is not None:
            self._elsewhere.delete(DeleteThreadRequest(namespace=NAMESPACE, thread="job"))
        else:
            with suppress(ThreadNotFound):  # not here yet
                delete_here(self._machine)
        self.is_over = True


def none(town: Town, other: Driven, here: Driven) -> Driven:
    """This disk has nothing of the thread."""
    town.time.sleep(60)
    return here


def copy(town: Town, other: Driven, here: Driven) -> Driven:
    """It has a copy of all."""
    here.state()
    town.time.sleep(60)
    return here


def old_copy(town: Town, other: Driven, here: Driven) -> Driven:
    """It has a copy, and the owner went on."""
    here.state()
    go_on(other)
    with suppress(NotOwner):
        here.put(append(after=SAVES))  # from now on it knows for how long the owner is silent
    town.time.sleep(60)
    return here


def ours(town: Town, other: Driven, here: Driven) -> Driven:
    """It owns the thread, and has not read HEAD for a while."""
    other.archive.detach(NAMESPACE, "job")
    go_on(here)
    town.time.sleep(60)
    return here


def ours_before_a_restart(town: Town, other: Driven, here: Driven) -> Driven:
    """It owned the thread until it was killed."""
    return ours(town, other, here).restart()


def go_on(machine: Driven) -> None:
    for _ in range(3):
        machine.put(append())
    machine.ship_now()


def read(machine: Driven, tip: int) -> None:
    assert machine.state().checkpoint.version == tip


def read_old(machine: Driven, tip: int) -> None:
    del tip
    request = HydrateRequest(namespace=NAMESPACE, thread="job", max_bytes=1 << 20)
    request.version.version = 3
    assert machine.hydrate(request).checkpoint.version == 3


def save(machine: Driven, tip: int) -> None:
    try:
        assert machine.put(append(after=tip)).version == tip + 1
    except NotOwner:  # it was never asked for before, so the owner's silence begins only now
        machine.archive.own(NAMESPACE, "job", take_over=True)
        assert machine.put(append(after=tip)).version == tip + 1


def save_late(machine: Driven, tip: int) -> None:
    machine.archive.own(NAMESPACE, "job", take_over=True)
    with pytest.raises(VersionMismatch) as caught:
        machine.put(append(after=tip - 1))
    assert caught.value.metadata["current_version"] == str(tip)


@pytest.mark.parametrize("verb", [read, read_old, save, save_late], ids=lambda verb: verb.__name__)
@pytest.mark.parametrize("scene", [none, copy, old_copy, ours, ours_before_a_restart], ids=lambda scene: scene.__name__)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_the_archive_is_asked_again(
    tmp_path: Path, scene: Callable[[Town, Driven, Driven], Driven], verb: Callable[[Driven, int], None], *, after: bool
) -> None:
    """At whatever request or commit of a call the copy goes: the thread is in the archive, and the call finds it. What
    this process held is not held any more."""
    for at in range(PLACES_MAX):
        with town(tmp_path / str(at)) as machines:
            other, here = machines.machine("other"), machines.machine("here")
            for _ in range(SAVES):
                other.put(append(b"y" * 200))
            other.ship_now()
            here = scene(machines, other, here)
            tip = SAVES + (3 if scene not in (none, copy) else 0)
            deletion = Deletion(here, at, after=after)
            verb(here, tip)
            threads = here.store.threads
            assert all(threads.exists(hold.thread) for hold in here.archive.state.holds.values())
            if not deletion.is_over:
                return
    raise AssertionError("a call that has no end")


@pytest.fixture
def short_copies() -> Iterator[None]:
    """A copy has the newest entries only."""
    small.shrink(window=2)
    yield
    small.restore()


@pytest.mark.usefixtures("short_copies")
@pytest.mark.parametrize("verb", [read, read_old], ids=lambda verb: verb.__name__)
@pytest.mark.parametrize("scene", [none, copy, old_copy], ids=lambda scene: scene.__name__)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_its_owner_deletes_it(
    tmp_path: Path, scene: Callable[[Town, Driven, Driven], Driven], verb: Callable[[Driven, int], None], *, after: bool
) -> None:
    """At whatever request or commit of a call: it gets what was there, or there is no thread. Nothing is damaged."""
    for at in range(PLACES_MAX):
        with town(tmp_path / str(at)) as machines:
            other, here = machines.machine("other"), machines.machine("here")
            for number in range(SAVES):
                other.put(append(Random(number).randbytes(400)))
                other.ship_now()
            here = scene(machines, other, here)
            deletion = Deletion(here, at, after=after, elsewhere=other)
            with suppress(ThreadNotFound):
                verb(here, SAVES + (3 if scene is old_copy else 0))
            if not deletion.is_over:
                return
    raise AssertionError("a call that has no end")


def test_another_call_brings_it_back(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save finds no thread. While it asks whose the thread is, another call fetches it: the save is made."""
    machine = driven.machine("first")
    machine.put(append())
    machine.ship_now()
    confirm = machine.archive.confirm

    def confirm_late(*name: str) -> bool:
        machine.archive.own(*name)
        return confirm(*name)

    monkeypatch.setattr(machine.archive, "confirm", confirm_late)
    submit, writer = machine.store.context.writer.submit, machine.store.context.writer

    def submit_late(*arguments: Any, **how: Any) -> Any:
        monkeypatch.setattr(writer, "submit", submit)
        delete_here(machine)
        return submit(*arguments, **how)

    monkeypatch.setattr(writer, "submit", submit_late)
    assert machine.put(append(after=1)).version == 2


def test_a_blob_whose_files_go_while_it_is_fetched_is_fetched_again(
    driven: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread is still in the archive, so the reader gets the bytes."""
    owner, reader, data = driven.machine("owner"), driven.machine("reader"), bytes(range(256)) * 20
    owner.put(append())
    owner.write_blob("job", data)
    owner.ship_now()
    reader.state()
    read, left = reader.wire.get_range, [1]

    def get_range(key: str, offset: int, length: int) -> bytes:
        found = read(key, offset, length)
        if key.endswith(".blob") and left.pop():
            left.append(0)
            reader.delete(DeleteThreadRequest(namespace=NAMESPACE, thread="job", local_only=True))
            reader.store.sweeper.sweep()
        elif key.endswith(".blob"):
            left.append(0)
        return found

    monkeypatch.setattr(reader.wire, "get_range", get_range)
    assert reader.read_blob("job", sha256(data).digest()) == data


@pytest.mark.parametrize("at", ["create", "mark_read"])
def test_a_blob_that_comes_after_the_deletion_leaves_no_file(
    driven: Town, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Nobody would remove its file before the next start: the copy is deleted here while its blob is on the way."""
    owner, reader, data = driven.machine("owner"), driven.machine("reader"), bytes(range(256)) * 20
    owner.put(append())
    owner.write_blob("job", data)
    owner.ship_now()
    reader.state()
    files = reader.store.context.blob_files
    real = getattr(files, at)

    def delete_first(*arguments: Any) -> Any:
        monkeypatch.undo()
        delete_here(reader)
        reader.sweep()
        return real(*arguments)

    monkeypatch.setattr(files, at, delete_first)
    with pytest.raises(ThreadNotFound):
        reader.archive.fetch_blob(NAMESPACE, "job", sha256(data).digest())
    assert list(files.directory.iterdir()) == []
