"""The danger: a rewind brings back other files than the version had, loses what was there before, or touches what it
must not."""

from __future__ import annotations

import asyncio
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.trees.ground import facts, lay
from tests.trees.yard import Link, TreeWire

from stateward import AsyncClient, Client, Rules, Workspace
from stateward._operations import restoring
from stateward._workspace.index import RACY_NS
from stateward.errors import RestoreUnfinished, VersionMismatch, WorkspaceChanged
from stateward.testing import Daemon

OLD: dict[bytes, Any] = {
    b"a.py": b"print(1)\n", b"src": {b"m.py": b"m" * 1000, b"old.py": b"o", b"deep": {b"\xff": b"raw"}},
    b"run.sh": b"#!/bin/sh\n", b"link": Link(b"a.py"), b"thing": b"a file",
    b"large": random.Random(1).randbytes(900_000),
}  # fmt: skip
PROGRAM = """
import os, signal, sys
from stateward import Client
target, root, version, calls = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with Client(target) as client:
    plan = client.thread("t").workspace(root).plan(version)
    real = os.rename
    def rename(*args, **kwargs):
        global calls
        calls -= 1
        if calls < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    os.rename = rename
    plan.apply()
"""


KILLED_AT_THE_HEAD = """
import os, signal, sys
from stateward import Client
from stateward._operations import threads
target, root, version, what, when = sys.argv[1:]
real = threads.move_head
def move_head(*given):
    if when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        yield from real(*given)
    finally:
        os.kill(os.getpid(), signal.SIGKILL)
threads.move_head = move_head
with Client(target) as client:
    workspace = client.thread("t").workspace(root)
    if what == "apply":
        workspace.plan(int(version)).apply(mode="both")
    else:
        getattr(workspace, what)()
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with daemon.client() as opened:
        yield opened


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = lay(tmp_path / "root", OLD)
    (place / "run.sh").chmod(0o755)
    return place


def keep(client: Client, workspace: Workspace) -> int:
    """Saves a version with the files that are there."""
    thread = client.thread("t")
    state = thread.hydrate()
    state.slots["n"] = state.version
    return thread.save(state, workspace=workspace.snapshot()).version


def wreck(root: Path) -> None:
    """What a shell command may do."""
    (root / "a.py").write_bytes(b"print(2)\n")
    shutil.rmtree(root / "src")
    (root / "src").write_bytes(b"a file now")
    (root / "thing").unlink()
    lay(root / "thing", {b"inner": b"i", b"more": {b"x": b"x"}})
    (root / "run.sh").chmod(0o644)
    (root / "link").unlink()
    (root / "link").symlink_to("nowhere")
    (root / "fresh").write_bytes(b"f")
    with (root / "large").open("r+b") as file:
        file.seek(500_000)
        file.write(b"changed")


def test_back_and_forth(client: Client, root: Path) -> None:
    """A rewind brings back exactly the files of the version, and its undo exactly those before, any number of times."""
    workspace = client.thread("t").workspace(root)
    version = keep(client, workspace)
    old = facts(root)
    wreck(root)
    new = facts(root)
    plan = workspace.plan(version)
    assert {str(each) for each in plan.changes} >= {"replace a.py", "make src/m.py", "delete fresh", "replace thing"}
    assert facts(root) == new
    undo = plan.apply()
    assert facts(root) == old
    again = undo.apply()
    assert facts(root) == new
    again.apply()
    assert facts(root) == old
    assert workspace.plan(version).changes == ()
    assert client.thread("t").hydrate().version == version
    assert workspace.read("a.py", undo.version) == b"print(2)\n"


def test_files_and_conversation(client: Client, root: Path) -> None:
    """Files and conversation go back together or apart, and come back."""
    thread = client.thread("t")
    workspace = thread.workspace(root)
    first = keep(client, workspace)
    old = facts(root)
    wreck(root)
    second = keep(client, workspace)
    new = facts(root)
    undo = workspace.plan(first).apply(mode="conversation")
    assert (thread.hydrate().version, facts(root)) == (first, new)
    undo.apply()
    assert thread.hydrate().version == second
    undo = workspace.plan(first).apply(mode="both")
    assert (thread.hydrate().version, facts(root)) == (first, old)
    undo.apply()
    assert (thread.hydrate().version, facts(root)) == (second, new)
    undo = workspace.plan(first).apply(mode="both")
    thread.append("l", 1)
    with pytest.raises(VersionMismatch):
        undo.apply()
    with pytest.raises(ValueError, match="mode is 'all'"):
        workspace.plan(first).apply(mode="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one of this branch"):
        workspace.plan(branch="workspace-undo").apply(mode="both")


def test_other_threads_branches_and_tags(client: Client, root: Path, tmp_path: Path) -> None:
    """A version is named by number, tag, branch or thread."""
    workspace = client.thread("t").workspace(root)
    client.thread("t").tags.set("good", keep(client, workspace))
    old = facts(root)
    wreck(root)
    workspace.plan("good").apply()
    assert facts(root) == old
    other = client.thread("other").workspace(lay(tmp_path / "other", {b"only": b"this"}))
    state = client.thread("other").hydrate()
    client.thread("other").save(state, workspace=other.snapshot())
    undo = workspace.plan(thread="other").apply()
    assert facts(root).keys() == {b"only"}
    assert facts(root) == facts(tmp_path / "other")
    undo.apply()
    assert facts(root) == old


def test_what_the_rules_leave_out_stays(client: Client, root: Path) -> None:
    """Ignored files, secrets, `.git` and special files are as before, whatever the version has."""
    everything = Rules(left_out=(), secrets=())
    lay(root / ".venv", {b"lib": b"old"})
    (root / ".env").write_bytes(b"old secret")
    version = keep(client, client.thread("t").workspace(root, everything))
    lay(root / "node_modules", {b"big": b"1 GB"})
    (root / ".venv" / "lib").write_bytes(b"new")
    (root / ".env").write_bytes(b"new secret")
    lay(root / ".git", {b"HEAD": b"ref"})
    os.mkfifo(root / "fifo")
    before = facts(root)
    (root / "fresh").write_bytes(b"f")
    plan = client.thread("t").workspace(root).plan(version)
    assert set(plan.ignored) >= {b".git", b".venv", b".env", b"node_modules", b"fifo"}
    assert set(plan.omitted) == {b".venv", b".venv/lib", b".env"}
    assert [str(each) for each in plan.changes] == ["delete fresh"]
    plan.apply()
    assert facts(root) == before


def test_changes_since_the_plan(client: Client, root: Path) -> None:
    """A file that changes after the plan stops the restore; one that the restore does not touch does not."""
    workspace = client.thread("t").workspace(root)
    version = keep(client, workspace)
    old = facts(root)
    (root / "a.py").write_bytes(b"2")
    plan = workspace.plan(version)
    (root / "a.py").write_bytes(b"3")
    before = facts(root)
    with pytest.raises(WorkspaceChanged, match=r"'a\.py' changed since the plan"):
        plan.apply()
    assert facts(root) == before
    plan = workspace.plan(version)
    (root / "src/m.py").write_bytes(b"not touched")
    plan.apply()
    assert facts(root)[b"a.py"] == old[b"a.py"]
    assert (root / "src/m.py").read_bytes() == b"not touched"


def test_a_file_that_looks_unchanged(client: Client, root: Path) -> None:
    """A rewind reads what it replaces or deletes. So nothing is lost that was written through a mapping."""
    workspace = client.thread("t").workspace(root)
    version = keep(client, workspace)
    old = facts(root)
    (root / "a.py").write_bytes(b"print(2)\n" * 1000)
    (root / "fresh").write_bytes(b"f" * 5000)
    mapped = list[mmap.mmap]()
    for name in ("a.py", "fresh"):
        with (root / name).open("r+b") as file:
            mapped.append(mmap.mmap(file.fileno(), 0))
        mapped[-1][:4] = b"kept"  # the next write into this page changes no time
    time.sleep(RACY_NS / 1e9 + 0.1)  # from now on, the index believes their times
    workspace.snapshot()
    plan = workspace.plan(version)
    for each in mapped:
        each[:4] = b"LOST"
    new = {name: (root / name).read_bytes() for name in ("a.py", "fresh")}
    with pytest.raises(WorkspaceChanged, match="changed since the plan"):
        plan.apply()
    try:
        undo = workspace.plan(version).apply()
    except WorkspaceChanged:  # the first time, only one of them was seen: the system had brought its page to the disk
        undo = workspace.plan(version).apply()
    assert facts(root) == old
    undo.apply()
    assert {name: (root / name).read_bytes() for name in new} == new


@pytest.mark.parametrize("back", [False, True], ids=["resumed", "taken back"])
def test_a_killed_rewind(client: Client, daemon: Daemon, root: Path, back: bool) -> None:
    """Another process finishes a killed restore, or takes it back. Until then no snapshot and no plan is made."""
    workspace = client.thread("t").workspace(root)
    version = keep(client, workspace)
    old = facts(root)
    wreck(root)
    new = facts(root)
    program = [sys.executable, "-c", PROGRAM, daemon.target, str(root), str(version), "4"]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    assert facts(root) not in (old, new)
    with pytest.raises(RestoreUnfinished, match="resume it, or take it back"):
        workspace.snapshot()
    with pytest.raises(RestoreUnfinished):
        workspace.plan(version)
    with pytest.raises(RestoreUnfinished, match="one of thread 't'"):
        client.thread("other").workspace(root).resume()
    if back:
        workspace.take_back()
    else:
        workspace.resume()
    assert facts(root) == (new if back else old)
    with pytest.raises(RestoreUnfinished, match="no restore was begun"):
        workspace.resume()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("back", [False, True], ids=["resumed", "taken back"])
def test_killed_when_the_head_moves(client: Client, daemon: Daemon, root: Path, when: str, back: bool) -> None:
    """Files and head go on together, or go back together, also if that is killed in the same place."""
    thread = client.thread("t")
    workspace = thread.workspace(root)
    first = keep(client, workspace)
    old = facts(root)
    wreck(root)
    second = keep(client, workspace)
    new = facts(root)
    program = [sys.executable, "-c", KILLED_AT_THE_HEAD, daemon.target, str(root), str(first)]
    end = "take_back" if back else "resume"
    for what in ("apply", end):
        assert subprocess.run([*program, what, when], check=False).returncode == -signal.SIGKILL
        with pytest.raises(RestoreUnfinished, match="resume it, or take it back"):
            workspace.snapshot()
    getattr(workspace, end)()
    assert (thread.hydrate().version, facts(root)) == ((second, new) if back else (first, old))
    assert workspace.plan(second if back else first).changes == ()


def test_the_head_is_another_one(client: Client, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody saves just before the head moves: no file was written, and nothing is left to resume."""
    thread = client.thread("t")
    workspace = thread.workspace(root)
    first = keep(client, workspace)
    wreck(root)
    keep(client, workspace)
    new = facts(root)
    real = restoring.running.restore

    def saved_first(*given: Any) -> Any:
        client.thread("t").append("l", 1)
        return real(*given)

    monkeypatch.setattr(restoring.running, "restore", saved_first)
    with pytest.raises(VersionMismatch):
        workspace.plan(first).apply(mode="both")
    assert facts(root) == new
    workspace.snapshot()


