"""The danger: colours and bars where a program reads, or none where a person does."""

import signal
import subprocess
import time

import pytest
from tests.cli.conftest import COMMAND, environment, run_on_terminal, run_process
from tests.warmcommand import Popen


@pytest.fixture
def on_terminal(daemon, namespace):
    return lambda *arguments, **more: run_on_terminal("--target", daemon.target, "-n", namespace, *arguments, **more)


@pytest.fixture
def thread(client):
    thread = client.thread("t")
    for number in range(3):
        thread.update(lambda state, number=number: state.slots.update(n=number))
    return thread


def test_tables_and_colours(on_terminal, thread):
    """On a terminal tables have bold heads and differences colours."""
    code, shown = on_terminal("history", "t")
    assert code == 0
    assert "\x1b[1m" in shown
    assert "VERSION" in shown
    code, shown = on_terminal("diff", "t", "1", "3")
    assert code == 0
    assert "\x1b[31m" in shown
    assert "\x1b[32m" in shown


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colour_is_honoured(on_terminal, thread, variables):
    """With NO_COLOR, and on a dumb terminal, no colour is sent."""
    code, shown = on_terminal("diff", "t", "1", "3", **variables)
    assert code == 0
    assert "+++ t version 3" in shown
    assert not any(f"\x1b[{colour}m" in shown for colour in range(30, 48))


def test_a_pipe_gets_text(daemon, namespace, thread):
    """In a pipe there is no escape, and stderr has no bar."""
    for arguments in (["diff", "t", "1"], ["verify"]):
        answer = run_process("--target", daemon.target, "-n", namespace, *arguments)
        assert (answer.code, answer.err) == (0, ""), arguments
        assert "\x1b" not in answer.out


def test_long_work_shows_progress(on_terminal, thread, tmp_path):
    """On a terminal verify and export show how far they are, and leave the line empty again."""
    code, shown = on_terminal("verify")
    assert code == 0
    assert "verifying" in shown
    assert "all is well" in shown
    code, shown = on_terminal("export", "--all", "--versions", "-o", str(tmp_path / "x.jsonl"))
    assert code == 0
    assert "exporting" in shown


def test_escapes_in_what_is_stored(on_terminal, stateward, client):
    """What agents wrote cannot drive the terminal, in any of the commands that show it."""
    evil = "\x1b]0;title\x07\x1b[2Jx"
    thread = client.thread("e")
    thread.update(lambda state: state.slots.update({"s": evil}), status_detail=evil, step=1)
    thread.update(lambda state: state.slots.update({"s": evil + "\n2" + evil}))
    thread.append("l", {"role": evil, "content": evil})
    shown = [on_terminal("history", "e")[1], on_terminal("diff", "e", "1")[1]]
    shown += [stateward(*each).out for each in (["diff", "e", "0"], ["watch", "e", "--from-start", "--until", "3"])]
    for each in shown:
        assert "title" in each
        assert "\x1b]0" not in each
        assert "\x1b[2J" not in each
        assert "\x07" not in each


def test_interrupted_watch(daemon, namespace, client):
    """Ctrl-C ends a watch with 130, and without a word."""
    process = Popen(
        [*COMMAND, "--target", daemon.target, "-n", namespace, "watch", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        deadline = time.monotonic() + 20
        while client.stats().watches < 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        client.thread("t").append("l", 1)
        assert '"kind": "checkpoint"' in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
        assert (process.returncode, err) == (130, "")
    finally:
        process.kill()
        process.communicate()


def test_narrow_terminal(on_terminal, client):
    """Where a table does not fit, its texts go below their rows and no number is broken."""
    thread = client.thread("t")
    state = thread.hydrate()
    thread.save(state, step=1, checkpoint_id="a-name-that-is-long", labels={"prompt": "a-version-that-is-long"})
    thread.tags.set("before-dates", 1)
    code, shown = on_terminal("history", "t", "--all", COLUMNS="80")
    assert code == 0
    assert "VERSION" in shown
    assert "id: a-name-that-is-long" in shown
    assert "tags: before-dates" in shown
    assert "labels: prompt=a-version-that-is-long" in shown
