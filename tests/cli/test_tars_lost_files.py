"""The danger: a command says that files went into a tar, or came from one, and they are others, or a file is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Answer
from tests.trees.ground import lay

from stateward import Client


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_out_and_in(stateward: Callable[..., Answer], client: Client, tmp_path: Path, name: str) -> None:
    """Into another thread, the same tree. What is no tar, or is missing, is one line, and saves nothing."""
    thread = client.thread("t")
    root = lay(tmp_path / "root", {b"a": b"1", b"d": {b"f": b"f" * 10_000}, b"\xff\n": b"raw"})
    first = thread.save(thread.hydrate(), workspace=thread.workspace(root).snapshot())
    lay(root, {b"later": b"l"})
    thread.save(thread.hydrate(), workspace=thread.workspace(root).snapshot())
    tar = tmp_path / name
    assert "3 files" in stateward("workspace", "export", "t", "--tar", tar, "--at", "1").err
    made = json.loads(stateward("workspace", "import", "new", "--tar", tar, "--json").out)
    assert first.workspace is not None
    assert (made["version"], made["tree"]) == (1, first.workspace.digest.hex())
    assert "version 2 of new: 3 files" in stateward("workspace", "import", "new", "--tar", tar).out
    before = tar.read_bytes()
    failed = stateward("workspace", "export", "nobody", "--tar", tar)
    assert (failed.code, failed.err.count("\n")) == (1, 1)
    assert tar.read_bytes() == before
    tar.write_bytes(before[: len(before) // 2])
    for wrong in (tar, tmp_path / "missing.tar", tmp_path):
        failed = stateward("workspace", "import", "new", "--tar", wrong)
        assert (failed.code, failed.err.count("\n")) == (1, 1), failed
    assert client.thread("new").hydrate().version == 2
