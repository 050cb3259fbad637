"""The danger: a recorded run that comes out of the store other than it went in."""

import gzip
import json

from tests.cli.conftest import make_run

from stateward import Status

ODD = [
    {"role": "user", "content": "née\u2028 \U0001f600 \x00\x1b[31m"},
    {"role": "user", "content": "a lone surrogate \ud83d"},
    {"role": "tool", "content": {"big": 2**200, "small": -1e-300, "exact": 0.1, "one": 1, "float": 1.0, "yes": True}},
    {"role": "", "": None, "content": []},
    "a bare string",
    None,
    [[], {}, 0],
]


def test_every_version_is_the_recorded_prefix(stateward, client, write):
    """Version k holds exactly the first k messages, whatever JSON can say is in them, and the last is completed."""
    run = {"run_id": "odd", "source": "s/x", "model": "m", "reward": 0.5, "meta": {"n": [1]}, "messages": ODD}
    assert stateward("import", write("runs.jsonl", run)).code == 0
    thread = client.thread("runs/odd")
    for version in range(1, len(ODD) + 1):
        state = thread.hydrate(version)
        assert list(map(repr, state.logs["messages"])) == list(map(repr, ODD[:version]))
        assert state.slots["run"] == {key: value for key, value in run.items() if key != "messages"}
        assert state.checkpoint.step == version
        assert state.checkpoint.status == (Status.COMPLETED if version == len(ODD) else Status.RUNNING)
    assert thread.info().version == len(ODD)
    assert thread.info().labels == {"source": "s/x", "model": "m"}


def test_rewritten_messages(stateward, client, write):
    """Where states are recorded, each version holds its list: also after older messages were changed or cut."""
    lists = [
        ["task"],
        ["task", {"out": "long output"}, "a"],
        ["task", {"out": "elided"}, "a", 1],
        ["task", {"out": "elided"}, "a", True],
        ["task", 1.0],
        [],
        ["task", "again", "and", "on"],
    ]
    states = [{"step": 10 * at, "messages": messages} for at, messages in enumerate(lists)]
    states[2]["note"] = "kept"
    assert stateward("import", write("runs.jsonl", {"run_id": "r", "states": states})).code == 0
    thread = client.thread("runs/r")
    for version, messages in enumerate(lists, 1):
        state = thread.hydrate(version)
        assert list(map(repr, state.logs["messages"])) == list(map(repr, messages))
        assert state.checkpoint.step == 10 * (version - 1)
        assert state.checkpoint.metadata == ({"note": "kept"} if version == 3 else None)
    changed = [type(each).__name__ for each in thread.diff(2, 3)]
    assert sorted(changed) == ["Append", "ReplaceEntry"]


def test_gzip_is_known_by_content(stateward, client, write, tmp_path):
    """A packed file without ending and a plain one called .gz are both read."""
    packed = tmp_path / "packed.jsonl"
    packed.write_bytes(gzip.compress(json.dumps(make_run("r", 2)).encode()))
    plain = write("plain.jsonl.gz", make_run("r", 3))
    assert stateward("import", packed, plain).code == 0
    assert [client.thread(name).info().version for name in ("packed/r", "plain/r")] == [2, 3]


def test_runs_of_one_name_stay_apart(stateward, client, write):
    """Repeated, missing and impossible run_ids make distinct threads, and the same ones when imported again."""
    names = ["same", "same", "same#2", None, "", "a\nb", "a\tb", "x" * 3000, "\ud800", 7]
    runs = [{**make_run("r", at + 1), "run_id": name} for at, name in enumerate(names)]
    del runs[3]["run_id"]
    path = write("runs.jsonl", *runs)
    answer = stateward("import", path)
    assert (answer.code, answer.err) == (0, "")
    found = {info.name: info.version for info in client.threads()}
    assert sorted(found.values()) == list(range(1, len(runs) + 1))
    assert {"runs/same", "runs/same#2", "runs/line-4", "runs/line-5", "runs/7"} <= found.keys()
    assert f"{len(runs)}, {len(runs)} were there already" in stateward("import", path).out
    assert {info.name: info.version for info in client.threads()} == found


def test_prefix_and_limit(stateward, client, write):
    """A prefix takes the place of the file's name, and a limit holds for each file."""
    one, two = write("one.jsonl", make_run("a", 1), make_run("b", 1)), write("two.jsonl", make_run("c", 1))
    assert stateward("import", one, two, "--thread-prefix", "p-", "--limit", "1").code == 0
    assert sorted(info.name for info in client.threads()) == ["p-a", "p-c"]


def test_summary_counts_what_was_imported(stateward, write):
    """The summary's message bytes and full saves are those of compact JSON, counted independently."""
    run = make_run("r", 20)
    answer = stateward("import", write("runs.jsonl", run))
    compact = [len(json.dumps(run["messages"][:count], separators=(",", ":"))) for count in range(1, 21)]
    messages = compact[-1] - 2 - 19
    assert f"({messages:,} bytes)" in answer.out
    assert f"full saves   {sum(compact) / 1024:.3g} KiB" in answer.out
    assert "steps saved  20\n" in answer.out


def test_what_was_imported_as_json(stateward, client, write):
    """One object: runs and steps, what was restored by kind, and what failed; nothing else goes to stdout."""
    path = write("some.jsonl", make_run("a", 3), make_run("b", 2), {"run_id": "empty", "messages": []})
    answer = stateward("import", path, "--json")
    assert answer.code == 1
    found = json.loads(answer.out)
    expected = {"runs": 2, "steps": 5, "steps_done_before": 0, "runs_failed": 1, "threads_restored": 0, "problems": 0}
    assert {name: found[name] for name in expected} == expected
    assert len(answer.out.splitlines()) == 1
    backup = path.parent / "backup.jsonl"
    assert stateward("export", "some/a", "--versions", "-o", backup).code == 0
    restored = stateward("import", backup, "--thread-prefix", "again/", "--json").json
    assert (restored["threads_restored"], restored["restored"]["version"], restored["problems"]) == (1, 3, 0)
    assert client.thread("again/some/a").hydrate().version == 3
