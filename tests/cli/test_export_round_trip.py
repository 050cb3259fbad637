"""The danger: an export that is taken for a backup, and gives something else back."""

import gzip
import json
from datetime import timedelta
from pathlib import Path

import pytest
from tests.cli.conftest import make_run
from tests.cli.test_import_inexact import ODD

from stateward import MsgPack, RawValue, Retention, Text, ThreadOptions

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
FACTS = ("branch", "checkpoint_id", "status", "status_detail", "step", "schema_version", "labels", "metrics", "wait_id")


def contents(state):
    """Every byte of a state."""
    logs = {
        name: (log.first_index, [log.raw(position) for position in range(len(log))]) for name, log in state.logs.items()
    }
    return {name: state.slots.raw(name) for name in state.slots}, logs


def check_same(one, other):
    """Two threads are the same in every version, with parents, facts, tags and settings."""
    left, right = (sorted(each.checkpoints.list(page_size=1000), key=lambda at: at.version) for each in (one, other))
    number = {0: 0} | {a.version: b.version for a, b in zip(left, right, strict=True)}
    for a, b in zip(left, right, strict=True):
        assert [getattr(a, name) for name in FACTS] == [getattr(b, name) for name in FACTS]
        assert number.get(a.parent_version, b.parent_version) == b.parent_version
        assert a.metadata_value == b.metadata_value
        assert contents(one.hydrate(a.version)) == contents(other.hydrate(b.version)), a.version
    a, b = one.info(), other.info()
    assert {(tag.name, number[tag.version]) for tag in a.tags} == {(tag.name, tag.version) for tag in b.tags}
    assert {(each.name, number[each.version]) for each in a.branches} == {
        (each.name, each.version) for each in b.branches
    }
    assert a.options == b.options


@pytest.fixture
def rich(client):
    """A thread with everything a thread can have."""
    thread = client.thread("rich")
    state = thread.hydrate()
    state.slots["json"] = {"b": 1, "a": [1.0, True, None, "née \ud800"]}
    state.slots["loose"] = RawValue("application/json", b'{ "spaces" : 1.50 }')
    state.slots["broken"] = RawValue("application/json", b"{nope")
    state.slots["bytes"], state.slots["empty"], state.slots["text"] = b"\x00\xff", b"", Text("a\nb")
    state.slots["pack"], state.slots["odd"] = MsgPack({1: b"x"}), RawValue("x/y; z=1", b"\x80")
    state.slots["large"] = Text("0123456789" * 2000)
    state.logs["messages"].extend(ODD)
    state.logs["bin"].extend([b"\x01", Text("t")])
    options = ThreadOptions(
        labels={"team": "red"}, ttl=timedelta(days=9), retention=Retention(keep_last=99), parent_thread="p", agent="a"
    )
    thread.save(state, step=-3, checkpoint_id="first", metadata=b"\xff", create=options, schema_version=2)
    state.slots["large"] = Text("0123456789" * 1000 + "X" + "0123456789" * 1000)  # stored as a splice
    state.logs["messages"][1] = {"role": "user", "content": "rewritten"}
    state.logs["messages"].trim(before_index=1)
    del state.slots["odd"]
    thread.save(state, labels={"k": "v"}, metrics={"tokens": 1.5}, status="failed", status_detail="why")
    branch = thread.branch("try", at=1)
    other = branch.hydrate()
    del other.logs["bin"]
    branch.save(other, checkpoint_id="first", metadata={"x": 1})
    state.logs["messages"].trim(from_index=3)
    state.logs["messages"].append("new end")
    thread.save(state, status="waiting", wait_id="w")
    other.logs["bin"].append("again")
    branch.save(other)
    thread.save(state)  # changes nothing
    thread.tags.set("good", 2)
    thread.tags.set("best", 2)
    return thread


def test_every_version_comes_back(stateward, client, rich, tmp_path):
    """With --versions a thread comes back in every version, byte for byte, with all that belongs to it."""
    path = tmp_path / "all.jsonl.gz"
    answer = stateward("export", "rich", "--versions", "-o", path)
    assert (answer.code, answer.out) == (0, "")
    assert "holds 1 thread, 6 versions" in answer.error
    assert gzip.decompress(path.read_bytes()).count(b'"kind":"version"') == 6
    assert stateward("import", path, "--thread-prefix", "copy-").code == 0
    check_same(rich, client.thread("copy-rich"))


