"""The danger: a snapshot lacks a file, has other bytes than the disk, or believes a file that changed."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests.trees.ground import lay
from tests.trees.workdirs import EVERYTHING, in_thread, keep, on_disk, opened
from tests.trees.yard import grown

from stateward import AsyncClient, Client, Rules
from stateward._workspace import chunking, index, walking
from stateward.changes import SetSlot
from stateward.errors import InvalidField


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """A cache directory of the test's own, and an index that believes files at once: the kernel alone sets ctime."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(index, "RACY_NS", 0)
    return tmp_path / "cache"


def settle() -> None:
    """Waits until the clock of the file system, which ticks some hundred times a second, has gone on."""
    time.sleep(0.05)


def odd(root: Path) -> None:
    """Files that are easily lost or changed: odd names and modes, holes, links, several chunks."""
    (root / "empty").touch()
    (root / "directory").mkdir()
    (root / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "private").write_bytes(b"x")
    (root / "private").chmod(0o400)
    with (root / "hole").open("wb") as file:
        file.seek(3_000_000)
        file.write(b"end")
    (root / "large").write_bytes(random.Random(7).randbytes(5_000_000))
    (root / "whole").write_bytes(b"a" * chunking.WHOLE_BYTES_MAX)
    (root / "more").write_bytes(b"a" * (chunking.WHOLE_BYTES_MAX + 1))
    (root / "out").symlink_to("/etc/passwd")
    (root / "loop").symlink_to("loop")
    (root / "up").symlink_to("..")
    (root / "nowhere").symlink_to("no such file")
    os.link(root / "run.sh", root / "twin")
    os.utime(root / "empty", ns=(-5_000_000_001, -5_000_000_001))


@pytest.mark.parametrize("seed", range(3))
def test_a_snapshot_is_what_lies_on_the_disk(yard, daemon, tmp_path, seed):
    """Names of raw bytes, empty files, holes, links, times and modes come back; then again after many changes."""
    root = lay(tmp_path / "app", grown(seed, 200, large=True))
    odd(root)
    with opened(daemon.target) as thread:
        taken, version = keep(thread, root)
        assert (taken.torn, taken.left_out) == ((), ())
        assert in_thread(yard, version) == on_disk(root)
        assert taken.tree.files == sum(each[0] != "d" for each in on_disk(root).values())
        settle()
        rng = random.Random(seed)
        files = [each for each in root.rglob("*") if each.is_file() and not each.is_symlink()]
        for path in rng.sample(files, 20):
            path.chmod(0o644)
            [path.unlink, lambda p=path: p.write_bytes(rng.randbytes(50)), lambda p=path: p.chmod(0o755)][
                rng.randrange(3)
            ]()
        lay(root / "added", grown(seed + 100, 30))
        _, version = keep(thread, root)
        assert in_thread(yard, version) == on_disk(root)


def test_what_did_not_change_is_not_read(daemon, yard, tmp_path):
    """Also by another handle, which has only the file of the index; and few objects travel in the save."""
    root = lay(tmp_path / "app", grown(5, 300))
    with opened(daemon.target) as thread:
        first, _ = keep(thread, root)
        assert first.read > 100
        settle()
        again, version = keep(thread, root)
        assert (again.read, again.sent, again.tree) == (0, 0, first.tree)
        (root / "one more").write_bytes(b"x")
        written = yard.stat().packs
        third, version = keep(thread, root)
        assert (third.read, third.sent, len(third.objects)) == (1, 2, 2)
        assert in_thread(yard, version) == on_disk(root)
        assert yard.stat().packs == written


def test_a_changed_file_is_read_again(daemon, yard, tmp_path):
    """Each of size, mtime, ctime and inode tells a change: no change keeps all four."""
    root = tmp_path / "app"
    root.mkdir()
    path = root / "f"
    path.write_bytes(b"one")
    before = path.stat()
    with opened(daemon.target) as thread:
        keep(thread, root)
        for content in (b"two", b"six"):
            settle()
            path.write_bytes(content)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as restic#2179: only ctime tells
            taken, version = keep(thread, root)
            assert taken.read == 1
            assert in_thread(yard, version)[b"f"][1] == content


