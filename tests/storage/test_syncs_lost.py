"""The danger: a file, a name or a slot that was answered for and is gone after a power cut."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.storage.sync_law import sync_law

from stateward_sidecar.bucket.directory import DirectoryBucket
from stateward_sidecar.storage.blobfiles import BlobFiles
from stateward_sidecar.storage.files import create_file
from stateward_sidecar.storage.secretfiles import create_key_file

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the law reads /proc")
UID, BLOB_ID, OTHER_ID = b"u" * 16, b"b" * 16, b"c" * 16


def test_a_created_file(tmp_path: Path) -> None:
    """Content and name are durable when the call returns."""
    with sync_law():
        create_file(tmp_path / "made", b"content")
    assert (tmp_path / "made").read_bytes() == b"content"


def test_a_created_key_file(tmp_path: Path) -> None:
    """A key that data are sealed with is durable before it is used."""
    (tmp_path / "config").mkdir()
    with sync_law():
        create_key_file(tmp_path / "config" / "key")


def test_blob_files(tmp_path: Path) -> None:
    """Each published blob is durable: the first of a thread with its new directories, the next one in the same."""
    files = BlobFiles(SimpleNamespace(directory=tmp_path, disk_room_bytes=lambda: 1 << 30))  # type: ignore[arg-type]
    for blob_id in (BLOB_ID, OTHER_ID):
        with sync_law():
            new = files.create(UID, blob_id)
            new.write(b"sealed")
            new.publish()
        assert files.path(UID, blob_id).read_bytes() == b"sealed"


def put_file(bucket: DirectoryBucket, key: str) -> None:
    """An object from a file."""
    source = Path(os.devnull)
    bucket.put_file(key, source)


VERBS: dict[str, Callable[[DirectoryBucket, str], object]] = {
    "put": lambda bucket, key: bucket.put(key, b"1"),
    "put_file": put_file,
    "create": lambda bucket, key: bucket.create(key, b"1"),
    "replace": lambda bucket, key: bucket.replace(key, b"2", bucket.create(key, b"1")),
}


@pytest.mark.parametrize("verb", VERBS)
def test_objects_of_a_directory(tmp_path: Path, verb: str) -> None:
    """Each write of an object is durable: in new directories, in known ones, and in a new one below a known one."""
    bucket = DirectoryBucket(tmp_path / "bucket")
    for key in ("new/folder/a", "new/folder/b", "new/c", "new/other/folder/d"):
        with sync_law():
            VERBS[verb](bucket, key)


def test_names_that_another_process_did_not_live_to_sync(tmp_path: Path) -> None:
    """What a process finds may not be durable yet: it is once somebody was answered about it."""
    (tmp_path / "bucket" / "new").mkdir(parents=True)
    bucket = DirectoryBucket(tmp_path / "bucket")
    with sync_law():
        os.mkdir(tmp_path / "bucket" / "new" / "folder")  # noqa: PTH102  the watched call
        bucket.put("new/folder/a", b"1")


def test_a_removed_object(tmp_path: Path) -> None:
    """A deletion that was answered is durable."""
    bucket = DirectoryBucket(tmp_path)
    bucket.put("new/a", b"1")
    synced: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        sync = os.fsync
        patch.setattr(os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_ino), sync(fd)))
        bucket.delete("new/a")
    assert (tmp_path / "new").stat().st_ino in synced
