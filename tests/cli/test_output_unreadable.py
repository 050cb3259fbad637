"""The danger: output that hides what is stored, or lets stored bytes drive the reader's terminal."""

import json

import pytest
from tests.cli.conftest import make_run, run_on_terminal

from stateward import RawValue, Text, ThreadOptions
from stateward.cli.show.describe import summarize
from stateward.cli.show.output import shorten, size


@pytest.fixture
def thread(client):
    """A thread with three versions and all kinds of values."""
    thread = client.thread("t")
    state = thread.hydrate()
    state.slots["goal"] = {"city": "Paris", "odd": "\ud800 é"}
    state.slots["raw"], state.slots["note"] = b"\x00\xff", Text("hello")
    state.slots["broken"] = RawValue("application/json", b"{nope")
    state.logs["messages"].extend(make_run("r", 30)["messages"])
    thread.save(state, step=1, labels={"k": "v"}, metadata={"a": 1}, create=ThreadOptions(labels={"team": "red"}))
    state.logs["other"].append(1)
    thread.save(state, step=2, status="waiting", status_detail="for you")
    thread.tags.set("good", 1)
    state.slots["goal"] = "done"
    thread.save(state, step=3, status="completed")
    return thread


def test_json_is_the_whole_state(stateward, thread):
    """`show --json` gives checkpoint, slots and logs as they are; what JSON cannot say goes as base64."""
    found = stateward("show", "t", "--at", "1", "--json").json
    assert found["slots"]["goal"] == {"city": "Paris", "odd": "\ud800 é"}
    assert found["slots"]["note"] == "hello"
    assert found["slots"]["raw"] == {"media_type": "application/octet-stream", "base64": "AP8="}
    assert found["slots"]["broken"] == {"media_type": "application/json", "base64": "e25vcGU="}
    assert found["logs"] == {"messages": make_run("r", 30)["messages"]}
    checkpoint = found["checkpoint"]
    assert (checkpoint["version"], checkpoint["step"], checkpoint["status"]) == (1, 1, "running")
    assert (checkpoint["labels"], checkpoint["metadata"]) == ({"k": "v"}, {"a": 1})
    assert checkpoint["digest"] == thread.checkpoints.get(1).digest.hex()


def test_json_of_a_part(stateward, thread):
    """--at takes a tag, --log and --last choose a part."""
    found = stateward("show", "t", "--at", "good", "--log", "messages", "--last", "2", "--json").json
    assert found["checkpoint"]["version"] == 1
    assert found["logs"] == {"messages": make_run("r", 30)["messages"][-2:]}
    assert stateward("show", "t", "--log", "messages", "--last", "0", "--json").json["logs"] == {"messages": []}


def test_text_shows_the_end_of_logs(stateward, thread):
    """`show` lists the newest entries with their indexes, and says how many it leaves out."""
    out = stateward("show", "t", "--last", "2").out
    assert "r says 29" in out
    assert "  28  assistant  r says 28" in out
    assert "r says 27" not in out
    assert "28 more before; --last 30 shows all" in out
    assert '"done"' in out
    assert "completed" in out


def test_threads_are_listed(stateward, client, thread):
    """`threads` filters by status, label and prefix; the limit is said to be one."""
    client.thread("u").append("l", 1, create=ThreadOptions(labels={"team": "blue"}))
    assert [each["thread"] for each in stateward("threads", "--json").json] == ["u", "t"]
    for arguments, expected in [
        (["--status", "completed"], ["t"]),
        (["--status", "completed", "--status", "RUNNING"], ["u", "t"]),
        (["--label", "team=blue"], ["u"]),
        (["--label", "team=blue", "--label", "x=y"], []),
        (["--prefix", "t"], ["t"]),
        (["--limit", "0"], ["u", "t"]),
    ]:
        assert [each["thread"] for each in stateward("threads", "--json", *arguments).json] == expected, arguments
    answer = stateward("threads", "--limit", "1")
    assert "more than 1 threads" in answer.error
    header, row = answer.out.splitlines()
    assert header.split() == ["THREAD", "VERSION", "STEP", "STATUS", "CHANGED", "STORED", "LABELS"]
    assert row.split()[0] in {"t", "u"}
    assert row.endswith(("team=blue", "team=red"))


