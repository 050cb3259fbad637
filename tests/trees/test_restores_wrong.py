"""The danger: a restore writes outside its root, deletes what nobody can bring back, or overwrites what changed
meanwhile."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.trees.ground import Listed, drive, facts, lay, listed, prepared, restored
from tests.trees.yard import Link

from stateward._restoring import running
from stateward._restoring.journal import Journal
from stateward._restoring.paths import WORK, listing, protected
from stateward._restoring.planning import compare
from stateward.errors import Corrupt, RestoreBlocked, RestoreUnfinished, WorkspaceChanged
from stateward.v1.workspace_pb2 import (
    TREE_ENTRY_KIND_DIRECTORY,
    TREE_ENTRY_KIND_FILE,
    TREE_ENTRY_KIND_SYMLINK,
    TreeEntry,
    TreeNode,
)

FILES: dict[bytes, Any] = {b"a": b"a", b"d": {b"f": b"in d"}}


def node(path: bytes, kind: Any = TREE_ENTRY_KIND_FILE, name: bytes | None = None) -> TreeNode:
    entry = TreeEntry(name=path.rpartition(b"/")[2] if name is None else name, kind=kind)
    entry.digest = bytes(32) if kind == TREE_ENTRY_KIND_DIRECTORY else b""
    entry.target = b"x" if kind == TREE_ENTRY_KIND_SYMLINK else b""
    return TreeNode(path=path, entry=entry)


@pytest.mark.parametrize(
    "nodes",
    [
        [node(b"..")],
        [node(b"../x")],
        [node(b"/etc/passwd")],
        [node(b"")],
        [node(b".")],
        [node(b"a//b")],
        [node(b"a\0b")],
        [node(b"n" * 256)],
        [node(b"n" * 4096)],
        [node(b"d", TREE_ENTRY_KIND_DIRECTORY), node(b"d/../../x")],
        [node(b"l", TREE_ENTRY_KIND_SYMLINK), node(b"l/x")],
        [node(b"missing/x")],
        [node(b"a"), node(b"a")],
        [node(b"a", name=b"b")],
        [node(b"a", 0)],
        [node(b"a", 9)],
    ],
)
def test_paths_that_no_tree_has(nodes: list[TreeNode]) -> None:
    """A listing with a path that could lead elsewhere is Corrupt as a whole."""
    with pytest.raises(Corrupt, match="nothing was written"):
        listing(nodes)


def test_git_is_never_written(tmp_path: Path) -> None:
    """Neither `.git` nor what is in it is made, replaced or deleted, in any spelling."""
    root = lay(tmp_path / "root", {b".git": {b"HEAD": b"mine"}, b"sub": {b".git": b"gitdir: x"}})
    wanted = lay(tmp_path / "new", {b".git": {b"HEAD": b"theirs", b"hooks": {b"evil": b"#!"}}, b"x": {b".GIT": b"y"}})
    compared = compare(listed(root).entries, listed(wanted).entries)
    assert {change.path for change in compared.changes} <= {b"sub", b"x"}
    assert set(compared.omitted) == {b".git", b"x/.GIT"}
    before = facts(root / ".git")
    restored(root, listed(wanted))
    assert facts(root / ".git") == before
    assert (root / "sub/.git").read_bytes() == b"gitdir: x"
    assert protected(b"a/.stateward-restore-7")


def test_what_is_left_out_stays(tmp_path: Path) -> None:
    """What rules leave out is neither deleted nor replaced, and its directories stay."""
    root = lay(
        tmp_path / "root",
        {b"build": {b"out": b"1"}, b"gone": {b"cache": {b"x": b"x"}, b"file": b"f"}, b".env": b"secret", b"old": b""},
    )
    wanted = listed(lay(tmp_path / "new", {b"build": b"a file now", b".env": b"theirs", b"new": b"n"}))
    now = listed(root)
    for path in (b"build", b"build/out", b"gone/cache", b"gone/cache/x", b".env"):
        del now.entries[path]
    compared = compare(now.entries, wanted.entries, ignored=[b"build", b"gone/cache", b".env"])
    assert {change.path: change.action for change in compared.changes} == {
        b"gone/file": "delete",
        b"old": "delete",
        b"new": "make",
    }
    assert compared.omitted == (b".env", b"build")
    done = drive(running.restore(os.fsencode(root), prepared(root, compared)), wanted.chunks)
    assert (done.made, done.replaced, done.deleted) == (1, 0, 2)
    kept = {b"build", b"build/out", b"gone", b"gone/cache", b"gone/cache/x", b".env", b"new"}
    assert facts(root).keys() == kept
    assert (root / ".env").read_bytes() == b"secret"


def test_a_file_in_the_place_of_what_is_kept(tmp_path: Path) -> None:
    """A directory that holds something that is kept does not give its place to a file."""
    root = lay(tmp_path / "root", {b"d": {b"kept": b"k", b"f": b"f"}})
    wanted = listed(lay(tmp_path / "new", {b"d": b"a file"}))
    now = listed(root)
    del now.entries[b"d/kept"]
    assert compare(now.entries, wanted.entries, ignored=[b"d/kept"]).blocked == (b"d",)


def test_special_files_stay(tmp_path: Path) -> None:
    """A FIFO and a socket are not deleted, and nothing takes their place without being told."""
    root = lay(tmp_path / "root", {b"a": b"a"})
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "s"))
        wanted = listed(lay(tmp_path / "new", {b"fifo": b"file", b"s": b"file", b"a": b"new"}))
        with pytest.raises(WorkspaceChanged):
            restored(root, wanted)
        assert (root / "a").read_bytes() == b"a"
        restored(root, wanted, unheld=[b"fifo", b"s"])
    assert (root / "a").read_bytes() == b"new"
    assert (root / "fifo").is_fifo()
    assert (root / "s").is_socket()


def test_changed_since_the_plan(tmp_path: Path) -> None:
    """A file that was changed, made or deleted after the plan stops the restore before anything is written."""
    wanted = listed(lay(tmp_path / "new", {b"a": b"new", b"fresh": b"f", b"d": {b"f": b"2"}}))

    def edit(root: Path) -> None:
        (root / "a").write_bytes(b"mine")

    def edit_with_the_same_time(root: Path) -> None:
        at = (root / "a").stat().st_mtime_ns
        (root / "a").write_bytes(b"b")
        os.utime(root / "a", ns=(at, at))

    def make(root: Path) -> None:
        (root / "fresh").write_bytes(b"mine")

    def delete(root: Path) -> None:
        (root / "d/f").unlink()

    for number, change in enumerate((edit, edit_with_the_same_time, make, delete)):
        root = lay(tmp_path / f"root{number}", FILES)
        journal = prepared(root, compare(listed(root).entries, wanted.entries))
        change(root)
        before = facts(root)
        with pytest.raises(WorkspaceChanged, match="nothing was written; plan again"):
            drive(running.restore(os.fsencode(root), journal), wanted.chunks)
        assert facts(root) == before


def test_changed_in_the_middle(tmp_path: Path) -> None:
    """A file that changes while the restore runs is not overwritten, and the rest can be taken back or finished."""
    old = {b"%03d" % number: b"old %d" % number for number in range(300)}
    wanted = listed(lay(tmp_path / "new", {name: b"new" + name for name in old}))
    root = lay(tmp_path / "root", old)
    before = facts(root)
    work = running.restore(os.fsencode(root), prepared(root, compare(listed(root).entries, wanted.entries)))
    chunks = next(work)
    (root / "005").write_bytes(b"mine")
    with pytest.raises(WorkspaceChanged, match=r"'005' changed.*take it back, or resume it") as caught:
        work.send([wanted.chunks[each.digest] for each in chunks])
    assert caught.value.path == "005"
    assert (root / "005").read_bytes() == b"mine"
    with pytest.raises(RestoreUnfinished, match="was not finished"):
        restored(root, wanted)
    with pytest.raises(WorkspaceChanged, match="nothing was written; move it away"):
        drive(running.again(os.fsencode(root), back=True), wanted.chunks)
    everything = wanted.chunks | listed(lay(tmp_path / "old", old)).chunks
    done = drive(running.again(os.fsencode(root), back=True, keep_changed=True), everything)
    assert done.kept == [b"005"]
    assert (root / "005").read_bytes() == b"mine"
    (root / "005").unlink()
    assert facts(root) == {path: each for path, each in before.items() if path != b"005"}


def test_something_was_put_into_a_directory_that_goes(tmp_path: Path) -> None:
    """A directory into which somebody puts a file meanwhile stays, with the file."""
    wanted = listed(lay(tmp_path / "new", {b"a": b"new"}))
    root = lay(tmp_path / "root", FILES)
    work = running.restore(os.fsencode(root), prepared(root, compare(listed(root).entries, wanted.entries)))
    chunks = next(work)
    (root / "d/mine").write_bytes(b"mine")
    with pytest.raises(StopIteration) as stop:
        work.send([wanted.chunks[each.digest] for each in chunks])
    assert stop.value.value.kept == [b"d"]
    assert facts(root).keys() == {b"a", b"d", b"d/mine"}


@pytest.mark.parametrize("moment", ["before", "during"])
def test_a_symlink_is_swapped_in(tmp_path: Path, moment: str) -> None:
    """A symlink in the place of a directory leads nowhere: nothing outside is made, replaced or deleted."""
    outside = lay(tmp_path / "outside", {b"f": b"outside", b"kept": b"k"})
    before = facts(outside)
    wanted = listed(lay(tmp_path / "new", {b"a": b"new", b"d": {b"f": b"new", b"fresh": b"n"}}))
    root = lay(tmp_path / "root", {b"a": b"a", b"d": {b"f": b"in d", b"kept": b"k"}})

    def swap() -> None:
        (root / "d").rename(tmp_path / "away")
        (root / "d").symlink_to(outside)

    compared = compare(listed(root).entries, wanted.entries)
    if moment == "before":
        swap()
        with pytest.raises(WorkspaceChanged, match="symlink"):
            prepared(root, compared)
    else:
        work = running.restore(os.fsencode(root), prepared(root, compared))
        chunks = next(work)
        swap()
        with pytest.raises(WorkspaceChanged, match="symlink"):
            work.send([wanted.chunks[each.digest] for each in chunks])
        for back in (False, True):
            with pytest.raises(WorkspaceChanged):
                drive(running.again(os.fsencode(root), back=back), wanted.chunks)
    assert facts(outside) == before


def test_the_root_is_a_symlink(tmp_path: Path) -> None:
    """A root that became a symlink is refused by the system."""
    root = lay(tmp_path / "root", FILES)
    (tmp_path / "link").symlink_to(root)
    with pytest.raises(OSError, match="link") as caught:
        running.look(os.fsencode(tmp_path / "link"), [])
    assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR)


def test_the_journal_is_a_symlink(tmp_path: Path) -> None:
    """A symlink in the place of the journal's directory is an error, and what it leads to stays empty."""
    outside = lay(tmp_path / "outside", {})
    root = lay(tmp_path / "root", FILES)
    (root / ".stateward-restore").symlink_to(outside)
    with pytest.raises(WorkspaceChanged):
        restored(root, listed(lay(tmp_path / "new", {b"a": b"new"})))
    assert facts(outside) == {}
    assert (root / "a").read_bytes() == b"a"


