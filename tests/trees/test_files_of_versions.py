"""The danger: a client shows other files than a version has, or writes others, or cannot say why it does not."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from tests.trees.ground import facts, lay, listed
from tests.trees.yard import Link, TreeWire, grown, make

from stateward import AsyncClient, Client
from stateward.errors import Corrupt, InvalidField, RestoreBlocked, RestoreUnfinished, VersionNotFound
from stateward.restores import Restored

OLD: dict[bytes, Any] = {b"a": b"1", b"d": {b"f": b"in d", b"g": b""}, b"gone": b"x", b"l": Link(b"a"), b"t": b"file"}
NEW: dict[bytes, Any] = {b"a": b"2", b"d": {b"f": b"in d", b"new": b"n"}, b"l": Link(b"d"), b"t": {b"now": b"dir"}}


@pytest.fixture
def client(yard: TreeWire) -> Any:
    with yard.daemon.client() as opened:
        yield opened


def test_lists_files_and_differences(yard: TreeWire, client: Client) -> None:
    """Each is what the version names; a directory and a level of it can be listed alone."""
    yard.keep(make(OLD))
    yard.keep(make(NEW), 1)
    found = client.thread("t").trees
    assert list(found.list(1)) == [b"a", b"d", b"d/f", b"d/g", b"gone", b"l", b"t"]
    assert list(found.list(1, "d")) == [b"d/f", b"d/g"]
    assert list(found.list(depth=1)) == [b"a", b"d", b"l", b"t"]
    assert (found.list(1)[b"d"].kind, found.list(1)[b"l"].target) == ("directory", b"a")
    assert (found.read("a", 1), found.read(b"a"), found.read("d/g", 1)) == (b"1", b"2", b"")
    changes = {each.path: each for each in found.diff(1, 2)}
    assert {path: each.action for path, each in changes.items()} == {
        b"a": "replace", b"d/g": "delete", b"d/new": "make", b"gone": "delete", b"l": "replace", b"t": "replace",
        b"t/now": "make",
    }  # fmt: skip
    assert changes[b"t"].before is not None
    assert changes[b"t"].after is not None
    assert (changes[b"t"].before.kind, changes[b"t"].after.kind) == ("file", "directory")
    assert len(found.diff(None, 1)) == 7
    assert found.diff(2) == ()


def test_wrong_names(yard: TreeWire, client: Client) -> None:
    """A file or version that is not there, and a version without a tree, are typed errors."""
    yard.keep(make(OLD))
    client.thread("t").append("l", 1)
    found = client.thread("t").trees
    for path in ("no", "d", "l", "a/x", "../a", "/a", "", "d/../a", "n" * 300):
        with pytest.raises(InvalidField):
            found.read(path, 1)
    with pytest.raises(InvalidField):
        found.list(2)
    with pytest.raises(InvalidField):
        found.diff(1, 2)
    with pytest.raises(VersionNotFound):
        found.list(9)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_copy_is_exact(yard: TreeWire, client: Client, tmp_path: Path, seed: int) -> None:
    """All files of a version come into an empty directory as they were, with names of any bytes and large files."""
    tree = grown(seed, 120, large=True)
    yard.keep(make(tree))
    there = lay(tmp_path / "there", tree, time_ns=1_700_000_000_000_000_000)
    done = client.thread("t").trees.fork_into(tmp_path / "copy")
    assert facts(tmp_path / "copy") == facts(there)
    assert done == Restored(len(facts(there)), 0, 0, ())


def test_a_copy_is_exact_with_asyncio(yard: TreeWire, tmp_path: Path) -> None:
    """The same, with the other client."""
    tree = grown(3, 60, large=True)
    yard.keep(make(tree))

    async def run() -> None:
        async with AsyncClient(yard.daemon.target) as client:
            found = client.thread("t").trees
            assert len(await found.list()) > 40
            await found.fork_into(tmp_path / "copy")
            assert await found.diff(1, 1) == ()

    asyncio.run(run())
    assert facts(tmp_path / "copy") == facts(lay(tmp_path / "there", tree, time_ns=1_700_000_000_000_000_000))


def test_a_directory_with_something_in_it(yard: TreeWire, client: Client, tmp_path: Path) -> None:
    """A copy goes into no directory that has anything in it, and into no file."""
    yard.keep(make(OLD))
    place = lay(tmp_path / "place", {b"mine": b"m"})
    with pytest.raises(RestoreBlocked, match="not empty: it has 'mine'; nothing was written"):
        client.thread("t").trees.fork_into(place)
    with pytest.raises(OSError, match="directory"):
        client.thread("t").trees.fork_into(place / "mine")
    assert listed(place).entries.keys() == {b"mine"}


def test_the_disk_is_full(
    yard: TreeWire, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says so, and names the file."""
    yard.keep(make({b"large": os.urandom(700_000), b"small": b"s"}))
    real, left = os.write, 2

    def write(file: int, data: Any) -> int:
        nonlocal left
        if len(data) > 1000:
            left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        with pytest.raises(RestoreUnfinished, match=r"large: .*No space left"):
            client.thread("t").trees.fork_into(tmp_path / "copy")


def test_a_daemon_that_lies(yard: TreeWire, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths that lead elsewhere, and bytes that are not those of their digest, are Corrupt, and nothing is written."""
    from stateward._operations import trees

    yard.keep(make(OLD))
    real = trees.ObjectsReader.take
    monkeypatch.setattr(trees.ObjectsReader, "take", lambda *given: [b"?" * len(each) for each in real(*given)])
    with pytest.raises(Corrupt, match="other bytes"):
        client.thread("t").trees.read("a")
    with pytest.raises(RestoreUnfinished, match="other bytes"):
        client.thread("t").trees.fork_into(tmp_path / "copy")
    assert [path for path in listed(tmp_path / "copy").entries if path == b"a"] == []