def test_options_after_the_command_win(daemon, stateward, client, thread):
    """--target and --namespace are taken before and after the command's name."""
    answer = stateward("threads", "--json", "--namespace", "elsewhere", "--target", daemon.target)
    assert answer.json == []


def test_escapes_are_shown_and_not_sent(stateward, client):
    """Control characters in names, slots, entries and errors do not reach the terminal."""
    evil = "\x1b]0;title\x07\x1b[2J\r[bold]x"
    client.thread("e").append("messages", {"role": evil, "content": evil}, evil, create=ThreadOptions(agent="x"))
    client.thread("e").update(lambda state: state.slots.update(s=evil), metadata=evil, status_detail="waiting")
    for answer in (stateward("show", "e"), stateward("show", evil), stateward("threads")):
        assert not set(answer.out + answer.err) & set("\x1b\x07\r")
    assert "[bold]x" in stateward("show", "e").out


def test_terminal_has_a_bar_and_colours(daemon, namespace, write):
    """On a terminal an import shows a bar with runs, steps and bytes; in a pipe there is no escape."""
    path = write("runs.jsonl", *[make_run(f"r{number}", 40) for number in range(5)])
    code, text = run_on_terminal("--target", daemon.target, "-n", namespace, "import", str(path), COLUMNS="120")
    assert code == 0
    assert "5/5 runs" in text
    assert "200 steps" in text
    assert "100%" in text
    assert "\x1b[" in text


def test_entries_are_summed_up_in_a_line():
    """Messages of the usual shapes show role, text and tool calls; anything else its JSON."""
    call = {"function": {"name": "search", "arguments": '{"q": 1}'}}
    assert summarize({"role": "assistant", "content": None, "tool_calls": [call]}, 80) == 'assistant  search({"q": 1})'
    assert summarize({"role": "user", "content": [{"type": "text", "text": "a\n b"}]}, 80) == "user  a b"
    assert summarize({"role": "x", "type": "event"}, 80) == 'x  {"type": "event"}'
    assert summarize({"role": "x", "content": "y" * 100}, 20) == "x  " + "y" * 16 + "…"
    assert summarize([1, b"\x00"], 80) == '[1, "<1 B of application/octet-stream>"]'
    for odd in ({"role": "a", "tool_calls": 3}, {"role": "a", "tool_calls": [1, {"function": 2}]}, {"role": 1}, None):
        assert "\n" not in summarize(odd, 80)


def test_sizes_and_cuts():
    """Sizes are short, and a cut text is as long as asked."""
    found = [size(n) for n in (0, 1023, 1024, 1020 << 10, 6_637_611, 1.007e9)]
    assert found == ["0 B", "1023 B", "1 KiB", "1020 KiB", "6.33 MiB", "960 MiB"]
    assert shorten("a\x00b", 10) == "a\\x00b"
    assert len(shorten("\x1b" * 50, 10)) == 10


def test_broken_metadata_is_shown(stateward, client):
    """Metadata that is not what its media type says does not hide the version."""
    client.thread("m").append("l", 1, metadata=RawValue("application/json", b"{nope"))
    assert stateward("show", "m", "--json").json["checkpoint"]["metadata"]["base64"] == "e25vcGU="
    assert "<5 B of application/json>" in stateward("show", "m").out


def test_json_on_a_terminal_parses_too(stateward, thread):
    """Indentation for people changes nothing for programs."""
    assert json.loads(stateward("show", "t", "--json").out)["checkpoint"]["version"] == 3