def test_a_file_that_changed_while_the_snapshot_began_is_read_again(daemon, yard, tmp_path, monkeypatch):
    """The racy rule: a second write in the same tick of the clock leaves no trace, so young files are not believed."""
    monkeypatch.setattr(index, "RACY_NS", 2_000_000_000)
    root = tmp_path / "app"
    root.mkdir()
    (root / "f").write_bytes(b"one")
    with opened(daemon.target) as thread:
        keep(thread, root)
        assert keep(thread, root)[0].read == 1


@pytest.mark.parametrize("damage", ["lost", "cut", "changed", "empty", "readable by all", "a symlink"])
def test_a_damaged_index_is_made_anew(daemon, yard, tmp_path, cache, damage):
    root = lay(tmp_path / "app", grown(1, 50))
    with opened(daemon.target) as thread:
        first, _ = keep(thread, root)
        settle()
        (path,) = cache.rglob("*.index")
        assert path.stat().st_mode & 0o777 == 0o600
        assert keep(thread, root)[0].read == 0
        data = path.read_bytes()
        match damage:
            case "lost":
                path.unlink()
            case "cut":
                path.write_bytes(data[:-40])
            case "changed":
                path.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
            case "empty":
                path.write_bytes(b"")
            case "readable by all":
                path.chmod(0o644)
            case _:
                shutil.move(path, path.with_suffix(".moved"))
                path.symlink_to(path.with_suffix(".moved"))
        again, version = keep(thread, root)
        assert (again.read, again.tree) == (first.read, first.tree)
        assert in_thread(yard, version) == on_disk(root)


def test_an_index_of_another_thread_sends_everything(daemon, yard, tmp_path):
    """The index says what files have, and never what a thread has."""
    root = lay(tmp_path / "app", grown(2, 80))
    with opened(daemon.target) as thread:
        keep(thread, root)
        settle()
    with opened(daemon.target, "u") as thread:
        _, version = keep(thread, root)
        assert in_thread(yard, version, "u") == on_disk(root)


def test_a_thread_that_was_made_anew_gets_everything(daemon, yard, tmp_path):
    """The same handle of the workspace asks again after the thread was deleted."""
    root = lay(tmp_path / "app", grown(2, 80))
    with Client(daemon.target) as client:
        workspace = client.thread("t").workspace(root, EVERYTHING)
        client.thread("t").save(client.thread("t").hydrate(), workspace=workspace.snapshot())
        settle()
        assert workspace.snapshot().sent == 0  # it was heard that everything is there
        assert workspace._source.chunks
        client.thread("t").delete()
        thread = client.thread("t")
        saved = thread.save(thread.hydrate(), workspace=workspace.snapshot())
        assert in_thread(yard, saved.version) == on_disk(root)


def save_in_writer(thread, taken):
    with thread.writer() as writer:
        return writer.save(thread.hydrate(), workspace=taken)


SAVES = {
    "save": lambda thread, taken: thread.save(thread.hydrate(), workspace=taken),
    "apply": lambda thread, taken: thread.apply([SetSlot("a", 1)], workspace=taken),
    "writer": save_in_writer,
}


@pytest.mark.parametrize("how", SAVES)
def test_a_lost_object_is_sent_again(daemon, tmp_path, yard, how):
    """A save whose thread lacks an object fails, changes nothing, and the next snapshot asks for everything."""
    root = lay(tmp_path / "app", grown(3, 40))
    with opened(daemon.target) as thread:
        thread.set_slot("s", 1)
        workspace = thread.workspace(root, EVERYTHING)
        taken = workspace.snapshot()
        object.__setattr__(taken, "objects", ())
        workspace._source.chunks.update({b"x" * 32})
        with pytest.raises(InvalidField) as found:
            SAVES[how](thread, taken)
        assert "workspace" in found.value.field
        assert workspace._source.chunks == set()
        assert thread.hydrate().version == 1
        saved = SAVES[how](thread, workspace.snapshot())
        assert in_thread(yard, saved.version) == on_disk(root)


class Growing:
    """A file that somebody writes to each time that it is looked at."""

    def __init__(self, monkeypatch: Any, path: Path, times: int) -> None:
        self.path, self.left, self._fstat = path, times, os.fstat
        monkeypatch.setattr(walking.os, "fstat", self)

    def __call__(self, fd: int) -> os.stat_result:
        found = self._fstat(fd)
        if self.left and self.path.exists() and found.st_ino == self.path.stat().st_ino:
            self.left -= 1
            with self.path.open("ab") as file:
                file.write(b"more")
        return found


