"""The danger: the command says that it kept files and has not, or changes the state, the status or the question."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.trees.ground import lay

from stateward import Client


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> None:
    """A cache directory of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_snapshot_is_a_version_that_changes_nothing_else(stateward, client: Client, tmp_path: Path):
    """Also of a thread that does not exist. What is left out is named."""
    root = lay(tmp_path / "app", {b"f": b"x" * 500, b"d": {b"g": b"y"}})
    first = stateward("workspace", "snapshot", "new", str(root), "--json")
    assert (first.code, json.loads(first.out)["version"]) == (0, 1)
    thread = client.thread("asks")
    state = thread.hydrate()
    state.slots["s"] = 1
    thread.ask(state, "May I?", wait_id="w")
    lay(root, {b".env": b"KEY=1", b"bad\xff": b"z"})
    said = stateward("workspace", "snapshot", "asks", str(root))
    assert said.code == 0, said.err
    assert "left out: .env (" in said.err
    assert "3, " in said.out
    after = thread.hydrate()
    assert (after.version, after.slots["s"], after.question.prompt) == (2, 1, "May I?")
    again = json.loads(stateward("workspace", "snapshot", "asks", str(root), "--json").out)
    assert (again["files"], [each["path"] for each in again["left_out"]]) == (3, [".env"])
    assert thread.trees.read(b"bad\xff") == b"z"


def test_what_the_files_take(stateward, client: Client, tmp_path: Path):
    root = lay(tmp_path / "app", {b"f": b"x" * 5000})
    stateward("workspace", "snapshot", "t", str(root))
    found = json.loads(stateward("workspace", "du", "t", "--json").out)
    assert (found["trees"], found["chunks"], found["directories"], found["tree_bytes"]) == (1, 1, 1, 5000)
    assert "1, " in stateward("workspace", "du", "t").out
    missing = stateward("workspace", "du", "nobody")
    assert (missing.code, missing.err.count("\n")) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("/",), "Rules(force=True)"),
        (("no such directory",), "is no directory"),
        ((".", "--max-bytes", "lots"), "--max-bytes"),
        ((".", "--max-files", "1"), "more than 1 files"),
    ],
)
def test_what_cannot_be_kept_is_one_line(stateward, client: Client, tmp_path: Path, monkeypatch, arguments, says):
    lay(tmp_path / "app", {b"f": b"x", b"g": b"x"})
    monkeypatch.chdir(tmp_path / "app")
    said = stateward("workspace", "snapshot", "t", *arguments)
    assert (said.code, said.err.count("\n")) == (1, 1)
    assert says in said.err
