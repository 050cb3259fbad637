"""Large values on another machine: there before any version that names them, and fetched when they are read."""

from __future__ import annotations

import os

from tests.archive.rig import Fleet

from stateward import Durability


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


def test_a_deleted_thread_leaves_no_blob(machines: Fleet) -> None:
    """The objects of its blobs go with it."""
    thread = machines.client(machines.machine("first")).thread("job")
    state = thread.hydrate()
    state.slots["picture"] = os.urandom(2 << 20)
    thread.save(state, durability=Durability.ARCHIVED)
    thread.delete()
    from tests.archive.rig import eventually

    eventually(lambda: not [key for key in machines.objects() if key.endswith(".blob")])


def test_many_blobs_are_fetched_for_a_copy(machines: Fleet) -> None:
    """A thread with more blobs than a call makes attempts is copied on another machine, by one call."""
    first = machines.machine("first")
    thread = machines.client(first).thread("job")
    state = thread.hydrate()
    for number in range(8):
        state.slots[f"s{number}"] = thread.write_blob(bytes([number]) * 1000)
    thread.save(state, durability=Durability.ARCHIVED)
    first.kill()
    other = machines.client(machines.machine("other"), retry_timeout=0)
    for whole in (False, True):
        copy = other.thread("job").fork(f"copy-{whole}", whole=whole)
        assert [copy.hydrate().slots[f"s{number}"].read() for number in range(8)] == [
            bytes([number]) * 1000 for number in range(8)
        ]
