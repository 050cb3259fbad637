"""The danger: a killed restore leaves files that are neither the old ones nor the new ones, or cannot go on."""

from __future__ import annotations

import os
import random
import shutil
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.trees.ground import drive, facts, lay, listed, prepared
from tests.trees.yard import Link

from stateward._restoring import running
from stateward._restoring.paths import WORK
from stateward._restoring.planning import compare

OLD: dict[bytes, Any] = {
    b"a": b"old a", b"gone": b"gone", b"mode": b"#!", b"empty": b"", b"link": Link(b"a"), b"moved": Link(b"x"),
    b"lost": {b"inner": {b"deep": b"deep"}, b"x": b"x"},
    b"file to dir": b"was a file", b"dir to file": {b"one": b"1", b"two": {b"2": b"22"}}, b"dir to link": {b"q": b"q"},
    b"same": b"same", b"kept": {b"same": b"same"},
}  # fmt: skip
NEW: dict[bytes, Any] = {
    b"a": b"new a, longer", b"made": b"made", b"mode": b"#!", b"empty": b"full", b"link": b"no link",
    b"moved": Link(b"y"), b"fresh": {b"inner": {b"deep": b"deep", b"\xff": b"raw"}, b"none": {}},
    b"file to dir": {b"now": b"in a directory"}, b"dir to file": b"now a file", b"dir to link": Link(b"a"),
    b"same": b"same", b"kept": {b"same": b"same"}, b"large": os.urandom(700_000),
}  # fmt: skip
CHANGING = ("mkdir", "rename", "unlink", "rmdir", "symlink", "write", "fsync", "utime", "fchmod", "open")
"""The calls that change something, or come right before."""
MANY = 1 << 30


def doomed(left: list[int], call: Callable[..., Any]) -> Callable[..., Any]:
    """A call before which the process is killed, once `left` of all calls were made."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)

    return wrapped


class Case:
    """A directory with the old files, and a restore of the new ones."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.old, self.new = lay(place / "old", OLD), lay(place / "new", NEW, time_ns=1_600_000_000_000_000_000)
        (self.old / "mode").chmod(0o640)
        (self.old / "a").chmod(0o600)
        (self.new / "mode").chmod(0o755)
        self.before, self.after = listed(self.old), listed(self.new)
        self.chunks = self.before.chunks | self.after.chunks
        self.facts_before = facts(self.old)
        self.root = place / "root"

    def begin(self) -> None:
        """Puts the old files there."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.old, self.root, symlinks=True)

    def child(self, calls: int, again: bool | None = None) -> int | None:
        """Restores in a process that is killed before its call of this number. Returns how many it made; None = it was
        killed. `again` goes on with a restore: back or not."""
        path = os.fsencode(self.root)
        if again is None:
            journal = prepared(self.root, compare(listed(self.root).entries, self.after.entries))
            work = running.restore(path, journal)
        else:
            work = running.again(path, back=again)
        tell, told = os.pipe()
        if (pid := os.fork()) == 0:  # nothing here may return to pytest
            try:
                left, tell_it = [calls], os.write
                supported = os.supports_dir_fd
                for name in CHANGING:
                    setattr(os, name, doomed(left, getattr(os, name)))
                os.supports_dir_fd = supported | {os.open}
                drive(work, self.chunks)
                tell_it(told, b"%d" % (calls - left[0]))
                os._exit(0)
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
                os._exit(1)
        work.close()
        os.close(told)
        with os.fdopen(tell, "rb") as pipe:
            text = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, -signal.SIGKILL)
        return int(text) if code == 0 else None

    @property
    def is_unfinished(self) -> bool:
        """Whether a journal is there."""
        return (self.root / ".stateward-restore" / "journal").exists()

    def end(self, *, back: bool) -> None:
        """Finishes the restore, or takes it back, and checks that the files are exactly those."""
        if self.is_unfinished:
            drive(running.again(os.fsencode(self.root), back=back), self.chunks)
            assert facts(self.root) == (self.facts_before if back else self.facts_after)
        else:  # it was killed before it began, or after its end
            assert found(self.root) in (self.facts_before, self.facts_after)

    @property
    def facts_after(self) -> dict[bytes, Any]:
        """The new files as they are restored: they keep the modes of those that they take the place of."""
        wanted = facts(self.new)
        for path in (b"a", b"mode"):
            mode = {b"a": 0o100600, b"mode": 0o100750}[path]
            wanted[path] = (mode, *wanted[path][1:])
        return wanted


def found(root: Path) -> dict[bytes, Any]:
    """The facts of a directory, without what a restore leaves before it has a journal."""
    return {path: each for path, each in facts(root).items() if not path.startswith(WORK)}


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_a_restore_is_exact(case: Case) -> None:
    """It ends with exactly the files of the tree, and nothing else in the directory."""
    case.begin()
    assert case.child(MANY)
    assert facts(case.root) == case.facts_after


@pytest.mark.parametrize("back", [False, True], ids=["resumed", "undone"])
def test_killed_at_every_call(case: Case, back: bool) -> None:
    """Killed before any of its calls, a restore can be finished, or taken back."""
    case.begin()
    calls = case.child(MANY) or 0
    assert calls > 100
    unfinished = 0
    for number in range(calls):
        case.begin()
        assert case.child(number) is None
        unfinished += case.is_unfinished
        case.end(back=back)
    assert unfinished > 50


def test_killed_again(case: Case) -> None:
    """Kills of what goes on, and of what goes back, change nothing about that: however often it turns round."""
    rng = random.Random(1)
    for _ in range(60):
        case.begin()
        case.child(rng.randrange(40, 250))
        while case.is_unfinished and rng.randrange(5):
            case.child(rng.randrange(250), again=rng.random() < 0.5)
        case.end(back=rng.random() < 0.5)
