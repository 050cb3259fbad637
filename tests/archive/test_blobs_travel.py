"""The danger: a version reaches another machine before the blobs that it names, or blobs of a deleted thread stay in
the bucket."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.daemon.process import Fleet, eventually

from stateward import Durability, Status
from stateward.errors import Fenced, NotOwner
from stateward.models import Access


def test_a_large_value_is_read_on_another_machine(machines: Fleet) -> None:
    """A value above the threshold comes back whole, from a bucket object, after its machine is lost."""
    first = machines.machine("first")
    thread = machines.client(first).thread("job")
    content = os.urandom(3 << 20)
    state = thread.hydrate()
    state.slots["picture"] = content
    state.slots["note"] = "small"
    thread.save(state, durability=Durability.ARCHIVED)
    assert [key for key in machines.objects() if key.endswith(".blob")]
    first.kill()
    other = machines.client(machines.machine("other")).thread("job").hydrate()
    assert other.slots["note"] == "small"
    value = other.slots["picture"]
    assert (value if isinstance(value, bytes) else value.read()) == content


def test_a_thread_is_given_up_during_an_upload(machines: Fleet) -> None:
    """The daemon gives the thread up by itself, because its work waits. It takes the thread again for the blob that was
    being uploaded, and does not ask for all bytes once more."""
    client = machines.client(machines.machine("first"), retry_timeout=0)
    thread, content = client.thread("job"), os.urandom(3 << 20)
    thread.append("l", 1)

    def source() -> Iterator[bytes]:
        yield content[: 2 << 20]
        thread.append("l", 2, status=Status.WAITING, durability=Durability.ARCHIVED)
        eventually(lambda: thread.info().access is Access.REMOTE)
        yield content[2 << 20 :]

    blob = thread.blobs.write(source())
    assert thread.blobs.read(blob) == content


def test_a_thread_is_taken_during_an_upload(machines: Fleet) -> None:
    """Another machine takes the thread: the blob is refused, and leaves no file."""
    first = machines.machine("first")
    thread = machines.client(first, retry_timeout=0).thread("job")
    other = machines.client(machines.machine("other")).thread("job")
    thread.append("l", 1, durability=Durability.ARCHIVED)

    def source() -> Iterator[bytes]:
        yield bytes(2 << 20)
        other.archive.attach(take_over=True)
        other.append("l", 2, durability=Durability.ARCHIVED)
        with suppress(Fenced):
            thread.append("l", 3, durability=Durability.ARCHIVED)
        yield bytes(1 << 20)

    with pytest.raises((NotOwner, Fenced)):
        thread.blobs.write(source())
    assert not [path for path in (first.data_dir / "blobs").rglob("*") if path.is_file()]


def test_a_deleted_thread_leaves_no_blob(machines: Fleet) -> None:
    """The objects of its blobs go with it."""
    thread = machines.client(machines.machine("first")).thread("job")
    state = thread.hydrate()
    state.slots["picture"] = os.urandom(2 << 20)
    thread.save(state, durability=Durability.ARCHIVED)
    thread.delete()
    eventually(lambda: not [key for key in machines.objects() if key.endswith(".blob")])


def test_many_blobs_are_fetched_for_a_copy(machines: Fleet) -> None:
    """A thread with more blobs than a call makes attempts is copied on another machine, by one call."""
    first = machines.machine("first")
    thread = machines.client(first).thread("job")
    state = thread.hydrate()
    for number in range(8):
        state.slots[f"s{number}"] = thread.blobs.write(bytes([number]) * 1000)
    thread.save(state, durability=Durability.ARCHIVED)
    first.kill()
    other = machines.client(machines.machine("other"), retry_timeout=0)
    for whole in (False, True):
        copy = other.thread("job").fork(f"copy-{whole}", all_versions=whole)
        assert [copy.hydrate().slots[f"s{number}"].read() for number in range(8)] == [
            bytes([number]) * 1000 for number in range(8)
        ]
