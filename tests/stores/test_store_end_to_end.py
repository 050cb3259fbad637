"""The danger: the archive works in a directory and in S3, and a promise fails in the store of another cloud."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.bucket.gcs_front import Front
from tests.daemon.process import Fleet, eventually, write_steps

from stateward import Durability, errors
from stateward_sidecar.bucket.objectstore import ObjectStoreBucket

BLOB_BYTES = 20 << 20
# The store of one write a second gives each HEAD its second, so the lease must leave room for several.
FLAGS = {"archive_interval": "0.5", "archive_lease": "4"}

pytestmark = pytest.mark.slow


def test_a_thread_outlives_its_machine(
    kind: str, archive: str, machines_at: Callable[..., Fleet], request: pytest.FixtureRequest
) -> None:
    """ARCHIVED saves and a blob of 20 MB are on another machine after kill -9, the old owner is fenced, and a deletion
    with gc leaves nothing of the thread but the HEAD that says so. No upload goes in parts."""
    machines, store = machines_at(archive, **FLAGS), ObjectStoreBucket(archive, os.environ)
    first = machines.machine("first")
    old = machines.client(first, retry_timeout=0)
    before = {name for name, _ in store.list("")}
    write_steps(old, "job", 3, archived=True)
    content = os.urandom(BLOB_BYTES)
    state = old.thread("job").hydrate()
    state.slots["picture"] = content
    old.thread("job").save(state, durability=Durability.ARCHIVED)
    first.kill()

    second = machines.client(machines.machine("second"))
    taken = second.thread("job").hydrate()
    value = taken.slots["picture"]
    assert (value if isinstance(value, bytes) else value.read()) == content
    assert (taken.slots["count"], len(taken.logs["messages"])) == (3, 3)
    write_steps(second, "job", 2, archived=True)  # takes the thread once the lease is over

    first.start()
    back = machines.client(first, retry_timeout=0).thread("job")
    late = back.hydrate()
    late.slots["late"] = True
    with pytest.raises((errors.Fenced, errors.NotOwner)):
        back.save(late, durability=Durability.ARCHIVED)
    first.stop()

    assert [name for name, _ in store.list("") if name.endswith(".blob")]
    second.thread("job").delete()
    eventually(lambda: not [name for name, _ in store.list("") if name.endswith((".blob", ".pack"))])
    list(second.archive.collect(older_than=timedelta(0)))
    left = {name for name, _ in store.list("")} - before
    others = {name for name in left if "/_keys/n/" not in name and "/_keys/s/" not in name}
    assert {name.rpartition("/")[2] for name in others} == {"HEAD"}, left  # says: deleted
    if kind == "gcs":
        front: Front = request.getfixturevalue("gcs_front")
        assert front.uploads_in_parts == 0
