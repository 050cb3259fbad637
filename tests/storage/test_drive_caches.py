"""The danger: on macOS, fsync returns while the bytes are in the drive's cache, and calls of Linux are missing."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from stateward_sidecar import syncing
from stateward_sidecar.storage.files import create_file

FULL_SYNC = 51  # F_FULLFSYNC of macOS


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The commands of fcntl, of a system that has F_FULLFSYNC and lacks what macOS lacks."""
    commands: list[int] = []
    monkeypatch.setattr(syncing, "FULL_SYNC", FULL_SYNC)
    monkeypatch.setattr(syncing.fcntl, "fcntl", lambda _, command: commands.append(command))
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.delattr(os, "posix_fallocate")
    return commands


def test_the_drive_empties_its_cache(asked: list[int], tmp_path: Path) -> None:
    """Each sync of a file, of its data and of a directory asks for the full sync."""
    create_file(tmp_path / "f", b"content")
    assert asked == [FULL_SYNC, FULL_SYNC]  # the file, then its name
    with (tmp_path / "f").open("rb") as file:
        syncing.sync_data(file.fileno())
    assert len(asked) == 3


def test_a_file_system_without_it_is_synced_as_usual(asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that does not know the command gets an fsync; any other error is an error."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)

    def refuse(number: int) -> None:
        def fcntl_(fd: int, command: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "fcntl", fcntl_)

    refuse(errno.ENOTSUP)
    syncing.sync_file(7)
    syncing.sync_data(8)
    assert synced == [7, 8]
    refuse(errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        syncing.sync_file(7)
    assert synced == [7, 8]


def test_a_file_grows_by_zeros(asked: list[int], tmp_path: Path) -> None:
    """Where the file system cannot reserve room, zeros are written."""
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    with path.open("r+b") as file:
        syncing.grow_file(file.fileno(), 5)
    assert path.read_bytes() == b"abc" + bytes(5)
