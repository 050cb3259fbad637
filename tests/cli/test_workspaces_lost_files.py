"""The danger: a person restores other files than the command showed, or cannot get back what was there before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Answer
from tests.trees.ground import facts, lay

from stateward import Client


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def keep(client: Client, root: Path) -> int:
    thread = client.thread("t")
    state = thread.hydrate()
    state.slots["n"] = state.version
    return thread.save(state, workspace=thread.workspace(root).snapshot()).version


def test_plan_restore_and_undo(stateward: Callable[..., Answer], client: Client, tmp_path: Path) -> None:
    """What is planned is done, and the undo of this directory brings back what was there, also after another's."""
    root = lay(tmp_path / "root", {b"a": b"1", b"d": {b"f": b"f"}, b"\xff\n": b"raw"})
    old = facts(root)
    version = keep(client, root)
    (root / "a").write_bytes(b"2")
    (root / "d/f").unlink()
    (root / ".env").write_bytes(b"secret")
    new = facts(root)
    second = keep(client, root)
    found = stateward("workspace", "plan", "t", root, "--at", str(version), "--json").json
    assert [(each["path"], each["action"]) for each in found["changes"]] == [("a", "replace"), ("d/f", "make")]
    assert (found["ignored"], found["version"]) == ([".env"], version)
    shown = stateward("workspace", "plan", "t", root, "--at", str(version))
    assert shown.out.splitlines() == ["~ a", "+ d/f", "  .env  (kept, because rules leave it out)"]
    assert facts(root) == new
    done = stateward("workspace", "restore", "t", root, "--at", str(version), "--mode", "both")
    assert "1 path made, 1 replaced, 0 deleted; version" in done.out
    assert facts(root) == old | {b".env": new[b".env"]}
    assert client.thread("t").hydrate().version == version
    elsewhere = lay(tmp_path / "elsewhere", {b"mine": b"m"})
    stateward("workspace", "restore", "t", elsewhere, "--at", str(version))
    stateward("workspace", "undo", "t", root)
    assert facts(root) == new
    stateward("workspace", "undo", "t", root)
    assert facts(root) == old | {b".env": new[b".env"]}
    stateward("workspace", "undo", "t", elsewhere)
    assert facts(elsewhere).keys() == {b"mine"}
    assert stateward("workspace", "cat", "t", "a", "--at", str(second)).out == "2"
    assert stateward("workspace", "diff", "t", str(version), str(second)).out.splitlines() == ["~ a", "- d/f"]
    listed = stateward("workspace", "ls", "t", "--at", str(version)).out
    assert "d/" in listed
    assert "\\xff\\n" in listed


def test_wrong_use(stateward: Callable[..., Answer], client: Client, tmp_path: Path) -> None:
    """Each is one line, and nothing is written."""
    root = lay(tmp_path / "root", {b"a": b"1"})
    keep(client, root)
    client.thread("t").append("l", 1)
    before = facts(root)
    for arguments, code in (
        (("restore", "t", root, "--resume"), 1),
        (("restore", "t", root, "--resume", "--undo"), 2),
        (("restore", "t", root, "--keep-changed"), 2),
        (("restore", "t", root, "--undo", "--at", "1"), 2),
        (("restore", "t", root), 1),  # the newest version names no files
        (("restore", "t", root / "no", "--at", "1"), 1),
        (("restore", "t", "/", "--at", "1"), 1),
        (("restore", "no", root), 1),
        (("undo", "t", root), 1),
        (("cat", "t", "../a", "--at", "1"), 1),
        (("plan", "t", root, "--thread", "no"), 1),
    ):
        answer = stateward("workspace", *arguments)
        assert (answer.code, len(answer.err.splitlines())) == (code, 1), (arguments, answer.err)
    assert facts(root) == before
    assert [each.name for each in root.iterdir()] == ["a"]


def test_a_killed_restore_says_how_to_go_on(
    stateward: Callable[..., Answer], client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that finds one names the options, and they work."""
    root = lay(tmp_path / "root", {b"a": b"1", b"b": b"1"})
    version = keep(client, root)
    old = facts(root)
    (root / "a").write_bytes(b"2")
    (root / "b").unlink()
    new = facts(root)
    for option, wanted in (("--undo", new), ("--resume", old)):
        with monkeypatch.context() as patched:
            patched.setattr("stateward._restoring.root.Root.move", fail)
            stopped = stateward("workspace", "restore", "t", root, "--at", str(version))
        assert (stopped.code, "--resume" in stopped.err, "--undo" in stopped.err) == (1, True, True)
        assert "--resume" in stateward("workspace", "plan", "t", root).err
        assert stateward("workspace", "restore", "t", root, option).code == 0
        assert facts(root) == wanted


def fail(*_: object) -> bool:
    raise OSError(28, "No space left on device")
