"""The danger: a value that is nested deeply: its backup cannot be restored, or it ends a command."""

import itertools
import json

import pytest
from tests.cli.conftest import run

from stateward import RawValue

# Around each limit: that of the commands, that of a run, and those of Python's parsers at several depths of its stack.
DEPTHS = (1, 2, *range(96, 105), *range(195, 206), 300, 490, 500, *range(900, 1001, 3), *range(968, 980), 5000, 100_000)


def nested(depth):
    """JSON of so many lists inside each other, and objects in the odd ones."""
    opened = itertools.islice(itertools.cycle((b"[", b'{"a":')), depth - 1)
    closed = itertools.islice(itertools.cycle((b"]", b"}")), depth - 1)
    return RawValue("application/json", b"".join(opened) + b"[]" + b"".join(reversed(list(closed))))


def test_values_of_every_depth_come_back(stateward, client, tmp_path):
    """Export, import and export again gives the same lines, whatever depth the values have."""
    thread = client.thread("deep")
    state = thread.hydrate()
    for depth in DEPTHS:
        state.slots[f"d{depth}"] = nested(depth)
        state.logs["log"].append(nested(depth))
    thread.save(state, metadata=nested(973))
    for depth in (99, 500, 973):
        thread.records.put(f"d{depth}", nested(depth))
        thread.signals.send("hello", nested(depth))
    texts = []
    for prefix in ("", "x"):
        path = tmp_path / f"{prefix}.jsonl"
        assert stateward("export", f"{prefix}deep", "--versions", "-o", path).code == 0
        texts.append([json.loads(line) for line in path.read_text().splitlines()])
        answer = stateward("import", path, "--thread-prefix", "x")
        assert (answer.code, answer.err) == (0, "")
    assert [each.get("edits") for each in texts[0]] == [each.get("edits") for each in texts[1]]
    copy = client.thread("xxdeep").hydrate()
    for at, depth in enumerate(DEPTHS):
        assert copy.slots.raw(f"d{depth}") == copy.logs["log"].raw(at) == nested(depth)


COMMANDS = (
    ("show",), ("show", "--json"), ("diff", "1", "3"), ("diff", "1", "3", "--json"), ("replay",), ("replay", "--json"),
    ("records", "list"), ("records", "list", "--json"), ("history", "--json"), ("tools",), ("export", "--trajectories"),
    ("watch", "--from-start", "--until", "4", "--json"),
)  # fmt: skip


@pytest.fixture(scope="module")
def deep(daemon):
    """A namespace with a plain thread, and threads with deep values in every place."""
    with daemon.client(namespace="deep") as client:
        client.thread("plain").append("messages", {"role": "user"}, status="completed")
        for depth in (190, 320, 500, 960, 980, 990, 994):
            thread, value = client.thread(f"t{depth}"), nested(depth)
            thread.append("messages", value, status="completed")
            thread.set_slot("x", value)
            thread.set_slot("x", nested(depth + 1), status="completed")
            thread.signals.send("hello", value)
            thread.records.put("k", value)
    return lambda *arguments: run("--target", daemon.target, "-n", "deep", *arguments)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_show_deep_values(deep, command):
    """No command fails because of a deep value."""
    words = 2 if command[0] == "records" else 1
    for depth in (190, 320, 500, 960, 980, 990, 994):
        answer = deep(*command[:words], f"t{depth}", *command[words:])
        said = "stateward: no tool calls in these threads\n" if command == ("tools",) else ""
        assert (answer.code, answer.err) == (0, said)


def test_one_deep_run_costs_no_other(deep):
    """Trajectories of all runs have the deep ones too."""
    assert len(deep("export", "--trajectories").out.splitlines()) == 8


def test_runs_that_cannot_be_imported_are_not_exported(deep):
    """An export of messages that an import could not read is refused."""
    for depth, code in ((190, 0), (320, 1), (960, 1), (994, 1)):
        answer = deep("export", f"t{depth}", "--messages-only")
        assert answer.code == code
        assert code == 0 or "nested more than 200 levels deep" in answer.error
