"""The danger: a list, history, fork, tag or deletion made through the client gives less, or something else, than was
asked for."""

from datetime import timedelta

import pytest

from stateward.changes import Append
from stateward.errors import ThreadExists, ThreadNotFound, VersionNotFound
from stateward.options import Retention, ThreadOptions


@pytest.fixture
def line(client):
    """A thread with three versions."""
    thread = client.thread("line")
    state = thread.hydrate()
    for number in range(3):
        state.logs["l"].append(number)
        state.slots["n"] = number
        thread.save(state, labels={"parity": "even" if number % 2 == 0 else "odd"})
    return thread


def test_history(line):
    """The first of a line comes with its state, the others with their changes, in both directions."""
    first, *later = list(line.history())
    assert (first.checkpoint.version, first.state.slots["n"], list(first.state.logs["l"])) == (1, 0, [0])
    assert [each.checkpoint.version for each in later] == [2, 3]
    assert all(each.state is None for each in later)
    assert [c.entries for each in later for c in each.changes if isinstance(c, Append)] == [(1,), (2,)]
    back = list(line.history(newest_first=True, oldest=2))
    assert [each.checkpoint.version for each in back] == [3, 2]
    assert back[0].state.slots["n"] == 2


def test_lists(client, line):
    """Lists are read page by page."""
    assert [each.version for each in line.checkpoints.list(page_size=2)] == [3, 2, 1]
    assert [each.version for each in line.checkpoints.list(labels={"parity": "odd"})] == [2]
    for number in range(5):
        client.thread(f"other-{number}").append("l", 1, status="failed")
    assert len(list(client.threads(page_size=2))) == 6
    assert [each.name for each in client.threads(name_prefix="line")] == ["line"]
    assert len(list(client.threads(statuses=["failed"]))) == 5
    assert {each.version for each in client.checkpoints(labels={"parity": "even"})} == {1, 3}


def test_fork_tag_prune_delete(client, line):
    """A fork is a thread of its own; tags hold versions; deletion is asked for twice only with missing_ok."""
    copy = line.fork("copy", at=2)
    assert (copy.hydrate().slots["n"], copy.hydrate().version) == (1, 1)
    with pytest.raises(ThreadExists):
        line.fork("copy")
    assert line.fork("all", all_versions=True).hydrate().version == 3
    line.tags.set("keep", 1)
    assert line.prune(versions=[2], dry_run=True).pruned_versions == (2,)
    assert line.prune(versions=[2]).pruned_versions == (2,)
    with pytest.raises(TypeError):
        line.prune()
    assert line.tags.delete("keep").version == 1
    with pytest.raises(VersionNotFound):
        line.tags.delete("keep")
    assert line.delete() is True
    assert line.delete(missing_ok=True) is False
    with pytest.raises(ThreadNotFound):
        line.delete()
    assert copy.hydrate().slots["n"] == 1


def test_update_options(line):
    """What is given is changed, None clears, the rest stays."""
    line.update_options(labels={"a": "b"}, ttl=timedelta(days=1), retention=Retention(keep_last=5))
    info = line.update_options(ttl=None, agent="me")
    wanted = ThreadOptions(labels={"a": "b"}, retention=Retention(keep_last=5), agent="me")
    assert info.options == wanted


def test_watch(client, line):
    """A watch of a thread tells what happens after it began, and after a sequence what happened before."""
    with line.watch(include_diff=True) as events:
        line.append("l", "new")
        line.tags.set("t", 4)
        first, second = next(events), next(events)
    assert (first.kind, first.checkpoint.version, second.kind, second.what.name) == ("checkpoint", 4, "tag_set", "t")
    with line.watch(after_sequence=1) as events:
        assert [next(events).sequence for _ in range(4)] == [2, 3, 4, 5]
    with line.watch(after_cursor=first.cursor) as events:
        assert next(events).kind == "tag_set"
    with client.watch() as events:
        client.thread("elsewhere").append("l", 1)
        assert next(events).thread == "elsewhere"


def test_server(client, line):
    """The daemon tells about itself and verifies."""
    assert client.server_info().default_durability == 1
    assert client.stats().threads >= 1
    assert list(client.verify())


def test_arguments_of_a_wrong_type_are_named(line):
    """A save of anything but a State, and a version that is no number, say what they take instead."""
    with pytest.raises(TypeError, match=r"a save takes the State that hydrate returned, not \{'a': 1\}"):
        line.save({"a": 1})
    with pytest.raises(TypeError, match=r"at takes a version, a Checkpoint, the name of a tag or a .*, not 2\.5"):
        line.hydrate(at=2.5)
    assert line.hydrate().version == 3
