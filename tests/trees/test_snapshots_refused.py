"""The danger: a snapshot of a whole machine or of secrets, one that hangs or leaves its directory, or other cuts than
those of other clients."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.trees.ground import lay
from tests.trees.workdirs import EVERYTHING, in_thread, keep, on_disk, opened
from tests.trees.yard import Link, TreeWire

from stateward import Client, Rules, WorkspaceRefused
from stateward._workspace import chunking, ignoring, objects, walking
from stateward._workspace.chunking import cut
from stateward._workspace.index import Index
from stateward._workspace.root import Root, find_root
from stateward._workspace.walking import Walk
from stateward.testing import Daemon


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> None:
    """A cache directory of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def walked(root: Path, rules: Rules | None = None) -> Walk:
    """A walk without a daemon."""
    opened_root = Root(os.fsencode(root))
    walk = Walk(opened_root, rules or Rules(), Index())
    try:
        walk.look()
        for _ in walk.contents():
            pass
        list(walk.make())
    finally:
        opened_root.close()
    return walk


def names(walk: Walk) -> set[bytes]:
    """The paths of everything that a walk has."""
    found = set()
    for place in walk.places:
        if place.made is not None and place.path:
            found.add(place.path)
        found |= {place.path + b"/" + name if place.path else name for name in place.rows}
    return found


def left_out(walk: Walk) -> dict[bytes, str]:
    return {each.path: each.reason for each in walk.left_out}


# -- what is no workspace ----------------------------------------------------------------------------------------------


def test_directories_that_nobody_means_are_refused(tmp_path, monkeypatch, daemon: Daemon):
    """Before anything is read, in one line that names them; `force` takes them."""
    home = tmp_path / "home" / "me"
    data = home / ".local/share/stateward"
    data.mkdir(parents=True)
    (home / "app").mkdir()
    (tmp_path / "link").symlink_to(home)
    monkeypatch.setenv("HOME", str(home))
    with Client(daemon.target) as client:
        thread = client.thread("t")
        wrong = {
            Path("/"): "home", home: "home", tmp_path: "home", tmp_path / "link": "home", home / "app/..": "home",
            home / ".local": "daemon", data: "daemon", Path("/proc/self"): "system", Path("/sys"): "system",
            daemon.data_dir.parent: "daemon",
        }  # fmt: skip
        for path, limit in wrong.items():
            with pytest.raises(WorkspaceRefused) as found:
                thread.workspace(path)
            assert (found.value.limit, "\n" in str(found.value)) == (limit, False), path
            if limit != "system":
                assert thread.workspace(path, Rules(force=True)).root == os.path.realpath(path)
        assert thread.workspace(home / "app").root == str(home / "app")
        with pytest.raises(WorkspaceRefused, match="is no directory"):
            thread.workspace(tmp_path / "no such directory")
        with pytest.raises(TypeError, match="rules"):
            thread.workspace(home / "app", {"gitignore": True})


@pytest.mark.parametrize(
    ("rules", "limit"),
    [
        (Rules(max_files=4), "max_files"),
        (Rules(max_bytes="29 B"), "max_bytes"),
        (Rules(max_file_bytes=9), "max_file_bytes"),
    ],
)
def test_more_than_the_rules_allow_is_refused(tmp_path, rules, limit):
    root = lay(tmp_path / "app", {b"a": b"x" * 10, b"b": b"x" * 10, b"d": {b"c": b"x" * 10, b"e": b""}})
    with pytest.raises(WorkspaceRefused) as found:
        walked(root, rules)
    assert found.value.limit == limit
    walked(root, Rules(max_files=5, max_bytes=30, max_file_bytes=10))


def test_a_directory_of_a_million_names_is_refused_early(tmp_path, monkeypatch):
    """After 200,001 of them: the rest is not even listed. Names without files play them."""
    listed = 0

    class Item:
        name = "f"

        def is_dir(self, *, follow_symlinks: bool) -> bool:
            return False

        def stat(self, *, follow_symlinks: bool) -> os.stat_result:
            return file

    class Names:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def __iter__(self):
            nonlocal listed
            for listed in range(1, 1_000_001):  # noqa: B007
                yield Item()

    (tmp_path / "app").mkdir()
    (tmp_path / "f").touch()
    file = (tmp_path / "f").stat()
    monkeypatch.setattr(os, "scandir", lambda _: Names())
    with pytest.raises(WorkspaceRefused, match="200,000"):
        walked(tmp_path / "app")
    assert listed == 200_001


@pytest.mark.parametrize("wrong", ["2 bushels", "", "-1", "GiB"])
def test_sizes_that_are_none_are_refused(wrong):
    with pytest.raises(ValueError, match="max_bytes"):
        Rules(max_bytes=wrong)
    assert Rules(max_bytes="2 GiB").max_bytes == 2 << 30


# -- what is left out --------------------------------------------------------------------------------------------------


