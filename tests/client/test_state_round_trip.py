"""The danger: an edit of a state is not in the save, or a save sends the whole state for one more entry."""

import pytest

from stateward import CheckpointId, RawValue, State, Text, values
from stateward.changes import Append
from stateward.errors import ThreadNotFound, VersionMismatch, VersionNotFound
from stateward.models import Status
from stateward.options import ThreadOptions


def test_unknown_thread_is_empty(client):
    """A thread that does not exist is the empty state at version 0, unless it must exist."""
    state = client.thread("new").hydrate()
    assert (state.version, state.checkpoint, dict(state.slots), dict(state.logs)) == (0, None, {}, {})
    with pytest.raises(ThreadNotFound):
        client.thread("new").hydrate(must_exist=True)


def test_save_and_hydrate(client):
    """What was saved is what is hydrated, with everything said about the version."""
    thread = client.thread("booking")
    state = thread.hydrate()
    state.slots["goal"] = {"city": "Paris", "n": 2**70, "odd": "\ud800", "f": 0.1}
    state.slots["raw"], state.slots["text"] = b"\x00\xff", Text("hello")
    state.slots["own"] = RawValue("image/x", b"abc")
    state.logs["messages"].extend([{"role": "user"}, {"role": "agent"}])
    checkpoint = thread.save(
        state, step=-1, status="waiting", labels={"run": "7"}, metadata={"a": [1]}, metrics={"cost": 0.5},
        attributes={"n": -1, "x": 1.0, "yes": True, "no": False, "text": "é", "empty": ""},
    )  # fmt: skip
    assert (checkpoint.version, state.version, state.digest) == (1, 1, checkpoint.digest)
    assert checkpoint == thread.checkpoints.get()
    found = thread.hydrate()
    assert found.slots == state.slots
    assert found.slots["raw"] == b"\x00\xff"
    assert type(found.slots["text"]) is Text
    assert list(found.logs["messages"]) == [{"role": "user"}, {"role": "agent"}]
    read = thread.checkpoints.get()
    assert (read.step, read.status, read.labels, read.metadata) == (-1, Status.WAITING, {"run": "7"}, {"a": [1]})
    assert (read.metrics, read.digest, read.uid) == ({"cost": 0.5}, checkpoint.digest, checkpoint.uid)
    assert repr(sorted(read.attributes.items())) == (
        "[('empty', ''), ('n', -1), ('no', False), ('text', 'é'), ('x', 1.0), ('yes', True)]"
    )
    assert [each.version for each in thread.checkpoints.list(where={"n": -1.0, "x": 1, "yes": True})] == [1]
    assert [each.version for each in thread.checkpoints.list(where=[("n", "<", 0), ("text", "!=", "x")])] == [1]
    for other in ({"n": -2}, {"x": 2}, {"yes": 1}, {"no": ""}, {"none": ""}, {"n": -1, "text": "e"}):
        assert list(thread.checkpoints.list(where=other)) == []


def test_values_that_are_no_attributes(client):
    """Are refused before anything is sent, and the error names the attribute."""
    thread = client.thread("t")
    for value in (None, b"x", ["a"], {"a": 1}):
        with pytest.raises(TypeError, match="'k'"):
            thread.append("log", 1, attributes={"k": value})
    for value in (1 << 63, float("nan")):
        with pytest.raises(ValueError, match="'k'"):
            thread.append("log", 1, attributes={"k": value})
    with pytest.raises(TypeError, match="dict"):
        thread.append("log", 1, attributes=["k"])
    assert thread.hydrate().version == 0


def test_edits_in_place_are_kept(client):
    """Values handed out and changed in place are found at the save."""
    thread = client.thread("t")
    state = thread.hydrate()
    state.slots["plan"] = {"x": 0, "deep": [{"y": 0}]}
    state.logs["messages"].extend([{"content": "a"}, {"content": "b"}, {"content": "c"}])
    thread.save(state)
    state = thread.hydrate()
    state.slots["plan"]["deep"][0]["y"] = 1
    state.logs["messages"][1]["content"] = "elided"
    state.logs["messages"][-1] = "replaced"
    thread.save(state)
    found = thread.hydrate()
    assert found.slots["plan"] == {"x": 0, "deep": [{"y": 1}]}
    assert list(found.logs["messages"]) == [{"content": "a"}, {"content": "elided"}, "replaced"]