def test_symlinks_are_made_and_not_followed(tmp_path: Path) -> None:
    """Symlinks to anywhere are restored as they are; a file that takes the place of one leaves its target alone."""
    outside = lay(tmp_path / "outside", {b"f": b"outside"})
    target = os.fsencode(outside / "f")
    root = lay(tmp_path / "root", {b"link": Link(target)})
    links = {b"slash": Link(b"/"), b"self": Link(b"self"), b"up": Link(b"../../.."), b"out": Link(target)}
    wanted = lay(tmp_path / "new", {b"link": b"a file", **links})
    restored(root, listed(wanted))
    assert facts(root) == facts(wanted)
    assert (outside / "f").read_bytes() == b"outside"


def test_no_bits_but_those_of_reading_writing_and_execution(tmp_path: Path) -> None:
    """A restored file has neither setuid nor setgid, and a private one stays private."""
    modes = {b"s": (0o6755, 0o755, 0o755), b"u": (0o6755, 0o644, 0o644), b"p": (0o600, 0o644, 0o600),
             b"x": (0o640, 0o755, 0o750)}  # fmt: skip
    root = lay(tmp_path / "root", dict.fromkeys(modes, b"old"))
    new = lay(tmp_path / "new", dict.fromkeys(modes, b"new"))
    for name, (before, of_version, _) in modes.items():
        (root / name.decode()).chmod(before)
        (new / name.decode()).chmod(of_version)
    restored(root, listed(new))
    assert {name: (root / name.decode()).stat().st_mode & 0o7777 for name in modes} == {
        name: after for name, (_, _, after) in modes.items()
    }


