"""The danger: of many versions of a directory, one comes back with other files than it had."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.trees.workdirs import EVERYTHING, keep, on_disk

from stateward import Client, Thread
from stateward.errors import RestoreUnfinished
from stateward.testing import Daemon

KILLED = """
import os, signal, sys
from stateward import Client, Rules
target, root, version, calls = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with Client(target) as client:
    plan = client.thread("t").workspace(root, Rules(left_out=(), secrets=())).plan(version)
    def killing(real):
        def call(*args, **kwargs):
            global calls
            calls -= 1
            if calls < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)
        return call
    for name in ("rename", "unlink", "mkdir", "rmdir", "fsync"):
        setattr(os, name, killing(getattr(os, name)))
    plan.apply()
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def thread(daemon: Daemon) -> Iterator[Thread]:
    with Client(daemon.target) as client:
        yield client.thread("t")


def commits(repository: Path, count: int) -> list[str]:
    """The last commits, the oldest first. Skips in a clone that has fewer."""
    command = ["git", "-C", repository, "rev-list", "--first-parent", "-n", str(count), "HEAD"]
    found = subprocess.run(command, check=False, capture_output=True, text=True).stdout.split()
    if len(found) < count:
        pytest.skip(f"this clone has {len(found)} commits, and {count} are needed")
    return found[::-1]


def check_commits(thread: Thread, repository: Path, tmp_path: Path, count: int) -> None:
    root = tmp_path / "app"
    root.mkdir()
    saved: dict[int, dict[bytes, tuple[Any, ...]]] = {}
    for each in commits(repository, count):
        command = ["git", "-C", repository, "archive", "--format=tar", each]
        data = subprocess.run(command, check=True, capture_output=True).stdout
        present = {path for path, facts in on_disk(root).items() if facts[0] != "d"}
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            names = {os.fsencode(member.name) for member in tar if not member.isdir()}
            for gone in present - names:
                (root / os.fsdecode(gone)).unlink()
            tar.extractall(root, filter="data")
        _, version = keep(thread, root)
        saved[version] = on_disk(root)
    assert len(saved) == count
    order = list(saved)
    random.Random(count).shuffle(order)
    for version in order[:20]:
        thread.workspace(root, EVERYTHING).plan(version).apply()
        assert on_disk(root) == saved[version]
    for version in order if count <= 20 else order[:40]:
        copy = tmp_path / f"copy-{version}"
        thread.trees.fork_into(copy, version)
        assert on_disk(copy) == saved[version]


def test_commits_of_this_repository(thread: Thread, repository: Path, tmp_path: Path) -> None:
    """Twenty successive ones, as versions, come back in any order."""
    check_commits(thread, repository, tmp_path, 20)


@pytest.mark.soak
def test_many_commits_of_this_repository(thread: Thread, repository: Path, tmp_path: Path) -> None:
    """The size that was promised: two hundred."""
    check_commits(thread, repository, tmp_path, 200)


@pytest.mark.parametrize("steps", [150, pytest.param(10_000, marks=pytest.mark.soak)])
def test_random_work_is_what_a_model_says(thread: Thread, daemon: Daemon, tmp_path: Path, steps: int) -> None:
    """Files are written, changed, moved, deleted, linked; snapshots are saved; restores and undos run, and are killed
    and finished or taken back. After each, the directory is what the model of the version says."""
    rng, root = random.Random(steps), tmp_path / "app"
    root.mkdir()
    versions: dict[int, dict[bytes, tuple[Any, ...]]] = {}
    places = thread.workspace(root, EVERYTHING)
    for step in range(steps):
        match rng.randrange(20):
            case 0 | 1 | 2:
                _, version = keep(thread, root)
                versions[version] = on_disk(root)
            case 3 | 4 if versions:
                before, version = on_disk(root), rng.choice(list(versions))
                undo = places.plan(version).apply()
                assert on_disk(root) == versions[version], step
                if rng.random() < 0.5:
                    undo.apply()
                    assert on_disk(root) == before, step
            case 5 if versions and rng.random() < 0.5:
                before, version = on_disk(root), rng.choice(list(versions))
                command = [sys.executable, "-c", KILLED, daemon.target, str(root), str(version), str(rng.randrange(30))]
                done = subprocess.run(command, check=False, capture_output=True, text=True)
                assert done.returncode in (0, -signal.SIGKILL), done.stderr
                is_back = rng.random() < 0.5
                try:
                    (places.take_back if is_back else places.resume)()
                except RestoreUnfinished:  # it was killed before it began, or after its end
                    assert on_disk(root) in (before, versions[version]), step
                else:
                    assert on_disk(root) == (before if is_back else versions[version]), step
            case _:
                change(rng, root)
    for version, facts in rng.sample(sorted(versions.items()), min(10, len(versions))):
        thread.trees.fork_into(tmp_path / f"copy-{version}", version)
        assert on_disk(tmp_path / f"copy-{version}") == facts


def change(rng: random.Random, root: Path) -> None:
    """One change, as a shell command makes it."""
    there = [path for path in root.rglob("*") if not path.name.startswith(".stateward")]
    directories = [root, *(path for path in there if path.is_dir() and not path.is_symlink())]
    files = [path for path in there if path.is_file() and not path.is_symlink()]
    name = os.fsdecode(rng.choice([b"f%d", b"\xff%d", b"n\n%d", "ü-%d".encode()]) % rng.randrange(30))
    path = rng.choice(directories) / name
    what = rng.randrange(8)
    if what < 3 and not path.is_dir() and not path.is_symlink():
        path.write_bytes(rng.randbytes(rng.choice([0, 10, 3000, 300_000])) if rng.random() < 0.9 else bytes(500_000))
    elif what == 3 and not os.path.lexists(path) and len(path.parts) < len(root.parts) + 5:
        path.mkdir()
    elif what == 4 and not os.path.lexists(path):
        path.symlink_to(rng.choice(["/etc/passwd", "..", "nowhere", "f1"]))
    elif what == 5 and files:
        chosen = rng.choice(files)
        chosen.chmod(chosen.stat().st_mode ^ 0o100)
    elif what == 6 and files and not os.path.lexists(path):
        rng.choice(files).rename(path)
    elif what == 7 and there:
        chosen = rng.choice(there)
        if chosen.is_symlink() or chosen.is_file():
            chosen.unlink()
        elif not any(chosen.iterdir()):
            chosen.rmdir()