def test_a_save_ends_the_watch_over_objects(client):
    """What was appended, set or read is saved as it is at the save; afterwards only what is read again counts."""
    thread = client.thread("t")
    state = thread.hydrate()
    call, plan = {"status": "new"}, {"steps": []}
    state.logs["calls"].append(call)
    state.slots["plan"] = plan
    call["status"] = "started"
    plan["steps"].append("first")
    thread.save(state)
    call["status"] = "mine"
    plan["steps"].append("mine")
    assert (state.logs["calls"][0], state.slots["plan"]) == ({"status": "started"}, {"steps": ["first"]})
    state.logs["calls"][0]["status"] = "done"
    state.slots["plan"]["steps"].append("second")
    read = state.logs["calls"][0]
    thread.save(state)
    read["status"] = "mine too"
    thread.save(state)
    found = thread.hydrate()
    assert found.logs["calls"] == state.logs["calls"] == [{"status": "done"}]
    assert found.slots["plan"] == {"steps": ["first", "second"]}


def test_a_save_costs_what_changed(fake_client, monkeypatch):
    """However long a log is and whatever was read of it before, a save of one more entry encodes one entry."""
    thread = fake_client.thread("t")
    state = thread.hydrate()
    state.logs["l"].extend({"n": n} for n in range(500))
    thread.save(state)
    assert sum(entry["n"] for entry in state.logs["l"]) == 124750
    thread.save(state)
    encoded, encode = [], values.encode
    monkeypatch.setattr(values, "encode", lambda value, path: encoded.append(path) or encode(value, path))
    for n in range(500, 503):
        state.logs["l"].append({"n": n})
        thread.save(state)
    assert encoded == [f"logs.l[{n}]" for n in range(500, 503)]


def test_a_failed_save_keeps_watching(client):
    """Edits in place made before a save that failed, and after it, are in the next one."""
    thread = client.thread("t")
    state = thread.hydrate()
    state.logs["l"].append({"n": 0})
    thread.save(state)
    entry, added = state.logs["l"][0], {"m": 0}
    state.logs["l"].append(added)
    entry["n"] = 1
    state.slots["bad"] = {1, 2}
    with pytest.raises(TypeError, match=r"slots\.bad"):
        thread.save(state)
    del state.slots["bad"]
    entry["n"] = added["m"] = 2
    thread.save(state)
    assert thread.hydrate().logs["l"] == [{"n": 2}, {"m": 2}]


def test_log_edits(client):
    """Trims, pops, replacements and appends of one save arrive together; indexes stay with their entries."""
    thread = client.thread("t")
    state = thread.hydrate()
    log = state.logs["l"]
    log.extend(range(10))
    thread.save(state)
    log.trim(before_index=3)
    assert (log.first_index, log.next_index, log.at(4), log[0]) == (3, 10, 4, 3)
    assert [log.pop(), log.pop()] == [9, 8]
    log[1] = "four"
    log.append("new")
    thread.save(state)
    found = thread.hydrate().logs["l"]
    assert list(found) == list(log) == [3, "four", 5, 6, 7, "new"]
    assert (found.first_index, found.at(8)) == (3, "new")
    log.trim(from_index=5)
    log.extend(list("abcdef"))
    log.trim(keep_last=2)
    thread.save(state)
    found = thread.hydrate().logs["l"]
    assert (list(found), found.first_index) == (list(log), log.first_index) == (["e", "f"], 5)
    log.clear()
    thread.save(state)
    assert len(thread.hydrate().logs["l"]) == 0
    assert thread.hydrate().logs["l"].first_index == 7


def test_deleted_log_continues_its_indexes(client):
    """A log made after a deletion can be edited by index: a state has the indexes with which deleted logs go on."""
    thread = client.thread("t")
    state = thread.hydrate()
    state.logs["l"].extend(list("abc"))
    thread.save(state)
    del state.logs["l"]
    assert "l" not in state.logs
    thread.save(state)
    state = thread.hydrate()
    assert "l" not in state.logs
    assert state.logs["l"].next_index == 3
    state.logs["l"].extend(list("xyz"))
    thread.save(state)
    state.logs["l"][1] = "Y"
    thread.save(state)
    found = thread.hydrate().logs["l"]
    assert (list(found), found.first_index) == (["x", "Y", "z"], 3)