def test_hard_links_are_not_written_through(tmp_path: Path) -> None:
    """A file that has another name outside is replaced and not changed, also if only its bits or time differ."""
    outside = lay(tmp_path / "outside", {b"f": b"same", b"g": b"old"})
    root = tmp_path / "root"
    root.mkdir()
    (outside / "f").chmod(0o644)
    os.link(outside / "f", root / "f")
    os.link(outside / "g", root / "g")
    before = facts(outside)
    new = lay(tmp_path / "new", {b"f": b"same", b"g": b"new"}, time_ns=5_000_000_000)
    (new / "f").chmod(0o755)
    restored(root, listed(new))
    assert facts(outside) == before
    assert facts(root) == facts(new)


def test_names_that_differ_in_case(tmp_path: Path) -> None:
    """Names that differ only in case, or are raw bytes of 255, are files of their own."""
    new = lay(tmp_path / "new", {b"A": b"1", b"a": b"2", b"\xff" * 255: b"3", b"n\n": b"4", b"-rf *": {b" ": b"5"}})
    root = tmp_path / "root"
    root.mkdir()
    restored(root, listed(new))
    assert facts(root) == facts(new)


def test_deep_paths(tmp_path: Path) -> None:
    """A path longer than the system takes in one call is made, and deleted, directory by directory."""
    path = b"/".join([b"d" * 100] * 60)
    parts = path.split(b"/")
    nodes = [node(b"/".join(parts[:depth]), TREE_ENTRY_KIND_DIRECTORY) for depth in range(1, 61)]
    wanted = listing([*nodes, node(path + b"/empty")])
    root = tmp_path / "root"
    root.mkdir()
    changes = compare({}, wanted).changes
    drive(running.restore(os.fsencode(root), Journal({}, running.look(os.fsencode(root), changes))), {})
    assert sum(1 for _ in os.fwalk(root)) == 61
    changes = compare(wanted, {}).changes
    drive(running.restore(os.fsencode(root), Journal({}, running.look(os.fsencode(root), changes))), {})
    assert facts(root) == {}


