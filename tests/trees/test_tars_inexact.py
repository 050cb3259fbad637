"""The danger: files that travel as a tar come back as others, or a tar that is cut off or hostile becomes a version."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trees.ground import lay
from tests.trees.workdirs import EVERYTHING, on_disk
from tests.trees.yard import grown

from stateward import Client, Rules, Thread
from stateward.errors import WorkspaceRefused
from stateward.testing import Daemon


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def thread(daemon: Daemon) -> Iterator[Thread]:
    with Client(daemon.target) as client:
        yield client.thread("t")


def packed(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("seed", range(4))
def test_out_and_in_again(thread: Thread, tmp_path: Path, seed: int) -> None:
    """The tree is the same, to the byte and the nanosecond; Python and `tar` unpack what lies on the disk."""
    root = lay(tmp_path / "app", grown(seed, 60, large=True))
    (root / ("n" * 200)).mkdir()
    (root / ("n" * 200) / ("m" * 250)).write_bytes(b"long")
    os.utime(root / ("n" * 200) / ("m" * 250), ns=(-1_500_000_001, -1_500_000_001))
    (root / "run").write_bytes(b"#!")
    (root / "run").chmod(0o755)
    first = thread.save(thread.hydrate(), workspace=thread.workspace(root, EVERYTHING).snapshot())
    out = io.BytesIO()
    assert thread.trees.export_tar(out, first) == first.workspace
    taken = thread.trees.import_tar(io.BytesIO(out.getvalue()))
    assert (taken.tree, taken.sent, taken.left_out) == (first.workspace, 0, ())
    (tmp_path / "a.tar").write_bytes(out.getvalue())
    (tmp_path / "unpacked").mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "a.tar", "-C", tmp_path / "unpacked"], check=True, capture_output=True)
    assert on_disk(tmp_path / "unpacked") == on_disk(root)
    command = ["tar", "--format=posix", "-cf", "-", "-C", root, "."]
    made = subprocess.run(command, check=True, capture_output=True).stdout
    for data in (made, gzip.compress(made)):
        assert thread.trees.import_tar(io.BytesIO(data)).tree == first.workspace


def test_an_upload_costs_what_changed(thread: Thread) -> None:
    files = [(member(f"d{number % 10}/f{number}"), os.urandom(2000)) for number in range(200)]
    first = thread.trees.import_tar(io.BytesIO(packed(*files)))
    thread.save(thread.hydrate(), workspace=first)
    files[7] = (member("d7/f7"), b"changed")
    second = thread.trees.import_tar(io.BytesIO(packed(*files)))
    assert (first.files, second.files, second.sent) == (200, 200, 3)


def test_links_and_members_that_come_twice(thread: Thread) -> None:
    data = packed(
        (member("a"), b"old"), (member("hard", tarfile.LNKTYPE, "a"), b""), (member("./a"), b"new"),
        (member("out", tarfile.SYMTYPE, "/etc/passwd"), b""), (member("pipe", tarfile.FIFOTYPE), b""),
        (member("dev", tarfile.CHRTYPE), b""), (member("empty/", tarfile.DIRTYPE), b""),
    )  # fmt: skip
    taken = thread.trees.import_tar(io.BytesIO(data))
    thread.save(thread.hydrate(), workspace=taken)
    assert [each.path for each in taken.left_out] == [b"pipe", b"dev"]
    assert set(thread.trees.list()) == {b"a", b"hard", b"out", b"empty"}
    assert (thread.trees.read("a"), thread.trees.read("hard")) == (b"new", b"old")


@pytest.mark.parametrize(
    "wrong",
    [
        [(member("../a"), b"x")], [(member("a/../../b"), b"x")], [(member("/a"), b"x")], [(member("a" * 256), b"x")],
        [(member("s", tarfile.SYMTYPE, "/tmp"), b""), (member("s/a"), b"x")],
        [(member("f"), b"x"), (member("f/g"), b"x")], [(member("d/f"), b"x"), (member("d"), b"x")],
        [(member("h", tarfile.LNKTYPE, "missing"), b"")], [(member("h", tarfile.LNKTYPE, "/etc/passwd"), b"")],
        [(member("/".join("d" * 300)), b"x")], [(member("."), b"x")],
    ],
)  # fmt: skip
def test_names_that_lead_elsewhere_are_refused(thread: Thread, wrong: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    with pytest.raises(WorkspaceRefused) as found:
        thread.trees.import_tar(io.BytesIO(packed((member("fine"), b"x"), *wrong)))
    assert found.value.limit == "tar"


def test_a_tar_that_is_cut_off_or_damaged_is_refused(thread: Thread) -> None:
    """At every block, and with each header damaged: never a shorter tree."""
    whole = packed(*((member(f"f{number}"), b"x" * 700) for number in range(5)))
    end = whole.rindex(b"x") + 1
    for at in (*range(0, end, 512), end):
        with pytest.raises(WorkspaceRefused):
            thread.trees.import_tar(io.BytesIO(whole[:at]))
    for at in range(0, end, 1536):
        with pytest.raises(WorkspaceRefused):
            thread.trees.import_tar(io.BytesIO(whole[:at] + b"\xff" + whole[at + 1 :]))
    with pytest.raises(WorkspaceRefused):
        thread.trees.import_tar(io.BytesIO(gzip.compress(whole)[:-20]))
    huge = tarfile.TarInfo("x")
    huge.type, huge.size = tarfile.XHDTYPE, 1 << 40
    with pytest.raises(WorkspaceRefused, match="a header of"):
        thread.trees.import_tar(io.BytesIO(whole[:1536] + huge.tobuf(tarfile.GNU_FORMAT)))


def test_more_than_the_rules_allow(thread: Thread) -> None:
    data = packed(*((member(f"f{number}"), b"x" * 700) for number in range(5)), (member("d/.env"), b"k"))
    for rules, limit in (
        (Rules(max_files=4), "max_files"), (Rules(max_bytes=3000), "max_bytes"),
        (Rules(max_file_bytes=699), "max_file_bytes"),
    ):  # fmt: skip
        with pytest.raises(WorkspaceRefused) as found:
            thread.trees.import_tar(io.BytesIO(data), rules)
        assert found.value.limit == limit
    deep = packed(*((member(f"{number}/" * 100 + "f"), b"") for number in range(3)))  # directories without members
    hidden = packed(*((member(f"d{number}/.env"), b"k") for number in range(5)))
    for each in (deep, hidden):
        with pytest.raises(WorkspaceRefused) as found:
            thread.trees.import_tar(io.BytesIO(each), Rules(max_files=4))
        assert found.value.limit == "max_files"
    assert thread.trees.import_tar(io.BytesIO(deep), Rules(max_files=303)).files == 3
    assert [each.path for each in thread.trees.import_tar(io.BytesIO(data), Rules()).left_out] == [b"d/.env"]
    with pytest.raises(TypeError, match="file takes"):
        thread.trees.import_tar(b"data")  # type: ignore[arg-type]
