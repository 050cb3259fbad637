"""The danger: a thread that is restored from parts that do not belong together, and is damaged from then on."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tests.daemon.wire import Wire, appends, refused, text
from tests.messages import to_write

from stateward._operations.threads import spans_of
from stateward.v1 import backup_service_pb2 as backup
from stateward.v1.blob_service_pb2 import BlobBegin, WriteBlobRequest
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.diff_pb2 import Append, Diff, Edit
from stateward.v1.effect_pb2 import EFFECT_STATE_NEW, EFFECT_STATE_UNSPECIFIED, Effect
from stateward.v1.record_pb2 import RecordWrite, StoredRecord
from stateward.v1.record_service_pb2 import PutRecordsRequest
from stateward.v1.signal_service_pb2 import SendSignalRequest
from stateward.v1.thread_service_pb2 import ListThreadsRequest, PruneThreadRequest, SetTagRequest
from stateward.v1.write_pb2 import WriteOptions

Parts = list[backup.ThreadPart]


@pytest.fixture(scope="module")
def parts(wire: Wire) -> Parts:
    """Those of a thread with two branches, a pruned version, a blob, a tag, an effect and a signal."""
    # A namespace of its own: a worker that takes the rest of the file from another one makes the thread once more.
    at = {"namespace": uuid.uuid4().hex, "thread": "t"}
    begin = WriteBlobRequest(begin=BlobBegin(**at, options=WriteOptions(create={})))
    blob = wire.blobs.WriteBlob(iter([begin, WriteBlobRequest(data=b"blob")])).blob
    effects = [Effect(key="k", value=text("v"))]
    wire.save(SaveRequest(**at, options=WriteOptions(expected_version=0), diff=appends("1"), effects=effects))
    named = Diff(edits=[Edit(append=Append(log="messages", entries=[text("2")]))])
    named.edits[0].append.entries.add().blob.CopyFrom(blob)
    wire.save(SaveRequest(**at, options=WriteOptions(expected_version=1), diff=named))
    wire.save(SaveRequest(**at, options=WriteOptions(expected_version=2), diff=appends("3")))
    wire.save(
        SaveRequest(
            **at,
            options=WriteOptions(expected_version=0),
            branch="side",
            parent=VersionRef(version=1),
            diff=appends("4"),
        )
    )
    wire.threads.SetTag(SetTagRequest(**at, tag="tag"))
    wire.signals.SendSignal(SendSignalRequest(**at, name="s", options=WriteOptions(request_id="s")))
    wire.threads.PruneThread(PruneThreadRequest(**at, versions=spans_of([2])))
    answers = wire.backups.ExportThread(backup.ExportThreadRequest(**at))
    return [part for answer in answers for part in answer.parts]


def send(wire: Wire, parts: Iterable[backup.ThreadPart], **begin: Any) -> Any:
    """The messages of an import."""
    at = {"namespace": f"other {wire.name}", "thread": "t"}
    first = to_write(backup.ImportBegin, **{**at, "request_id": "r", **begin})
    return iter([backup.ImportThreadRequest(begin=first, parts=parts)])


def kinds(parts: Parts) -> list[str]:
    return [part.WhichOneof("part") or "" for part in parts]


def without(kind: str, number: int = 0) -> Callable[[Parts], Parts]:
    def change(parts: Parts) -> Parts:
        found = [at for at, each in enumerate(kinds(parts)) if each == kind][number]
        return parts[:found] + parts[found + 1 :]

    return change


def changed(kind: str, set_field: Callable[[Any], Any], number: int = 0) -> Callable[[Parts], Parts]:
    def change(parts: Parts) -> Parts:
        copy = [backup.ThreadPart.FromString(part.SerializeToString()) for part in parts]
        at = [place for place, each in enumerate(kinds(copy)) if each == kind][number]
        set_field(getattr(copy[at], kind))
        return copy

    return change


def swapped(kind: str) -> Callable[[Parts], Parts]:
    def change(parts: Parts) -> Parts:
        at = kinds(parts).index(kind)
        return [*parts[:at], parts[at + 1], parts[at], *parts[at + 2 :]]

    return change


def assign(**fields: Any) -> Callable[[Any], None]:
    def set_fields(message: Any) -> None:
        for name, value in fields.items():
            setattr(message, name, value)

    return set_fields


WRONG: list[tuple[Callable[[Parts], Parts], str]] = [
    (lambda _: [], "parts.end"),
    (lambda parts: parts[1:], "parts.blob"),
    (lambda parts: [parts[0], *parts], "parts.thread"),
    (lambda parts: [*parts, parts[-1]], "parts.end"),
    (lambda parts: [*parts[:-1], backup.ThreadPart()], "parts"),
    (without("blob"), "parts.blob_data"),
    (without("blob_data"), "parts.blob"),
    (without("version"), "parts.diff"),
    (without("version", 1), "parts.state"),
    (without("effect"), "parts.end.effects"),
    (without("signal"), "parts.end.signals"),
    (without("end"), "parts.end"),
    (swapped("effect"), "parts.effect"),
    (swapped("signal"), "parts.signal"),
    (changed("thread", lambda thread: thread.options.labels.update({"": "x"})), "parts.thread.options.labels (a key)"),
    (changed("thread", assign(token_floor=-1)), "parts.thread.token_floor"),
    (changed("thread", assign(token_floor=1 << 62)), "parts.thread.token_floor"),
    (changed("thread", lambda thread: assign(seconds=1 << 60)(thread.create_time)), "parts.thread.create_time"),
    (changed("blob", lambda blob: assign(sha256=b"x" * 32)(blob.blob)), "parts.blob"),
    (changed("blob", lambda blob: assign(sha256=b"x")(blob.blob)), "parts.blob.blob.sha256"),
    (changed("blob", lambda blob: assign(size_bytes=3)(blob.blob)), "parts.blob.blob.size_bytes"),
    (changed("version", lambda each: assign(version=0)(each.checkpoint)), "parts.version.checkpoint.version"),
    (changed("version", lambda each: assign(version=9)(each.checkpoint)), "parts.version.checkpoint.version"),
    (changed("version", lambda each: assign(status=77)(each.checkpoint)), "parts.version.status"),
    (changed("version", assign(whole=True)), "parts.diff"),
    (changed("version", lambda each: assign(parent_version=1)(each.checkpoint)),
     "parts.version.checkpoint.parent_version"),
    (changed("version", assign(whole=False), 1), "parts.version.checkpoint.parent_version"),
    (changed("version", lambda each: assign(parent_version=1)(each.checkpoint), 1),
     "parts.version.checkpoint.parent_version"),
    (changed("version", lambda each: assign(id_hash=b"x")(each.request)), "parts.version.request.id_hash"),
    (changed("diff", lambda diff: assign(log="")(diff.edits[0].append)), "parts.diff.edits[0].append.log"),
    (changed("diff", lambda diff: diff.edits.add()), "parts.diff.edits[1]"),
    (changed("diff", lambda diff: assign(log="no", keep_last=1)(diff.edits.add().trim_log)), "trim_log.log"),
    (changed("state", lambda state: assign(size_bytes=9)(state.logs["messages"].entries[2].blob)), "parts.version"),
    (changed("state", lambda state: assign(first_index=-1)(state.logs["messages"])),
     "parts.state.logs[messages].first_index"),
    (changed("effect", lambda each: assign(key="")(each.effect.effect)), "parts.effect.effect.effect.key"),
    (changed("effect", lambda each: assign(state=EFFECT_STATE_UNSPECIFIED)(each.effect)), "parts.effect.effect.state"),
    (changed("effect", lambda each: assign(state=EFFECT_STATE_NEW)(each.effect)), "parts.effect.effect.effect.value"),
    (changed("signal", lambda each: assign(signal_id="")(each.signal)), "parts.signal.signal.signal_id"),
    (changed("end", assign(versions=2)), "parts.end.versions"),
    (changed("end", assign(blobs=0)), "parts.end.blobs"),
    (changed("end", assign(last_version=3)), "parts.end.last_version"),
    (changed("end", lambda end: end.branches.pop()), "parts.end.branches"),
    (changed("end", lambda end: assign(version=1)(end.branches[0])), "parts.end.branches"),
    (changed("end", lambda end: assign(base_version=8)(end.branches[0])), "parts.end.branches['main']"),
    (changed("end", lambda end: assign(first_version=0)(end.branches[0])), "parts.end.branches['main']"),
    (changed("end", lambda end: assign(version=2)(end.tags[0])), "parts.end.tags['tag']"),
]  # fmt: skip


def test_wrong_parts_are_refused_by_name(wire: Wire, parts: Parts) -> None:
    """Each names what is wrong, nothing of the thread is there, and the very parts are taken afterwards."""
    for change, field in WRONG:
        found = refused(wire.backups.ImportThread, send(wire, change(parts)))
        assert found.field.endswith(field), (found, field)
        assert found.reason in ("INVALID_FIELD", "EDIT_CONFLICT")
    assert len(wire.threads.ListThreads(ListThreadsRequest(namespace=f"other {wire.name}")).threads) == 0
    for begin, field in (({"thread": ""}, "begin.thread"), ({"request_id": ""}, "begin.options.request_id")):
        assert refused(wire.backups.ImportThread, send(wire, parts, **begin)).field == field
    assert refused(wire.backups.ImportThread, iter([])).field == "begin"
    made = wire.backups.ImportThread(send(wire, parts))
    assert (made.receipt.replayed, made.thread.last_version) == (False, 4)
    assert wire.backups.ImportThread(send(wire, parts)).receipt.replayed
    assert refused(wire.backups.ImportThread, send(wire, parts, request_id="other")).reason == "THREAD_EXISTS"
    assert wire.findings() == []


def test_revisions_after_a_restore_are_higher(wire: Wire) -> None:
    """Also if a record of the backup has a higher revision than the thread had when the export began."""
    at = {"namespace": "revisions", "thread": "records"}
    write = RecordWrite(key="a", value=text("1"))
    wire.records.PutRecords(PutRecordsRequest(**at, writes=[write], options=WriteOptions(request_id="a")))
    answers = wire.backups.ExportThread(backup.ExportThreadRequest(**at))
    parts = [part for answer in answers for part in answer.parts]
    revision = 5 << 40
    parts = changed("record", lambda each: each.record.MergeFrom(StoredRecord(revision=revision)))(parts)
    wire.backups.ImportThread(send(wire, parts, namespace="restored", thread="records", request_id="records"))
    write = RecordWrite(key="a", value=text("2"), expected_revision=revision)
    request = PutRecordsRequest(
        namespace="restored", thread="records", writes=[write], options=WriteOptions(request_id="b")
    )
    assert wire.records.PutRecords(request).revision > revision