def test_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk stops a restore with an error that says what to do; with room again it is finished, or taken back."""
    old = {b"%03d" % number: b"old %d" % number for number in range(300)}
    wanted = listed(lay(tmp_path / "new", {name: b"new" + name for name in old}))
    chunks = wanted.chunks | listed(lay(tmp_path / "old", old)).chunks
    real = os.write
    for back in (False, True):
        root, left = lay(tmp_path / f"root{back}", old), 200
        before = facts(root)

        def write(file: int, data: Any) -> int:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(file, data)

        with monkeypatch.context() as patched:
            patched.setattr(os, "write", write)
            with pytest.raises(RestoreUnfinished, match="can be resumed or taken back"):
                restored(root, wanted)
        assert (root / "000").read_bytes() == b"new000"
        assert (root / "299").read_bytes() == b"old 299"
        drive(running.again(os.fsencode(root), back=back), chunks)
        assert facts(root) == (before if back else facts(tmp_path / "new"))


def test_no_room_for_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the journal cannot be written, nothing is changed and nothing is left."""
    root, before = lay(tmp_path / "root", FILES), facts(tmp_path / "root")

    def fsync(_file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    wanted = listed(lay(tmp_path / "new", {b"a": b"new"}))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            restored(root, wanted)
    assert {path: each for path, each in facts(root).items() if not path.startswith(WORK)} == before
    restored(root, wanted)


def test_a_chunk_has_other_bytes(tmp_path: Path) -> None:
    """Bytes that are not those of the digest are never put in place."""
    root = lay(tmp_path / "root", FILES)
    wanted = listed(lay(tmp_path / "new", {b"a": b"new"}))
    with pytest.raises(RestoreUnfinished, match="other bytes than its digest says"):
        restored(root, Listed(wanted.entries, dict.fromkeys(wanted.chunks, b"bad")))
    assert (root / "a").read_bytes() == b"a"
    drive(running.again(os.fsencode(root), back=True), {})
    assert (root / "d/f").exists()


def test_two_at_once(tmp_path: Path) -> None:
    """While one restore runs, another is refused, also one that goes on with it."""
    root = lay(tmp_path / "root", FILES)
    wanted = listed(lay(tmp_path / "new", {b"a": b"new"}))
    work = running.restore(os.fsencode(root), prepared(root, compare(listed(root).entries, wanted.entries)))
    chunks = next(work)
    with pytest.raises(RestoreUnfinished, match="another process"):
        restored(root, wanted)
    with pytest.raises(RestoreUnfinished, match="another process"):
        drive(running.again(os.fsencode(root), back=True), {})
    with pytest.raises(StopIteration):
        work.send([wanted.chunks[each.digest] for each in chunks])
    with pytest.raises(RestoreUnfinished, match="no restore"):
        drive(running.again(os.fsencode(root), back=True), {})


def test_a_damaged_journal(tmp_path: Path) -> None:
    """A journal that was cut off, or leads out of the root, is Corrupt, and nothing is changed."""
    root = lay(tmp_path / "root", FILES)
    before = facts(root)
    place = root / ".stateward-restore"
    head = '{"format": 1, "changes": 1}\n'
    for text in (
        "", "{}", "[]", "\xff", '{"format": 2, "changes": 0}', head + '["YQ==",null,null,null,null]\n[]', head + "[]",
        head + '["Li4=",null,null,null,null]', head + '["LmdpdA==",null,null,null,null]',
        head + '["YQ==","????",null,null,null]', head + '["YQ==","/w==",null,null,null]',
    ):  # fmt: skip
        place.mkdir()
        (place / "journal").write_text(text, encoding="latin-1")
        with pytest.raises(Corrupt):
            drive(running.again(os.fsencode(root), back=False), {})
        shutil.rmtree(place)
    assert facts(root) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_read_only_directory() -> None:
    """A directory that this user may not write into is named before anything is written."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o755)
        root = lay(Path(place, "root"), FILES)
        wanted = listed(lay(Path(place, "new"), {b"a": b"new", b"d": {b"f": b"new"}}))
        compared = compare(listed(root).entries, wanted.entries)
        for path in (root, root / "d"):
            path.chmod(0o755)
        os.chown(root, 12345, 12345)
        before = facts(root)
        os.seteuid(12345)
        try:
            with pytest.raises(RestoreBlocked, match="may not write into d; nothing was written") as caught:
                prepared(root, compared)
        finally:
            os.seteuid(0)
        assert caught.value.path == "d"
        assert facts(root) == before