def test_slots_are_deleted_only_on_purpose(client):
    """A projected state shows what was asked for, and its save leaves the rest alone."""
    thread = client.thread("t")
    state = thread.hydrate()
    state.slots.update(a=1, b=2, c=3)
    state.logs["l"].extend(range(20))
    state.logs["other"].append("kept")
    thread.save(state)
    part = thread.hydrate(slots=["a", "missing"], logs={"l": 3})
    assert part.partial
    assert (dict(part.slots), list(part.logs["l"]), part.logs["l"].first_index) == ({"a": 1}, [17, 18, 19], 17)
    del part.slots["a"]
    part.logs["l"][0] = "seventeen"
    part.logs["l"].append(20)
    part.logs["other"].append("too")
    with pytest.raises(ValueError, match="left out"):
        part.logs["other"][0]
    thread.save(part)
    found = thread.hydrate()
    assert dict(found.slots) == {"b": 2, "c": 3}
    assert list(found.logs["l"]) == [*range(17), "seventeen", 18, 19, 20]
    assert list(found.logs["other"]) == ["kept", "too"]
    part = thread.hydrate(logs={"l": 2})
    part.logs["l"].trim(keep_last=5)
    thread.save(part)
    assert list(thread.hydrate().logs["l"]) == ["seventeen", 18, 19, 20][-5:] or len(thread.hydrate().logs["l"]) == 5


def test_mismatch_leaves_the_state(client):
    """The loser of two saves keeps its changes and can say what is wrong."""
    thread = client.thread("t")
    mine, theirs = thread.hydrate(), thread.hydrate()
    theirs.slots["who"] = "they"
    thread.save(theirs)
    mine.slots["who"] = "me"
    with pytest.raises(VersionMismatch) as caught:
        thread.save(mine)
    assert (caught.value.current_version, caught.value.expected_version) == (1, 0)
    assert caught.value.current_digest == theirs.digest
    assert (mine.version, dict(mine.slots)) == (0, {"who": "me"})
    thread.save(mine, overwrite=True)
    assert thread.hydrate().slots["who"] == "me"


def test_update_rebases(client):
    """`update` runs its function again on the newer state when somebody saves in between."""
    thread, calls = client.thread("t"), []

    def add(state):
        calls.append(state.version)
        if len(calls) == 1:
            thread_of_another.append("l", "theirs")
        state.logs["l"].append("mine")

    thread_of_another = client.thread("t")
    if hasattr(client, "_runner"):  # a blocking call inside the loop's own thread is impossible

        async def add(state):
            calls.append(state.version)
            if len(calls) == 1:
                await thread_of_another._inner.append("l", "theirs")
            state.logs["l"].append("mine")

    checkpoint = thread.update(add, step=3)
    assert (checkpoint.version, checkpoint.step, calls) == (2, 3, [0, 1])
    assert list(thread.hydrate().logs["l"]) == ["theirs", "mine"]


def test_branch_from_an_old_version(client):
    """An old version is saved to a branch of its own; on its own branch the error names the call to make."""
    thread = client.thread("t")
    state = thread.hydrate()
    for number in range(3):
        state.slots["n"] = number
        thread.save(state)
    old = thread.hydrate(at=2)
    old.slots["n"] = "other"
    with pytest.raises(VersionMismatch, match=r'thread\.branch\("name", at=2\)'):
        thread.save(old)
    retry = thread.branch("retry", at=2)
    assert retry.hydrate().slots["n"] == 1
    checkpoint = retry.save(old)
    assert (checkpoint.parent_version, checkpoint.branch, old.version) == (2, "retry", 4)
    assert retry.hydrate().slots["n"] == "other"
    again = retry.hydrate()
    again.slots["n"] = "more"
    retry.save(again)
    with pytest.raises(ValueError, match="branch 'retry'"):
        thread.save(again)
    assert thread.hydrate().slots["n"] == 2
    with pytest.raises(VersionMismatch):
        retry.save(thread.hydrate(at=2))
    assert client.thread("t", branch="nowhere").hydrate().version == 0


def test_large_slots_travel_as_splices(client):
    """A small change of a large slot takes few bytes, and a large one is sent whole."""
    thread = client.thread("t")
    state = thread.hydrate()
    state.slots["doc"] = {"text": "lorem ipsum " * 1000, "n": 1, "tail": "dolor " * 1000}
    thread.save(state)
    state = thread.hydrate()
    state.slots["doc"]["n"] = 22
    assert thread.save(state).edit_bytes < 200
    state.slots["doc"] = {"text": "x" * 20000}
    assert thread.save(state).edit_bytes > 10000
    assert thread.hydrate().slots["doc"] == {"text": "x" * 20000}