def test_pruned_thread(stateward, client, rich, tmp_path):
    """What is left of a pruned thread comes back under its numbers, with the indexes of its logs."""
    rich.prune(versions=[1, 3])
    rich.update(lambda state: state.logs["messages"].__setitem__(0, "changed"))
    path = tmp_path / "all.jsonl"
    assert stateward("export", "rich", "--versions", "-o", path).code == 0
    assert stateward("import", path, "--thread-prefix", "copy-").code == 0
    check_same(rich, client.thread("copy-rich"))


def test_restore_goes_on_where_it_was_cut_off(stateward, client, rich, tmp_path):
    """A restore again makes the threads that are missing, and leaves those alone that it made before."""
    client.thread("u").append("l", 1)
    whole, part = tmp_path / "all.jsonl", tmp_path / "part.jsonl"
    assert stateward("export", "rich", "u", "--versions", "-o", whole).code == 0
    part.write_text("".join(whole.read_text().splitlines(keepends=True)[:-3]))
    answer = stateward("import", part, "--thread-prefix", "copy-")
    assert (answer.code, "1 thread, 6 versions saved" in answer.out) == (1, True)
    assert "the end of thread 'u' is missing: the file is truncated" in answer.err
    answer = stateward("import", whole, "--thread-prefix", "copy-")
    assert "2 threads, 1 version saved; 6 versions were there already" in answer.out
    check_same(rich, client.thread("copy-rich"))
    check_same(client.thread("u"), client.thread("copy-u"))
    answer = stateward("import", whole, "--thread-prefix", "copy-", "--no-resume")
    assert answer.code == 1
    assert "already exists" in answer.err


def test_restore_never_writes_over_another_thread(stateward, client, rich, tmp_path):
    """A thread of the name that this export did not make is left alone, also the original."""
    path = tmp_path / "all.jsonl"
    assert stateward("export", "rich", "--versions", "-o", path).code == 0
    client.thread("x-rich").append("messages", "mine")
    for prefix in ("x-", ""):
        before = client.thread(f"{prefix}rich").info()
        answer = stateward("import", path, "--thread-prefix", prefix)
        assert answer.code == 1
        assert "was not restored from this export" in answer.err
        assert client.thread(f"{prefix}rich").info() == before
    assert stateward("import", path, "--thread-prefix", "z-").code == 0
    client.thread("z-rich").append("messages", "later")
    before = client.thread("z-rich").info()
    assert "6 versions were there already" in stateward("import", path, "--thread-prefix", "z-").out
    assert client.thread("z-rich").info() == before


def test_wrong_lines_cost_only_their_thread(stateward, client, rich, tmp_path):
    """A line that cannot be restored is named; the other threads of the file are there."""
    client.thread("u").append("l", 1)
    path = tmp_path / "all.jsonl"
    assert stateward("export", "--all", "--versions", "-o", path).code == 0
    lines = path.read_text().splitlines()
    record = json.loads(lines[2])
    record["edits"].insert(0, {"jump": 1})
    lines[2] = json.dumps(record)
    path.write_text("\n".join([*lines[:8], "{}", '{"stateward_version": 9, "thread": "n"}', *lines[8:]]))
    answer = stateward("import", path, "--thread-prefix", "c-")
    assert answer.code == 1
    told_of_line_3 = "line 3: thread 'rich': this is not a record"
    for told in (told_of_line_3, "jump", "line 9 is not a record of an export", "line 10 has format 9"):
        assert told in answer.err
    assert {info.name for info in client.threads()} == {"rich", "u", "c-u"}
    assert client.thread("c-u").info().version == 1


def test_runs_come_back(stateward, client, write, tmp_path):
    """An imported run is exported as it was: imported again it gives the same states, version by version."""
    lists = [["task"], ["task", {"out": "long"}], ["task", {"out": "short"}, True], ["task", 1.0], [], ["task", "on"]]
    states = [{"step": 10 * at, "messages": messages} for at, messages in enumerate(lists)]
    states[2]["note"] = "kept"
    odd = {"run_id": "odd", "source": "s", "meta": {"n": [1]}, "messages": ODD}
    runs = [odd, {"run_id": "states", "states": states}, make_run("long", 30)]
    assert stateward("import", write("runs.jsonl", *runs)).code == 0
    path = tmp_path / "out.jsonl.gz"
    assert stateward("export", "--prefix", "runs/", "-o", path).code == 0
    exported = {each["run_id"]: each for each in map(json.loads, gzip.decompress(path.read_bytes()).splitlines())}
    assert exported == {each["run_id"]: each for each in runs}
    assert list(map(repr, exported["odd"]["messages"])) == list(map(repr, ODD))
    assert stateward("import", path).code == 0
    for run_id in exported:
        one, other = client.thread(f"runs/{run_id}"), client.thread(f"out/{run_id}")
        versions = range(1, one.info().version + 1)
        assert one.info().version == other.info().version
        for version in versions:
            a, b = one.hydrate(version), other.hydrate(version)
            (slots, logs), (other_slots, other_logs) = contents(a), contents(b)
            assert (slots["run"], logs) == (other_slots["run"], other_logs)
            assert (a.checkpoint.step, a.checkpoint.metadata) == (b.checkpoint.step, b.checkpoint.metadata)


