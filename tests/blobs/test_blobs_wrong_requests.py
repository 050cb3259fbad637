"""The danger: a wrong request about a blob leaves a file, names a blob of another thread, or is refused without the
field that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from tests.blobs.desk import MIB, BlobWire, messages, names, random_bytes
from tests.daemon.process import eventually
from tests.daemon.wire import Refusal, refused, text
from tests.messages import to_write

from stateward.v1.blob_service_pb2 import BlobBegin, ReadBlobRequest, StatBlobRequest, WriteBlobRequest
from stateward.v1.checkpoint_service_pb2 import BatchSaveRequest, HydrateRequest
from stateward.v1.state_pb2 import BlobRef, Value
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.thread_service_pb2 import ForkThreadRequest

DATA = random_bytes(2 * MIB)


def begin(**fields: Any) -> WriteBlobRequest:
    fields.setdefault("thread", "t")
    return WriteBlobRequest(begin=to_write(BlobBegin, **fields))


def data(content: bytes) -> WriteBlobRequest:
    return WriteBlobRequest(data=content)


WRITES: dict[str, tuple[Callable[[], list[WriteBlobRequest]], str]] = {
    "nothing at all": (list, "begin"),
    "data first": (lambda: [data(b"x")], "begin"),
    "an empty message first": (lambda: [WriteBlobRequest()], "begin"),
    "two announcements": (lambda: [begin(), begin()], "data"),
    "an empty message later": (lambda: [begin(), WriteBlobRequest()], "data"),
    "no thread": (lambda: [begin(thread="")], "begin.thread"),
    "all threads": (lambda: [begin(thread="-")], "begin.thread"),
    "a control character": (lambda: [begin(namespace="a\nb")], "begin.namespace"),
    "a long media type": (lambda: [begin(media_type="m" * 256)], "begin.media_type"),
    "a short digest": (lambda: [begin(sha256=b"1" * 31)], "begin.sha256"),
    "a negative size": (lambda: [begin(size_bytes=-1)], "begin.size_bytes"),
    "another digest": (lambda: [begin(sha256=b"1" * 32), data(DATA)], "begin.sha256"),
    "fewer bytes": (lambda: [begin(size_bytes=len(DATA) + 1), data(DATA)], "begin.size_bytes"),
    "more bytes": (lambda: [begin(size_bytes=len(DATA) - 1), data(DATA)], "begin.size_bytes"),
    "a uid that is none": (lambda: [begin(expected_uid="x")], "begin.options.expected_uid"),
    "wrong settings": (lambda: [begin(create={"labels": {"k": "v" * 2000}})], "begin.options.create.labels['k']"),
}


@pytest.mark.parametrize(("stream", "field"), WRITES.values(), ids=WRITES)
def test_a_wrong_write_is_refused_by_field(
    desk: BlobWire, stream: Callable[[], list[WriteBlobRequest]], field: str
) -> None:
    """INVALID_FIELD with the field; no entry, no file, and the daemon goes on."""
    desk.put(b"x")
    before, entries = desk.files(), desk.entries_written()
    found = refused(desk.blobs.WriteBlob, iter(stream()))
    assert (found.reason, found.field, found.fields) == ("INVALID_FIELD", field, (field,))
    assert (desk.files(), desk.entries_written()) == (before, entries)
    assert desk.findings() == []


def test_a_wrong_digest_makes_no_thread_readable(desk: BlobWire) -> None:
    """A refused first write leaves at most an empty thread: a save still expects version 0."""
    refused(desk.blobs.WriteBlob, messages(b"x", sha256=b"1" * 32, create=ThreadOptions()))
    assert refused(desk.checkpoints.Hydrate, HydrateRequest(thread="t")).reason == "VERSION_NOT_FOUND"
    fork = ForkThreadRequest(thread="t", new_thread="n", all_versions=True)
    assert refused(desk.threads.ForkThread, fork).reason == "VERSION_NOT_FOUND"
    assert desk.save_blob(desk.put(b"x")).version == 1


def test_a_blob_too_large_is_refused_at_once(desk: BlobWire) -> None:
    """STATE_TOO_LARGE, or DISK_FULL for what does not fit, before anything is sent."""
    for size, reason in ((1 << 40, "STATE_TOO_LARGE"), ((1 << 63) - 1, "STATE_TOO_LARGE")):
        found = refused(desk.blobs.WriteBlob, messages(b"", size_bytes=size, create=ThreadOptions()))
        assert (found.reason, found.code) == (reason, grpc.StatusCode.RESOURCE_EXHAUSTED)


READS: dict[str, tuple[dict[str, Any], str]] = {
    "no blob": ({"blob": None}, "blob.sha256"),
    "a short digest": ({"blob": BlobRef(sha256=b"1")}, "blob.sha256"),
    "a negative offset": ({"offset": -1}, "offset"),
    "an offset beyond the end": ({"offset": len(DATA) + 1}, "offset"),
    "a negative length": ({"length": -1}, "length"),
    "no thread": ({"thread": ""}, "thread"),
}


@pytest.mark.parametrize(("fields", "field"), READS.values(), ids=READS)
def test_a_wrong_read_is_refused_by_field(desk: BlobWire, fields: dict[str, Any], field: str) -> None:
    """INVALID_FIELD with the field."""
    request = ReadBlobRequest(**{"thread": "t", "blob": desk.put(DATA), **fields})
    found = refused(desk.blobs.ReadBlob, request)
    assert (found.reason, found.field) == ("INVALID_FIELD", field)
    assert refused(desk.blobs.StatBlob, StatBlobRequest(thread="t")).field == "sha256"


def blob_field(change: Callable[[BlobRef], object]) -> Callable[[BlobRef], BlobRef]:
    def changed(blob: BlobRef) -> BlobRef:
        change(blob)
        return blob

    return changed


SLOT = "diff.edits[0].set_slot.value.blob"
REFERENCES: dict[str, tuple[Callable[[BlobRef], object], str]] = {
    "a blob that is not there": (lambda blob: setattr(blob, "sha256", b"1" * 32), SLOT),
    "no digest": (lambda blob: blob.ClearField("sha256"), f"{SLOT}.sha256"),
    "another size": (lambda blob: setattr(blob, "size_bytes", 1), f"{SLOT}.size_bytes"),
    "a negative size": (lambda blob: setattr(blob, "size_bytes", -1), f"{SLOT}.size_bytes"),
    "a preview that is too long": (lambda blob: setattr(blob, "preview", DATA[:1025]), f"{SLOT}.preview"),
    "another preview": (lambda blob: setattr(blob, "preview", b"lies"), f"{SLOT}.preview"),
}


@pytest.mark.parametrize(("change", "field"), REFERENCES.values(), ids=REFERENCES)
def test_a_save_names_only_blobs_that_are_there(
    desk: BlobWire, change: Callable[[BlobRef], object], field: str
) -> None:
    """INVALID_FIELD names the value; the edits beside it are not applied, and a batch is refused as a whole."""
    blob = desk.put(DATA)
    desk.save_blob(blob)
    wrong = BlobRef()
    wrong.CopyFrom(blob)
    change(wrong)
    request = names(wrong, 1)
    request.diff.edits.add().set_slot.slot = "beside"
    request.diff.edits[1].set_slot.value.CopyFrom(text("x"))
    entries = desk.entries_written()
    found = refused(desk.checkpoints.Save, request)
    assert (found.reason, found.field) == ("INVALID_FIELD", field)
    batch = BatchSaveRequest(saves=[names(blob, 1), request])
    batch.saves[0].thread = "another"
    batch.saves[0].options.expected_version = 0
    batch.saves[0].diff.edits[0].set_slot.value.CopyFrom(text("x"))
    assert refused(desk.checkpoints.BatchSave, batch).field == f"saves[1].{field}"
    assert desk.entries_written() == entries
    assert list(desk.hydrate(HydrateRequest(thread="t")).slots) == ["s"]


def test_other_places_of_a_blob_are_checked_too(desk: BlobWire) -> None:
    """Appended and replaced entries, and slots and logs of a full state; no blob may stand in metadata."""
    blob = desk.put(DATA)
    desk.save_blob(blob)
    wrong = Value(blob=BlobRef(sha256=b"1" * 32))
    request = names(blob, 1)
    del request.diff.edits[:]
    request.diff.edits.add().append.log = "l"
    request.diff.edits[0].append.entries.add().CopyFrom(wrong)
    assert refused(desk.checkpoints.Save, request).field == "diff.edits[0].append.entries[0].blob"
    request.state.slots["s"].CopyFrom(wrong)
    assert refused(desk.checkpoints.Save, request).field == "state.slots[s].blob"
    request.state.slots.clear()
    request.state.logs["l"].entries.add().CopyFrom(wrong)
    assert refused(desk.checkpoints.Save, request).field == "state.logs[l].entries[0].blob"
    request = names(blob, 1)
    request.metadata.blob.CopyFrom(blob)
    assert refused(desk.checkpoints.Save, request).field == "metadata.blob"


def test_blobs_belong_to_one_thread(desk: BlobWire) -> None:
    """A blob of another thread cannot be named, also not by the first save of a new thread."""
    blob = desk.put(DATA, "one")
    desk.put(b"x", "two")
    for thread in ("two", "three"):
        assert refused(desk.checkpoints.Save, names(blob, 0, thread)).field == SLOT
        assert refused(desk.blobs.ReadBlob, ReadBlobRequest(thread=thread, blob=blob)).code == (
            grpc.StatusCode.NOT_FOUND
        )


def test_a_retry_of_a_save_is_answered_whatever_became_of_its_blob(desk: BlobWire) -> None:
    """A request id is looked at before the blobs that the request names."""
    blob = desk.put(DATA)
    first = desk.save_blob(blob)
    assert desk.save_blob(blob).receipt.replayed
    assert desk.save_blob(blob).version == first.version


def test_a_stream_that_breaks_off_leaves_nothing(desk: BlobWire) -> None:
    """The caller goes in the middle: no entry, no file, not even an unfinished one."""
    desk.put(b"x")

    def half() -> Iterator[WriteBlobRequest]:
        yield begin()
        yield data(DATA)
        call.cancel()
        yield data(DATA)

    call = desk.blobs.WriteBlob.future(half())
    with pytest.raises((grpc.FutureCancelledError, grpc.RpcError)):
        call.result(timeout=20)
    eventually(lambda: len(desk.files()) == 1)
    assert desk.entries_written() == 2  # of the thread, and of its first blob


def test_one_refusal_does_not_touch_others(desk: BlobWire) -> None:
    """A wrong write beside good ones, on one connection."""
    good = [desk.blobs.WriteBlob.future(messages(DATA, create=ThreadOptions())) for _ in range(3)]
    found: Refusal = refused(desk.blobs.WriteBlob, iter([data(b"x")]))
    assert found.reason == "INVALID_FIELD"
    assert all(call.result().blob.size_bytes == len(DATA) for call in good)
