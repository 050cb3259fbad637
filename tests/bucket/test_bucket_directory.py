"""The danger: a directory that shows halves, keeps rubbish, lets others read, or forgets what it acknowledged."""

from __future__ import annotations

import errno
import os
import signal
import stat
import sys
import time
from pathlib import Path

import pytest
from tests import warm
from tests.bucket.writer import check_body

from stateward_sidecar.bucket import directory as module
from stateward_sidecar.bucket.base import (
    BucketDenied,
    BucketFull,
    BucketRefused,
    BucketUnavailable,
    ObjectNotFound,
)
from stateward_sidecar.bucket.directory import LEFT_OVER_AFTER_S, DirectoryBucket
from stateward_sidecar.errors import StartError

KILLS = 6
LIFE_BYTES = 40  # how much a life writes into its diary


@pytest.fixture
def bucket(tmp_path: Path) -> DirectoryBucket:
    return DirectoryBucket(tmp_path / "bucket")


def test_only_the_owner_may_read(bucket: DirectoryBucket, tmp_path: Path) -> None:
    """Directories 0700, files 0600, whatever the umask."""
    old = os.umask(0)
    try:
        bucket.replace("a/b/c", b"y", bucket.create("a/b/c", b"x"))
    finally:
        os.umask(old)
    for path in (tmp_path / "bucket").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("how", ["gone", "a link to itself", "a folder in it is"])
def test_what_cannot_be_listed_is_not_empty(bucket: DirectoryBucket, tmp_path: Path, how: str) -> None:
    """A bucket that is away, as a share that is not mounted, has no empty list; a prefix without objects has one."""
    bucket.create("a/object", b"x")
    bucket.create("b/object", b"x")
    assert list(bucket.list("c/")) == []
    place = tmp_path / "bucket" / ("a" if how.startswith("a folder") else "")
    place.rename(tmp_path / "aside")
    if how != "gone":
        place.symlink_to(place)
    with pytest.raises(BucketUnavailable):
        list(bucket.list("a/"))


def test_left_overs_of_a_crash(bucket: DirectoryBucket, tmp_path: Path) -> None:
    """They are in no list and in nobody's way; young ones stay (a write under way), old ones go at the next start."""
    bucket.create("a/object", b"x")
    young, old = (tmp_path / "bucket" / "a" / f".tmp-1-{name}" for name in ("young", "old"))
    for path in (young, old):
        path.write_bytes(b"half")
    past = time.time() - LEFT_OVER_AFTER_S - 60
    os.utime(old, (past, past))
    again = DirectoryBucket(tmp_path / "bucket")
    assert again.get("a/object").data == b"x"
    assert list(again.list("")) == [("a/object", 1)]
    assert (young.exists(), old.exists()) == (True, False)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, BucketFull), (errno.EDQUOT, BucketFull), (errno.EROFS, BucketDenied)]
)
def test_no_room(
    bucket: DirectoryBucket, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception], tmp_path: Path
) -> None:
    """A write that does not fit leaves nothing, and the bucket goes on when there is room again."""
    etag = bucket.create("a/HEAD", b"old")

    def fail(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "fsync", fail)
        for call in (lambda: bucket.create("a/new", b"n"), lambda: bucket.replace("a/HEAD", b"new", etag)):
            with pytest.raises(kind) as caught:
                call()
            assert not caught.value.is_unclear  # type: ignore[attr-defined]
    assert dict(bucket.list("")) == {"a/HEAD": 3}
    assert not list((tmp_path / "bucket").rglob(".tmp-*"))
    assert bucket.replace("a/HEAD", b"new", etag)


def test_a_failed_sync_of_the_names(bucket: DirectoryBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write is unclear, and nothing is answered any more from what may not be on the disk."""
    bucket.create("a/HEAD", b"old")

    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_sync_directory", fail)
        with pytest.raises(BucketUnavailable) as caught:
            bucket.create("a/new", b"n")
        assert caught.value.is_unclear
    for call in (lambda: bucket.get("a/HEAD"), lambda: bucket.put("a/p", b""), lambda: bucket.delete("a/HEAD")):
        with pytest.raises(BucketRefused, match="restart"):
            call()


def test_a_directory_that_went_away_comes_back(
    bucket: DirectoryBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is unmounted between a name and its sync. Meanwhile nothing is written in its place. Nothing was synced, so
    nothing is refused once it is there again, and the first call that uses it syncs it."""
    bucket.put("a/one", b"1")
    synced, sync, away = list[str](), module._sync_directory, tmp_path / "away"

    def go_away(path: Path) -> None:
        path.parent.rename(away)
        sync(path)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_sync_directory", go_away)
        with pytest.raises(BucketUnavailable) as caught:
            bucket.put("a/two", b"2")
    assert caught.value.is_unclear
    for write in (lambda: bucket.put("a/two", b"3"), lambda: bucket.create("b/three", b"3")):
        with pytest.raises(BucketUnavailable, match="is it mounted"):
            write()
    assert not (tmp_path / "bucket").exists()
    away.rename(tmp_path / "bucket")

    def watch(path: Path) -> None:
        synced.append(path.name)
        sync(path)

    monkeypatch.setattr(module, "_sync_directory", watch)
    assert bucket.get("a/two").data == b"2"
    assert synced == ["a", "bucket"]


def test_new_names_are_synced_up_to_the_root(bucket: DirectoryBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new directory is only there after a power cut if its parent was synced; later writes sync their own only."""
    synced: list[str] = []
    sync = module._sync_directory

    def watch(path: Path) -> None:
        synced.append(path.name)
        sync(path)

    monkeypatch.setattr(module, "_sync_directory", watch)
    bucket.create("a/b/one", b"x")
    assert {"a", "b", "bucket"} <= set(synced)
    assert synced[-1] == "b"
    synced.clear()
    bucket.create("a/b/two", b"x")
    assert synced == ["b"]


def test_what_cannot_be_a_bucket(tmp_path: Path) -> None:
    """A file in its place stops the start with one line."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StartError, match="as a bucket"):
        DirectoryBucket(tmp_path / "file")


@pytest.mark.slow
def test_kills_while_writing(tmp_path: Path) -> None:
    """A writer is killed again and again: every object is whole at every moment, and none it acknowledged is lost."""
    bucket = DirectoryBucket(tmp_path / "bucket")
    command = [sys.executable, "-m", "tests.bucket.writer", str(tmp_path / "bucket"), str(tmp_path / "diary")]
    for _ in range(KILLS):
        before = size_of(tmp_path / "diary")
        process = warm.start(command)
        try:
            end = time.monotonic() + 20
            while size_of(tmp_path / "diary") < before + LIFE_BYTES and time.monotonic() < end:
                for key, _ in bucket.list(""):
                    try:
                        check_body(bucket.get(key).data)
                    except ObjectNotFound:
                        assert key.endswith(".pack")  # HEAD is only ever replaced
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        check_diary(DirectoryBucket(tmp_path / "bucket"), tmp_path / "diary")


def check_diary(bucket: DirectoryBucket, diary: Path) -> None:
    """Whole lines of the diary are what was acknowledged."""
    steps = [int(line) for line in diary.read_text().split("\n")[:-1]]
    head = check_body(bucket.get("thread/HEAD").data)
    assert steps[-1] <= head <= steps[-1] + 1
    for step in steps[-30:]:
        assert check_body(bucket.get(f"thread/{step}.pack").data) == step


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