def test_projections_are_left_out(stateward, client):
    """What `thread.replay` keeps beside a run can be folded again, and does not make it something else than a run."""
    run, thread = make_run("one", 3), client.thread("one")
    for step, message in enumerate(run["messages"], 1):
        thread.append("messages", message, step=step)
    assert thread.log("messages").replay(lambda count, _: count + 1, 0, projection="count") == 3
    assert len(thread.info().branches) == 2
    assert json.loads(stateward("export", "one").out) == run


@pytest.mark.skipif(not DATA.is_dir(), reason="the recorded runs are not beside this repository")
@pytest.mark.parametrize("name", ["swe-agent-step-states", "swe-agent"])
def test_recorded_runs_come_back(stateward, client, name, tmp_path):
    """Recorded runs, once through the store in either form, are what they were."""
    source = DATA / f"{name}.jsonl.gz"
    assert stateward("import", source).code == 0
    runs, versions = tmp_path / "runs.jsonl", tmp_path / "versions.jsonl.gz"
    assert stateward("export", "--all", "-o", runs).code == 0
    assert stateward("export", "--all", "--versions", "-o", versions).code == 0
    recorded = [json.loads(line) for line in gzip.decompress(source.read_bytes()).splitlines()]
    exported = [json.loads(line) for line in runs.read_text().splitlines()]
    key = lambda run: run["run_id"]  # noqa: E731
    assert sorted(exported, key=key) == sorted(recorded, key=key)
    names = [info.name for info in client.threads()]
    assert stateward("import", versions, "--thread-prefix", "copy-").code == 0
    for each in names:
        check_same(client.thread(each), client.thread(f"copy-{each}"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda state: state.slots.update(plan=1), "slot plan"),
        (lambda state: state.logs["events"].append(1), "log events"),
        (lambda state: state.logs["messages"].append(b"\xff"), "not all of its messages are JSON"),
        (lambda state: state.logs["messages"].trim(before_index=1), "trimmed at the start"),
        (lambda state: state.slots.update(run=7), "slot run"),
    ],
)
def test_what_a_run_cannot_say_is_refused(stateward, client, write, tmp_path, change, told):
    """A thread that is more than a run is not cut down without a word; the error names the ways out."""
    stateward("import", write("runs.jsonl", make_run("r", 3)))
    client.thread("runs/r").update(change, step=4)
    path = tmp_path / "out.jsonl"
    answer = stateward("export", "runs/r", "-o", path)
    assert answer.code == 1
    assert told in answer.error
    assert "--versions" in answer.error
    assert list(tmp_path.iterdir()) == [tmp_path / "runs.jsonl"]
    assert stateward("export", "runs/r", "--versions", "-o", path).code == 0


def test_messages_only(stateward, client, rich, tmp_path):
    """--messages-only takes the newest messages of any thread."""
    found = stateward("export", "rich", "--messages-only").json
    assert found == {"run_id": "rich", "messages": list(rich.hydrate().logs["messages"])}


def test_no_half_file(stateward, client, tmp_path, monkeypatch):
    """An export that fails leaves the file of before as it was, and nothing beside it."""
    client.thread("t").append("l", 1)
    client.thread("u").append("l", 1)
    path = tmp_path / "out.jsonl"
    path.write_text("before")
    import stateward.cli.commands.export as module

    read = module._backup_lines

    def fail_at_the_second(client, name):
        if name == "u":
            raise OSError(28, "No space left on device")
        yield from read(client, name)

    monkeypatch.setattr(module, "_backup_lines", fail_at_the_second)
    answer = stateward("export", "--all", "--versions", "-o", path)
    assert answer.code == 1
    assert answer.error == f"cannot write {path}: No space left on device"
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    for wrong in (tmp_path, tmp_path / "missing" / "out.jsonl"):
        answer = stateward("export", "t", "-o", wrong)
        assert answer.code == 1
        assert str(wrong) in answer.error