def test_what_is_left_out_is_named(tmp_path):
    tree = {
        b".git": {b"HEAD": b"x"}, b"node_modules": {b"a": b"x"}, b"sub": {b".venv": {b"a": b"x"}, b"id_map.py": b"x"},
        b".env": b"KEY=1", b".env.local": b"KEY=1", b"server.pem": b"x", b"id_rsa": b"x", b"id_ed25519.pub": b"x",
        b"main.py": b"x", b".stateward-restore": {b"journal": b"x"},
    }  # fmt: skip
    walk = walked(lay(tmp_path / "app", tree))
    assert names(walk) == {b"main.py", b"sub", b"sub/id_map.py"}
    found = left_out(walk)
    assert set(found) == {
        b".git/", b"node_modules/", b"sub/.venv/", b".env", b".env.local", b"server.pem", b"id_rsa", b"id_ed25519.pub",
    }  # fmt: skip
    assert found[b".git/"] == "rule .git"
    assert "secrets" in found[b".env"]


def test_files_of_rules(tmp_path):
    """The nearest rule counts, `!` takes back, `.statewardignore` counts more than `.gitignore`, which must be asked
    for, and a name of raw bytes is matched."""
    tree = {
        b".gitignore": b"*.log\n/build/\n*.tmp\n", b".statewardignore": b"!kept.log\nonly.txt\n",
        b"a.log": b"x", b"kept.log": b"x", b"only.txt": b"x", b"b\xff.tmp": b"x",
        b"build": {b"o": b"x"}, b"sub": {b".gitignore": b"!deep.log\n", b"deep.log": b"x", b"other.log": b"x",
        b"build": {b"o": b"x"}},
    }  # fmt: skip
    root = lay(tmp_path / "app", tree)
    everything = set(on_disk(root))
    assert names(walked(root)) == everything - {b"only.txt"}
    walk = walked(root, Rules(gitignore=True))
    gone = {b"only.txt", b"a.log", b"b\xff.tmp", b"build", b"build/o", b"sub/other.log"}
    assert names(walk) == everything - gone
    assert left_out(walk)[b"a.log"] == "rule of .gitignore"
    assert set(left_out(walk)) == (gone - {b"build", b"build/o"}) | {b"build/"}


@pytest.mark.parametrize("rules", [b"a\n" * 100_000, b"*a*a*a*a*a*a*a*b\n", b"x" * (ignoring.FILE_BYTES_MAX + 1)])
def test_rules_that_take_for_ever_are_refused(tmp_path, rules):
    root = lay(tmp_path / "app", {b".statewardignore": rules, b"a" * 250: b"x"})
    with pytest.raises(WorkspaceRefused, match=r"\.statewardignore"):
        walked(root)


def test_what_is_no_file_is_left_out(tmp_path):
    """Nothing waits for a FIFO, and no symlink is followed, also if it leads to the root itself."""
    root = lay(tmp_path / "app", {b"d": {b"f": b"x"}, b"up": Link(b".."), b"self": Link(b"."), b"out": Link(b"/")})
    os.mkfifo(root / "fifo")
    os.mkfifo(root / ".statewardignore")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(root / "socket"))
        walk = walked(root)
    assert names(walk) == {b"d", b"d/f", b"up", b"self", b"out"}
    assert set(left_out(walk)) == {b"fifo", b"socket", b".statewardignore"}


def test_a_symlink_that_takes_the_place_of_a_directory_leads_nowhere(tmp_path, monkeypatch):
    """It is swapped in after the directory was listed: what is behind it is not read."""
    secret = lay(tmp_path / "secret", {b"f": b"canary"})
    root = lay(tmp_path / "app", {b"d": {b"f": b"x"}})
    with_root = Root(os.fsencode(root))
    walk = Walk(with_root, EVERYTHING, Index())
    walk.look()
    (root / "d").rename(tmp_path / "moved")
    (root / "d").symlink_to(secret)
    assert b"canary" not in b"".join(data for batch in walk.contents() for data in batch.values())
    list(walk.make())
    with_root.close()
    assert names(walk) == set()
    assert set(left_out(walk)) == {b"d/"}


def test_a_thousand_directories_in_each_other(tmp_path):
    """What lies too deep for the daemon is left out, and named."""
    root = tmp_path / "app"
    root.mkdir()
    start = Path.cwd()
    try:
        os.chdir(root)
        for _ in range(1000):
            Path("d").mkdir()
            os.chdir("d")
    finally:
        os.chdir(start)
    walk = walked(root)
    assert len(names(walk)) == 256
    assert [path.count(b"/") for path in left_out(walk)] == [257]
    subprocess.run(["rm", "-rf", root], check=True)


def test_the_daemon_takes_the_deepest_tree(daemon, yard: TreeWire, tmp_path):
    root = tmp_path / "app"
    (root / "/".join("d" * 256)).mkdir(parents=True)
    with opened(daemon.target) as thread:
        _, version = keep(thread, root)
        assert in_thread(yard, version) == on_disk(root)