def test_untouched_state_sends_nothing(client):
    """Reading everything without changing it makes an empty diff."""
    thread = client.thread("t")
    state = thread.hydrate()
    state.slots["bytes"] = RawValue("application/json", b'{ "spaced" :  [1, 2.50e1] , "esc": "\\u00e9" }')
    state.logs["l"].append({"a": [1, {"b": None}]})
    thread.save(state)
    state = thread.hydrate()
    assert (state.slots["bytes"]["esc"], state.logs["l"][0]["a"][0]) == ("é", 1)
    assert thread.save(state).edit_bytes == 0


def test_other_references(client):
    """Versions are found by number, tag and checkpoint id."""
    thread = client.thread("t")
    state = thread.hydrate()
    state.slots["n"] = 1
    thread.save(state, checkpoint_id="first", create=ThreadOptions(labels={"team": "a"}, agent="x"))
    state.slots["n"] = 2
    thread.save(state)
    assert thread.tags.set("good", 1).version == 1
    for at in (1, thread.checkpoints.get(1), "good", CheckpointId("first")):
        assert thread.hydrate(at=at).slots["n"] == 1
        assert thread.checkpoints.get(at).version == 1
    with pytest.raises(VersionNotFound):
        thread.hydrate(at="bad")
    info = thread.info()
    assert (info.labels, info.options.agent, [tag.name for tag in info.tags]) == ({"team": "a"}, "x", ["good"])


def test_save_all_branches(client):
    """Branches of one thread are saved together, or none is."""
    main, side = client.thread("t"), client.thread("t").branch("side")
    x, y = State(), State()
    x.slots["n"], y.slots["n"] = 1, 2
    assert [(each.version, each.branch) for each in client.save_all([main.prepare(x), side.prepare(y)])] == [
        (1, "main"), (2, "side"),
    ]  # fmt: skip
    side.append("l", "theirs")
    x.slots["n"] = y.slots["n"] = 9
    with pytest.raises(VersionMismatch):
        client.save_all([main.prepare(x), side.prepare(y)])
    assert [each.hydrate().slots["n"] for each in (main, side)] == [1, 2]


def test_ids_across_branches(client):
    """A handle finds its own ids, and with `any_branch` those of all branches; a version tells its parent's id."""
    main, side = client.thread("t"), client.thread("t").branch("side", at=1)
    main.append("l", 1, checkpoint_id="one")
    state = side.hydrate()
    state.logs["l"].append(2)
    assert side.save(state, checkpoint_id="two").parent_checkpoint_id == "one"
    with pytest.raises(VersionNotFound):
        main.hydrate(at=CheckpointId("two"))
    found = main.hydrate(at=CheckpointId("two", any_branch=True))
    assert (found.version, list(found.logs["l"])) == (2, [1, 2])
    assert main.checkpoints.get(at=CheckpointId("two", any_branch=True)).parent_checkpoint_id == "one"
    with pytest.raises(TypeError, match="any_branch"):
        main.hydrate(1, any_branch=True)


def test_append_needs_no_state(client):
    """Appends go on top of whatever is the head."""
    thread = client.thread("t")
    assert thread.append("l", 1, 2).version == 1
    assert thread.append("l", 3, step=4).step == 4
    assert list(thread.hydrate().logs["l"]) == [1, 2, 3]
    assert thread.diff(1) == [Append("l", (3,), thread.diff(1)[0].at_index)]


def test_save_all(client):
    """Several threads are saved together, or none is."""
    a, b = client.thread("a"), client.thread("b")
    x, y = a.hydrate(), b.hydrate()
    x.slots["n"], y.slots["n"] = 1, 2
    assert [each.version for each in client.save_all([a.prepare(x, step=1), b.prepare(y)])] == [1, 1]
    assert (x.version, y.version) == (1, 1)
    b.append("l", "theirs")
    x.slots["n"] = y.slots["n"] = 9
    with pytest.raises(VersionMismatch):
        client.save_all([a.prepare(x), b.prepare(y)])
    assert (a.hydrate().slots["n"], x.version) == (1, 1)
    a.save(x)
