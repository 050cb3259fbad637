"""The danger: a person cannot look at a held thread of their own, or a command shows one, or its key, to others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import run, run_process

from stateward import Client
from stateward.testing import Daemon, run_daemon

KEY = bytes(range(32))


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """It has a held thread, and a plain one."""
    with run_daemon(held_for="0.1s") as running:
        with Client(running.target) as client:
            held = client.thread("diary", session_key=KEY)
            for number in range(3):
                held.append("messages", f"secret {number}")
            client.thread("plain").append("messages", "x")
        yield running


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.touch(mode=0o600)
    file.write_text(KEY.hex() + "\n")
    return file


def test_a_thread_of_ones_own(daemon: Daemon, key_file: Path, tmp_path: Path) -> None:
    """Commands that read and write a thread do so with its key, given by a file, and say LOCKED without it."""
    told = ("--target", daemon.target)
    for command in (
        ("show", "diary"), ("history", "diary"), ("diff", "diary", "1", "2"), ("tag", "diary", "good"),
        ("fork", "diary", "copy"), ("records", "list", "diary"), ("effects", "diary"),
        ("export", "diary", "-o", str(tmp_path / "out.jsonl")), ("rm", "copy", "--yes"),
    ):  # fmt: skip
        if command[0] != "rm":
            refused = run(*told, *command)
            assert refused.code == 1, (command, refused)
            assert "session key" in refused.error
        done = run("--session-key-file", str(key_file), *told, *command)
        assert done.code == 0, (command, done)
    shown = run("--session-key-file", str(key_file), *told, "show", "diary")
    assert "secret 2" in shown.out
    assert "not held" in run("--session-key-file", str(key_file), *told, "show", "plain").error
    told_so = run_process(*told, "show", "diary", STATEWARD_SESSION_KEY_FILE=str(key_file))
    assert "secret 2" in told_so.out


def test_what_everybody_sees(daemon: Daemon, key_file: Path) -> None:
    """Uid, times and size, open or locked, and neither name nor content."""
    with Client(daemon.target) as client:
        uid = client.thread("diary", session_key=KEY).info().uid
        (found,) = client.held_threads()
        assert found.uid == uid
        assert found.create_time is not None
        assert found.update_time is not None
        assert found.create_time <= found.update_time
        assert found.stored_bytes == client.thread("diary", session_key=KEY).info().stored_bytes
    listed = run("--target", daemon.target, "threads", "--held")
    assert uid in listed.out
    assert "diary" not in listed.out
    (told,) = run("--target", daemon.target, "threads", "--held", "--json").json
    assert told["uid"] == uid
    assert told["stored_bytes"] == found.stored_bytes
    assert [each["thread"] for each in run("--target", daemon.target, "threads", "--json").json] == ["plain"]
    assert run("--target", daemon.target, "--namespace", "none", "threads", "--held").out == ""
    assert "stands alone" in run("--target", daemon.target, "threads", "--held", "--status", "failed").error


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        ("no key", 0o600, "hex"), ("aa" * 15, 0o600, "30 hex digits"), (KEY.hex(), 0o644, "chmod o="),
        ("ü", 0o600, "hex"),
    ],
)
def test_a_file_that_is_no_key(daemon: Daemon, tmp_path: Path, content: str, mode: int, said: str) -> None:
    """It is not sent, and what is in it is not shown."""
    file = tmp_path / "key"
    file.write_text(content)
    file.chmod(mode)
    answer = run("--session-key-file", str(file), "--target", daemon.target, "show", "diary")
    assert answer.code == 1
    assert said in answer.error
    assert content not in answer.error
    missing = run("--session-key-file", str(tmp_path / "none"), "--target", daemon.target, "show", "diary")
    assert "cannot read the session key" in missing.error
