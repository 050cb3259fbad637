"""The danger: a program that reads or folds the log of an older one without what its migrations would have done."""

import pytest

from stateward import Migrations, NoMigrationPath
from stateward.errors import SchemaMismatch, VersionNotFound


@pytest.fixture(scope="module")
def daemon(real_daemon):
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return real_daemon


@pytest.fixture
def client(daemon, open_client, name):
    return open_client(daemon.target, namespace=name)


def in_objects():
    """The new program: events are objects."""
    migrations = Migrations(current=2)

    @migrations.step(1, 2)
    def wrap(state):
        state.logs["events"] = [{"text": event} for event in state.logs["events"]]

    return migrations


@pytest.fixture
def old(client):
    """A thread with events of the old shape, without migrations."""
    thread = client.thread("t")
    thread.append("events", "a", "c", schema_version=1)
    return thread


@pytest.fixture
def new(client, old):
    return client.thread("t", migrations=in_objects())


def count(total, event):
    return total + len(event["text"])


def test_a_log_is_read_in_the_new_shape(new):
    """The head is migrated before its first page is read."""
    assert [entry.value for entry in new.log("events").read()] == [{"text": "a"}, {"text": "c"}]
    assert new.checkpoints.get().schema_version == 2
    assert [entry.value for entry in new.log("events").read(1)] == [{"text": "c"}]
    assert list(new.branch("none").log("events").read()) == []


def test_a_log_is_followed_in_the_new_shape(new, old):
    """As it is read; and what a newer program migrates meanwhile is not told in a shape that nobody here knows."""
    follower = iter(new.log("events").follow())
    assert [next(follower).value for _ in range(2)] == [{"text": "a"}, {"text": "c"}]
    newer = Migrations(current=3)
    newer.step(2, 3)(lambda state: state.logs["events"].trim(keep_last=0) or state.logs["events"].append("newer"))
    state = old.hydrate()
    newer._apply("t", state, 2)
    old.save(state, schema_version=3)
    with pytest.raises(NoMigrationPath, match="from 3 to 2"):
        next(follower)


@pytest.mark.parametrize("projection", [None, "count"])
def test_a_log_is_folded_in_the_new_shape(new, old, projection):
    """A replay sees migrated events, also where an old program kept a fold of the old ones."""
    assert old.log("events").replay(lambda total, event: total + len(event), 0, projection=projection) == 2
    assert new.log("events").replay(count, 0, projection=projection) == 2
    new.append("events", {"text": "more"})
    assert new.log("events").replay(count, 0, projection=projection) == 6


def test_an_old_version_is_refused(new, old):
    """Entries of a named version cannot be migrated without the rest of its state; the error names both schemas."""
    with pytest.raises(SchemaMismatch, match=r"version 1 has schema 1, .* wanted in 2: .* hydrate") as caught:
        list(new.log("events").read(version=1))
    assert (caught.value.schema, caught.value.metadata["asked"]) == (1, "2")
    assert old.info().version == 1, "reading a version migrated the head"
    with pytest.raises(SchemaMismatch, match="version 1"):
        list(new.branch("new", at=1).log("events").read())
    assert [entry.value for entry in old.log("events").read(version=1)] == ["a", "c"]
    new.migrate()
    assert [entry.value for entry in new.log("events").read(version=2)] == [{"text": "a"}, {"text": "c"}]
    with pytest.raises(VersionNotFound):
        list(new.log("events").read(version=9))