def test_names_that_differ_in_case_only_are_told(tmp_path):
    tree = {b"a": b"x", b"A": b"x", b"d": {"Straße".encode(): b"", b"STRASSE": b""}}
    walk = walked(lay(tmp_path / "app", tree))
    assert len(walk.collisions) == 2
    assert len(names(walk)) == 5


# -- whose snapshot ----------------------------------------------------------------------------------------------------


def test_a_snapshot_belongs_to_its_thread(daemon, yard, tmp_path):
    root = lay(tmp_path / "app", {b"f": b"x"})
    with Client(daemon.target) as client:
        taken = client.thread("t").workspace(root).snapshot()
        other = client.thread("u")
        with pytest.raises(ValueError, match="'t'"):
            other.save(other.hydrate(), workspace=taken)
        with pytest.raises(TypeError, match="snapshot"):
            other.save(other.hydrate(), workspace=root)


def test_a_save_without_a_snapshot_names_no_files(daemon, yard, tmp_path):
    root = lay(tmp_path / "app", {b"f": b"x"})
    with opened(daemon.target) as thread:
        taken, _ = keep(thread, root)
        assert thread.save(thread.hydrate()).workspace is None
        assert [each.workspace for each in thread.checkpoints.list()] == [None, taken.tree]


def test_the_reading_is_surrounded(daemon, yard, tmp_path):
    """`freeze` begins before the first file is listed, and ends after the last one is read."""
    root = lay(tmp_path / "app", {b"f": b"x"})
    events = list[str]()

    class Frozen:
        def __enter__(self) -> None:
            events.append("begin")
            (root / "late").write_bytes(b"x")

        def __exit__(self, *_: object) -> None:
            events.append("end")

    with opened(daemon.target) as thread:
        assert thread.workspace(root).snapshot(freeze=Frozen).files == 2
    assert events == ["begin", "end"]


def test_only_a_part_of_the_bytes_is_held(tmp_path):
    """However many files there are, and however large they are: the chunks come in batches of about 16 MiB."""
    root = tmp_path / "app"
    root.mkdir()
    rng = random.Random(1)
    (root / "large").write_bytes(rng.randbytes(40 << 20))
    for number in range(120):
        (root / f"f{number}").write_bytes(rng.randbytes(200 * KIB))
    opened_root = Root(os.fsencode(root))
    walk = Walk(opened_root, Rules(), Index())
    walk.look()
    sizes = [sum(map(len, batch.values())) for batch in walk.contents()]
    opened_root.close()
    assert sum(sizes) == walk.read_bytes == (40 << 20) + 120 * 200 * KIB
    assert max(sizes) < walking.BATCH_BYTES + objects.CHUNK_BYTES_MAX
    assert len(sizes) >= 4


# -- cuts --------------------------------------------------------------------------------------------------------------

GEAR = [int.from_bytes(hashlib.md5(bytes([number]) * 64).digest()[:8]) for number in range(256)]
HARD, EASY = 0x0000D91707537000, 0x0000D90703537000
KIB = 1 << 10


def plain_cuts(data: bytes) -> list[int]:
    """The sizes of the chunks by FastCDC of 2020 as its paper has it, one byte at a time: 64 KiB, 256 KiB, 1 MiB, and
    masks of 19 and 17 bits."""
    sizes, begin = list[int](), 0
    while len(data) - begin > 64 * KIB:
        left = min(len(data) - begin, 1024 * KIB)
        center, print_ = min(256 * KIB, left), 0
        for at in range(64 * KIB, left):
            print_ = ((print_ << 1) + GEAR[data[begin + at]]) & 0xFFFFFFFFFFFFFFFF
            if not print_ & (HARD if at < center else EASY):
                left = at
                break
        sizes.append(left)
        begin += left
    return [*sizes, len(data) - begin] if begin < len(data) else sizes


def test_files_are_cut_where_the_page_of_the_protocol_says():
    """The library has the gear table, the masks and the sizes of the page."""
    import io

    data = random.Random(3).randbytes(3_000_000) + bytes(1_200_000)
    sizes = [len(each) for each in cut(io.BytesIO(data))]
    assert sizes == plain_cuts(data)
    assert len(sizes) > 8
    assert max(sizes) == chunking.CHUNK_BYTES_MAX == objects.CHUNK_BYTES_MAX
    assert b"".join(cut(io.BytesIO(data))) == data


def test_a_system_that_is_no_unix_says_so():
    """The modules are imported there; a workspace is an error with a name."""
    played = (
        "import os, pathlib, sys, grpc\n"
        "for name in ('O_NOFOLLOW', 'O_DIRECTORY', 'O_NONBLOCK', 'O_CLOEXEC', 'geteuid', 'fchmod'): delattr(os, name)\n"
        "import stateward\n"
        "try: stateward.Client('localhost:1').thread('t').workspace('.')\n"
        "except stateward.WorkspaceRefused as error: print(error.limit)\n"
    )
    done = subprocess.run([sys.executable, "-c", played], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "system", done.stderr


def test_find_root_takes_what_is_no_text(tmp_path):
    assert find_root(tmp_path, [], force=False) == os.fsencode(tmp_path)
