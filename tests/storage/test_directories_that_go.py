"""The danger: the directory of a thread goes at the moment when a file is made in it, and the call fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemon.store import make_store

from stateward_sidecar.storage.blobfiles import MAKES_MAX, BlobFiles

UID, OTHER, FIRST, SECOND = b"u" * 16, b"v" * 16, b"1" * 16, b"2" * 16


@pytest.fixture
def files(tmp_path: Path) -> Iterator[BlobFiles]:
    store = make_store(tmp_path)
    yield store.context.blob_files
    store.context.keystore.close()
    store.context.engine.close()


def make(files: BlobFiles, uid: bytes, blob_id: bytes) -> None:
    new = files.create(uid, blob_id)
    new.write(b"bytes")
    new.publish()


@pytest.mark.parametrize("moment", ["made", "looked at"])
def test_the_directory_is_made_again(files: BlobFiles, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """A deletion moves the directory away after it was made, or was found there, and before the file is in it."""
    make(files, UID, FIRST)

    def go() -> None:
        monkeypatch.undo()
        assert files.set_aside(UID) is not None

    opens, is_dir = os.open, Path.is_dir

    def open_late(path: Path, *more: int) -> int:
        go()
        return opens(path, *more)

    def look_late(self: Path) -> bool:
        go()
        return is_dir(self)

    if moment == "made":
        monkeypatch.setattr(os, "open", open_late)
    else:
        monkeypatch.setattr(Path, "is_dir", look_late)
    make(files, UID, SECOND)
    assert files.is_here(UID, SECOND)


def test_it_ends_if_the_directory_goes_each_time(files: BlobFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller knows this error: the thread was deleted."""
    tries, opens = [0], os.open

    def open_late(path: Path, *more: int) -> int:
        tries[0] += 1
        files.set_aside(UID)
        return opens(path, *more)

    monkeypatch.setattr(os, "open", open_late)
    with pytest.raises(FileNotFoundError):
        files.create(UID, FIRST)
    assert tries[0] == MAKES_MAX


def test_a_directory_goes_with_its_last_file(files: BlobFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next file makes it again, and its name is synced again."""
    make(files, UID, FIRST)
    make(files, OTHER, FIRST)
    files.remove(UID, FIRST)
    assert not files.path(UID, FIRST).parent.exists()
    assert files.is_here(OTHER, FIRST)
    synced = list[Path]()
    monkeypatch.setattr("stateward_sidecar.storage.blobfiles.sync_directory", synced.append)
    make(files, UID, SECOND)
    assert files.directory in synced
    files.create(UID, FIRST).discard()
    assert files.is_here(UID, SECOND)
