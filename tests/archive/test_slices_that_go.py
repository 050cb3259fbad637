"""The danger: some slices of an object are gone and others are not, and the object counts as whole, or as damaged
although its owner is removing it."""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Any

import pytest
from tests.archive.test_blobs_collected_elsewhere import archive_verified, begin, files, forget, write
from tests.daemon.driven import NAMESPACE, Driven, append
from tests.daemon.small import SLICE_BYTES
from tests.daemon.town import Town

from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.archive.requests.places import is_blob, slice_name, whole_of

CONTENT = os.urandom(4 * SLICE_BYTES)


def blob(driven: Town) -> str:
    """Name of the only blob in the bucket."""
    (found,) = {whole_of(name) for name in driven.bucket.objects if is_blob(name)}
    return found


def archived_blob(driven: Town) -> Driven:
    """A machine with a thread whose large blob is archived."""
    machine = driven.machine("first")
    machine.put(append())
    write(machine, CONTENT)
    machine.ship_now()
    return machine


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_blob_without_a_slice_is_written_again(driven: Town, number: int) -> None:
    """Whichever slice the bucket lost: who writes the blob again mends it."""
    machine = archived_blob(driven)
    driven.bucket.delete(slice_name(blob(driven), number))
    assert archive_verified(machine)
    write(machine, CONTENT)
    machine.put(append())
    machine.ship_now()
    assert archive_verified(machine) == []
    assert driven.machine("other").read_blob("job", sha256(CONTENT).digest()) == CONTENT


def test_a_blob_that_is_removed_while_it_is_fetched_is_no_damage(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader has one slice of it when its owner removes it."""
    monkeypatch.setattr("tests.archive.test_blobs_collected_elsewhere.CONTENT", CONTENT)
    first, second = driven.machine("first"), driven.machine("second")
    write(first, CONTENT)
    begin(first)
    second.state()
    read = second.wire.get_range

    def read_then_remove(key: str, offset: int, length: int) -> bytes:
        found = read(key, offset, length)
        if is_blob(key) and not offset:
            forget(driven, first)
        return found

    monkeypatch.setattr(second.wire, "get_range", read_then_remove)
    second.archive.fetch_blob(NAMESPACE, "job", sha256(CONTENT).digest())
    assert files(second) == []


def test_verify_meets_the_removal_of_a_blob(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads one slice when the owner removes the blob: no finding."""
    monkeypatch.setattr("tests.archive.test_blobs_collected_elsewhere.CONTENT", CONTENT)
    first, second = driven.machine("first"), driven.machine("second")
    write(first, CONTENT)
    begin(first)
    read = second.wire.get_range

    def read_then_remove(key: str, offset: int, length: int) -> bytes:
        found = read(key, offset, length)
        if is_blob(key):
            monkeypatch.setattr(second.wire, "get_range", read)
            forget(driven, first)
        return found

    monkeypatch.setattr(second.wire, "get_range", read_then_remove)
    assert archive_verified(second) == []


def test_verify_reads_what_is_deleted(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is deleted before its pack is read: no finding."""
    first = driven.machine("first")
    first.put(append(os.urandom(len(CONTENT))))
    first.ship_now()
    second = driven.machine("second")
    read = second.wire.read

    def delete_then_read(key: str, size_bytes: int) -> bytes:
        if key.endswith(".pack"):
            monkeypatch.undo()
            first.delete(DeleteThreadRequest(namespace=NAMESPACE, thread="job"))
            first.wire.background()
        return read(key, size_bytes)

    monkeypatch.setattr(second.wire, "read", delete_then_read)
    assert archive_verified(second) == []


def test_verify_meets_a_deletion(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is deleted while it is verified: what is left of its slices is no finding."""
    first = driven.machine("first")
    first.put(append(os.urandom(len(CONTENT))))
    first.ship_now()
    second = driven.machine("second")
    walk, delete = second.wire.walk, first.bucket.delete

    def delete_some(key: str) -> None:
        if not key.endswith(".2"):
            delete(key)

    def delete_then_walk(prefix: str) -> Any:
        if prefix.count("/") == 4:
            monkeypatch.setattr(first.bucket, "delete", delete_some)
            first.delete(DeleteThreadRequest(namespace=NAMESPACE, thread="job"))
            first.wire.background()
        return walk(prefix)

    monkeypatch.setattr(second.wire, "walk", delete_then_walk)
    assert archive_verified(second) == []


def test_a_deletion_finds_slices_behind_a_missing_one(driven: Town) -> None:
    """Two slices are on their way at once: an upload that failed may have left the later one."""
    machine = archived_blob(driven)
    driven.bucket.delete(slice_name(blob(driven), 2))
    machine.delete(DeleteThreadRequest(namespace=NAMESPACE, thread="job"))
    machine.wire.background()
    assert not [name for name in driven.bucket.objects if is_blob(name)]
