"""The danger: an upload that is cut off leaves what nobody finds, or half an object counts as a whole one."""

from __future__ import annotations

import os

import pytest
from tests.daemon.driven import NAMESPACE, Driven, append
from tests.daemon.small import SLICE_BYTES
from tests.daemon.town import Town

from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.archive.requests.places import slice_count, slice_name, whole_of, whole_sizes
from stateward_sidecar.bucket.base import BucketUnavailable, ObjectNotFound
from stateward_sidecar.errors import ArchiveUnavailable, Corrupt

LARGE_BYTES = 4 * SLICE_BYTES
KEY = "v1/t/00/11/1-0000000000000000-1.pack"


def slices(driven: Town) -> list[str]:
    """Names of the later slices in the bucket."""
    return sorted(name for name in driven.bucket.objects if whole_of(name) != name)


def fail_at(machine: Driven, number: int, patch: pytest.MonkeyPatch) -> None:
    """The bucket is away from a put on."""
    put, count = machine.bucket.put, [0]

    def refuse(key: str, data: bytes) -> None:
        count[0] += 1
        if count[0] >= number:
            raise BucketUnavailable(key)
        put(key, data)

    patch.setattr(machine.bucket, "put", refuse)


@pytest.fixture
def owner(driven: Town) -> Driven:
    """A machine with an archived thread."""
    first = driven.machine("first")
    first.put(append())
    first.ship_now()
    return first


@pytest.mark.parametrize("size", [1, SLICE_BYTES - 1, SLICE_BYTES, SLICE_BYTES + 1, 3 * SLICE_BYTES, LARGE_BYTES + 7])
def test_what_is_put_is_read(owner: Driven, driven: Town, size: int) -> None:
    """Whole, and by range, also where slices meet and where the object ends; and all of it is deleted."""
    wire, data = owner.wire, os.urandom(size)
    wire.put(KEY, data)
    assert wire.read(KEY, size) == data
    assert wire.has(KEY, size)
    assert not wire.has(KEY, size + 1)
    assert size == 1 or not wire.has(KEY, size - 1)
    for offset in (0, size // 2, max(size - 2, 0), SLICE_BYTES - 1, SLICE_BYTES):
        if offset < size:
            for length in (1, 2, SLICE_BYTES, size + 5):
                assert wire.get_range(KEY, offset, length) == data[offset : offset + length]
    assert whole_sizes((name, len(driven.bucket.objects[name])) for name in driven.bucket.objects)[KEY] == size
    assert len(slices(driven)) == slice_count(size) - 1
    wire.delete(KEY, size)
    wire.put(KEY, data)
    wire.delete_whole(KEY)
    assert not [name for name in driven.bucket.objects if whole_of(name) == KEY]


def test_an_object_without_its_first_slice_is_not_there(owner: Driven, driven: Town) -> None:
    """It is put last: all others prove nothing."""
    owner.wire.put(KEY, os.urandom(LARGE_BYTES))
    driven.bucket.delete(KEY)
    assert not owner.wire.has(KEY, LARGE_BYTES)
    with pytest.raises(ObjectNotFound):
        owner.wire.read(KEY, LARGE_BYTES)


def test_an_upload_that_fails_is_not_there(owner: Driven, driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """HEAD does not name it, nobody reads it, and the next try writes over what is there."""
    fail_at(owner, 3, monkeypatch)
    owner.put(append(os.urandom(LARGE_BYTES)))
    with pytest.raises(ArchiveUnavailable):
        owner.ship_now()
    left = slices(driven)
    assert left
    assert not {whole_of(name) for name in left} & driven.bucket.objects.keys()
    monkeypatch.undo()
    driven.time.sleep(60)
    owner.ship_now()
    other = driven.machine("other")
    assert len(other.state().state.logs["m"].entries) == 2


@pytest.mark.parametrize("deletes", [False, True])
def test_what_a_dead_process_put_is_collected(
    owner: Driven, driven: Town, monkeypatch: pytest.MonkeyPatch, deletes: bool
) -> None:
    """It was killed during the upload of a large object, and another machine has the thread, or has deleted it. What
    that one put stays whole."""
    fail_at(owner, 3, monkeypatch)
    owner.put(append(os.urandom(LARGE_BYTES)))
    with pytest.raises(ArchiveUnavailable):
        owner.ship_now()
    monkeypatch.undo()
    driven.end(owner)
    left = slices(driven)
    assert left
    other = driven.machine("other")
    other.archive.own(NAMESPACE, "job", take_over=True)
    other.put(append(os.urandom(LARGE_BYTES)))
    other.ship_now()
    if deletes:
        other.delete(DeleteThreadRequest(namespace=NAMESPACE, thread="job"))
        other.wire.background()
    other.collect(0)
    assert not set(left) & driven.bucket.objects.keys()
    if not deletes:
        assert driven.machine("third").state().checkpoint.version == 2


@pytest.mark.parametrize("number", [1, 3])
def test_a_slice_that_is_lost(owner: Driven, driven: Town, number: int) -> None:
    """The object is CORRUPT, and Verify names it."""
    owner.put(append(os.urandom(LARGE_BYTES)))
    owner.ship_now()
    key = whole_of(slices(driven)[0])
    driven.bucket.delete(slice_name(key, number))
    with pytest.raises(Corrupt, match=r"1-[0-9a-f]{16}-[0-9]+\.(pack|snap)"):
        driven.machine("other").state()


def test_a_deletion_leaves_no_slice(owner: Driven, driven: Town) -> None:
    """Of a pack, a snapshot or a blob."""
    owner.put(append(os.urandom(LARGE_BYTES)))
    owner.write_blob("job", os.urandom(LARGE_BYTES))
    owner.ship_now()
    assert {whole_of(name).rpartition(".")[2] for name in slices(driven)} >= {"blob", "pack"}
    owner.delete(DeleteThreadRequest(namespace=NAMESPACE, thread="job"))
    owner.wire.background()
    assert not slices(driven)