def test_the_daemon_goes_away(client: Client, daemon: Daemon, root: Path, yard: TreeWire) -> None:
    """Without the daemon a restore stops, and can be resumed when it is back: the journal names all that it needs."""
    workspace = client.thread("t").workspace(root)
    version = keep(client, workspace)
    old = facts(root)
    wreck(root)
    plan = workspace.plan(version)
    real = os.mkdir

    def mkdir(*given: Any, **more: Any) -> None:
        if given[0] == b"deep":
            daemon.kill()
        real(*given, **more)

    with daemon.client(retry_timeout=0.2) as hasty, pytest.MonkeyPatch.context() as patched:
        plan = hasty.thread("t").workspace(root).plan(version)
        patched.setattr(os, "mkdir", mkdir)
        patched.setattr(os, "supports_dir_fd", {*os.supports_dir_fd, mkdir})
        with pytest.raises(RestoreUnfinished, match="can be resumed or taken back"):
            plan.apply()
    daemon.start()
    workspace.resume()
    assert facts(root) == old


def test_with_asyncio(daemon: Daemon, root: Path) -> None:
    """The same with the other client; a rewind that is cancelled is resumed."""
    old = facts(root)

    async def run() -> None:
        async with AsyncClient(daemon.target) as client:
            thread = client.thread("t")
            workspace = thread.workspace(root)
            state = await thread.hydrate()
            version = (await thread.save(state, workspace=await workspace.snapshot())).version
            wreck(root)
            new = facts(root)
            undo = await (await workspace.plan(version)).apply()
            assert facts(root) == old
            await undo.apply()
            assert facts(root) == new
            for turns in range(0, 60, 7):
                plan = await workspace.plan(version)
                task = asyncio.create_task(plan.apply())
                for _ in range(turns):
                    await asyncio.sleep(0)
                    await asyncio.sleep(0.001)
                task.cancel()
                await asyncio.wait([task])
                while True:
                    try:
                        await workspace.take_back()
                    except RestoreUnfinished as error:
                        if "another process" not in error.message:
                            break
                        await asyncio.sleep(0.01)
                    else:
                        break
                if facts(root) != new:
                    assert facts(root) == old
                    wreck_again = await workspace.plan(branch="workspace-undo")
                    await wreck_again.apply()
                assert facts(root) == new

    asyncio.run(run())