@pytest.mark.parametrize(("times", "torn"), [(1, ()), (3, ()), (10**6, (b"log",))])
@pytest.mark.parametrize("size_bytes", [10, 1_000_000])
def test_a_file_that_changes_while_it_is_read(daemon, yard, tmp_path, monkeypatch, times, torn, size_bytes):
    """It is read up to three times. One that grows for ever ends nothing: it is named, and has a beginning of it."""
    root = tmp_path / "app"
    root.mkdir()
    (root / "log").write_bytes(os.urandom(size_bytes))
    Growing(monkeypatch, root / "log", times)
    with opened(daemon.target) as thread:
        taken, version = keep(thread, root)
        monkeypatch.undo()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        assert taken.torn == torn
        kept, there = in_thread(yard, version)[b"log"][1], (root / "log").read_bytes()
        assert there.startswith(kept)
        assert len(kept) >= size_bytes
        assert kept == there or torn
        settle()
        assert in_thread(yard, keep(thread, root)[1]) == on_disk(root)


def test_files_that_go_and_files_that_nobody_may_read(daemon, yard, tmp_path, monkeypatch):
    """Both are no error. What is there and cannot be read is named."""
    root = lay(tmp_path / "app", {b"gone": b"x", b"kept": b"y", b"closed": b"z"})

    class System:
        """The calls of the walk."""

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def open(self, path: Any, flags: int, *args: Any, **options: Any) -> int:
            if path == b"gone":
                (root / "gone").unlink()
            if path == b"closed":
                raise PermissionError(13, "Permission denied")
            return os.open(path, flags, *args, **options)

    monkeypatch.setattr(walking, "os", System())
    with opened(daemon.target) as thread:
        taken, version = keep(thread, root)
    assert [(each.path, each.reason) for each in taken.left_out] == [(b"closed", "Permission denied")]
    assert set(in_thread(yard, version)) == {b"kept"}


async def test_the_asyncio_client_takes_the_same_snapshot(daemon, yard, tmp_path):
    root = lay(tmp_path / "app", grown(4, 150, large=True))
    async with AsyncClient(daemon.target) as client:
        thread = client.thread("t")
        taken = await thread.workspace(root, EVERYTHING).snapshot()
        saved = await thread.save(await thread.hydrate(), workspace=taken)
    assert in_thread(yard, saved.version) == on_disk(root)


@pytest.mark.parametrize("wire", ["grpc", "frames"])
@pytest.mark.parametrize("session_key", [None, b"k" * 32])
async def test_snapshots_are_sent_on_each_wire(daemon, tmp_path, monkeypatch, wire, session_key):
    """Of both clients, also to a thread that only its user can open, and for a version that a writer saves."""
    monkeypatch.setenv("STATEWARD_WIRE", wire)
    root = lay(tmp_path / "app", {b"f": random.Random(1).randbytes(3_000_000)})
    with Client(daemon.target) as client:
        thread = client.thread("t", session_key=session_key)
        taken = thread.workspace(root).snapshot()
        assert thread.save(thread.hydrate(), workspace=taken).workspace == taken.tree
        with thread.writer() as writer:
            assert writer.save(thread.hydrate(), workspace=thread.workspace(root).snapshot()).workspace == taken.tree
        assert thread.trees.read("f") == (root / "f").read_bytes()
    async with AsyncClient(daemon.target) as asyncio_client:
        other = asyncio_client.thread("u", session_key=session_key)
        again = await other.workspace(root).snapshot()
        assert (await other.save(await other.hydrate(), workspace=again)).workspace == taken.tree
        assert await other.trees.read("f") == (root / "f").read_bytes()


def test_nothing_of_git_is_touched(daemon, tmp_path):
    """Status, index and HEAD are the same bytes before and after snapshots."""
    root = tmp_path / "app"

    def git(*words: str) -> bytes:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, cwd=root, capture_output=True, check=True).stdout

    lay(root, grown(6, 40))
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    (root / "untracked").write_bytes(b"x")
    (root / ".gitignore").write_text("*.log\n")
    (root / "a.log").write_bytes(b"x")
    git("status")

    def facts() -> tuple[bytes, ...]:
        files = {path: path.read_bytes() for path in sorted((root / ".git").rglob("*")) if path.is_file()}
        return (git("--no-optional-locks", "status", "--porcelain", "--ignored"), repr(files).encode())

    before = facts()
    with opened(daemon.target) as thread:
        for _ in range(3):
            keep(thread, root, Rules(gitignore=True))
    assert facts() == before
