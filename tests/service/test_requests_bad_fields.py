"""The danger: a request with a wrong field is half applied, ends the connection, or is refused without the name of the
field."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp
from tests.daemon.wire import appends, refused, sets, state, text
from tests.service.conftest import THREAD, Place

from stateward._operations.threads import spans_of
from stateward.v1 import admin_service_pb2 as a
from stateward.v1 import checkpoint_service_pb2 as c
from stateward.v1 import thread_service_pb2 as t
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, VersionRef
from stateward.v1.diff_pb2 import Append, DeleteSlot, Diff, Edit, ReplaceEntry, SetSlot, Splice, SpliceSlot, TrimLog
from stateward.v1.effect_pb2 import Effect
from stateward.v1.signal_pb2 import Question
from stateward.v1.state_pb2 import BlobRef, Log, State, Value
from stateward.v1.thread_pb2 import Retention, ThreadOptions
from stateward.v1.write_pb2 import Receipt, WriteOptions

LONG = "n" * 1025
UNKNOWN_EDIT = b"\x9a\x06\x03abc"  # field 99, three bytes
REF = VersionRef(version=1)


def edit(**kind: Any) -> Diff:
    return Diff(edits=[Edit(**kind)])


VALUE = Value(data=b"1")
BLOB = Value(blob=BlobRef(sha256=b"s" * 32, size_bytes=1))
SPLICES = [Splice(offset=0, delete=1)]
SAVES: dict[str, tuple[dict[str, Any], str]] = {
    "thread empty": ({"thread": ""}, "thread"),
    "thread too long": ({"thread": LONG}, "thread"),
    "thread with a line feed": ({"thread": "a\nb"}, "thread"),
    "thread with a C1 control": ({"thread": "a\x85b"}, "thread"),
    "thread means all": ({"thread": "-"}, "thread"),
    "namespace too long": ({"namespace": LONG}, "namespace"),
    "namespace with a zero": ({"namespace": "a\0"}, "namespace"),
    "branch too long": ({"branch": LONG}, "branch"),
    "branch with a tab": ({"branch": "a\tb"}, "branch"),
    "checkpoint id too long": ({"checkpoint_id": LONG}, "checkpoint_id"),
    "checkpoint id with DEL": ({"checkpoint_id": "a\x7f"}, "checkpoint_id"),
    "request id too long": ({"request_id": "r" * 257}, "options.request_id"),
    "request id with a bell": ({"request_id": "\a"}, "options.request_id"),
    "nothing to save": ({"diff": None}, "content"),
    "expected version negative": ({"expected_version": -1}, "options.expected_version"),
    "digest without version": (
        {"expected_version": None, "request_id": "r", "expected_digest": b"d" * 16},
        "options.expected_digest",
    ),
    "digest of nothing": ({"expected_version": 0, "expected_digest": b"d" * 16}, "options.expected_digest"),
    "digest too short": ({"expected_digest": b"d"}, "options.expected_digest"),
    "lease token negative": ({"lease_token": -1}, "options.lease_token"),
    "effect without a key": ({"effects": [Effect(value=VALUE)]}, "effects[0].key"),
    "effect without a value": ({"effects": [Effect(key="k")]}, "effects[0].value"),
    "effect that is a blob": ({"effects": [Effect(key="k", value=BLOB)]}, "effects[0].value.blob"),
    "effect twice": ({"effects": [Effect(key="k", value=VALUE)] * 2}, "effects[1].key"),
    "effect with an unknown rule": (
        {"effects": [Effect(key="k", value=VALUE, on_conflict=9)]},
        "effects[0].on_conflict",
    ),
    "effect name too long": ({"effects": [Effect(key="k", value=VALUE, name="n" * 1025)]}, "effects[0].name"),
    "acknowledges nothing": ({"ack_signals": [""]}, "ack_signals[0]"),
    "question without a wait id": ({"question": Question(prompt="ok?")}, "wait_id"),
    "question too long": ({"question": Question(prompt="p" * 65537), "wait_id": "w"}, "question.prompt"),
    "parent names nothing": ({"parent": VersionRef()}, "parent"),
    "parent negative": ({"parent": VersionRef(version=-1)}, "parent.version"),
    "parent with an empty tag": ({"parent": VersionRef(tag="")}, "parent.tag"),
    "neither expectation nor request id": ({"expected_version": None}, "options.request_id"),
    "a full state without expectation": (
        {"expected_version": None, "request_id": "r", "diff": None, "state": state("first")},
        "options.expected_version",
    ),
    "a partial state as a full one": ({"diff": None, "state": State(partial=True)}, "state.partial"),
    "overwrite with a diff": ({"overwrite": True}, "overwrite"),
    "an edit of a known base without expectation": (
        {"expected_version": None, "request_id": "r", "diff": edit(trim_log=TrimLog(log="messages", keep_last=1))},
        "diff.edits[0]",
    ),
    "an edit that is not set": ({"diff": Diff(edits=[Edit(), Edit()])}, "diff.edits[0]"),
    "an edit of an unknown kind": (
        {"diff": Diff(edits=[sets("goal", "x").edits[0], Edit.FromString(UNKNOWN_EDIT)])},
        "diff.edits[1]",
    ),
    "slot without name": ({"diff": edit(set_slot=SetSlot(value=text("x")))}, "diff.edits[0].set_slot.slot"),
    "slot name too long": ({"diff": edit(delete_slot=DeleteSlot(slot=LONG))}, "diff.edits[0].delete_slot.slot"),
    "slot without value": ({"diff": edit(set_slot=SetSlot(slot="s"))}, "diff.edits[0].set_slot.value"),
    "media type too long": (
        {"diff": edit(set_slot=SetSlot(slot="s", value=Value(media_type="m" * 256, data=b"")))},
        "diff.edits[0].set_slot.value.media_type",
    ),
    "a blob": (
        {"diff": edit(set_slot=SetSlot(slot="s", value=Value(blob=BlobRef())))},
        "diff.edits[0].set_slot.value.blob.sha256",
    ),
    "append of nothing": ({"diff": edit(append=Append(log="l"))}, "diff.edits[0].append.entries"),
    "append of an unset value": (
        {"diff": edit(append=Append(log="l", entries=[text("x"), Value()]))},
        "diff.edits[0].append.entries[1]",
    ),
    "append at a negative index": (
        {"diff": edit(append=Append(log="l", entries=[text("x")], at_index=-1))},
        "diff.edits[0].append.at_index",
    ),
    "replace at a negative index": (
        {"diff": edit(replace_entry=ReplaceEntry(log="messages", index=-1, value=text("x")))},
        "diff.edits[0].replace_entry.index",
    ),
    "trim of nothing": ({"diff": edit(trim_log=TrimLog(log="messages"))}, "diff.edits[0].trim_log"),
    "trim to a negative length": (
        {"diff": edit(trim_log=TrimLog(log="messages", keep_last=-1))},
        "diff.edits[0].trim_log.keep_last",
    ),
    "splice without base": (
        {"diff": edit(splice_slot=SpliceSlot(slot="goal", splices=SPLICES))},
        "diff.edits[0].splice_slot.base_sha256",
    ),
    "splice of nothing": (
        {"diff": edit(splice_slot=SpliceSlot(slot="goal", base_sha256=b"h" * 32))},
        "diff.edits[0].splice_slot.splices",
    ),
    "splices that overlap": (
        {"diff": edit(splice_slot=SpliceSlot(slot="goal", base_sha256=b"h" * 32, splices=SPLICES * 2))},
        "diff.edits[0].splice_slot.splices[1].offset",
    ),
    "full state with a bad slot": ({"diff": None, "state": State(slots={"": text("x")})}, "state.slots"),
    "full state with an unset value": ({"diff": None, "state": State(slots={"s": Value()})}, "state.slots[s]"),
    "full state with a negative index": (
        {"diff": None, "state": State(logs={"l": Log(first_index=-1)})},
        "state.logs[l].first_index",
    ),
    "status unknown": ({"status": 99}, "status"),
    "durability unknown": ({"durability": 99}, "options.durability"),
    "status detail too long": ({"status_detail": "d" * 4097}, "status_detail"),
    "schema version negative": ({"schema_version": -1}, "schema_version"),
    "too many labels": ({"labels": {f"k{n}": "v" for n in range(65)}}, "labels"),
    "label value too long": ({"labels": {"k": "v" * 1025}}, "labels['k']"),
    "too many attributes": ({"attributes": {f"k{n}": {"int_value": n} for n in range(65)}}, "attributes"),
    "attributes too large": ({"attributes": {f"k{n}": {"string_value": "é" * 4096} for n in range(2)}}, "attributes"),
    "attribute without a value": ({"attributes": {"k": {}}}, "attributes['k']"),
    "attribute not finite": ({"attributes": {"k": {"double_value": float("inf")}}}, "attributes['k']"),
    "attribute without a name": ({"attributes": {"": {"int_value": 1}}}, "attributes (a key)"),
    "metric not finite": ({"metrics": {"cost": float("nan")}}, "metrics['cost']"),
    "metadata unset": ({"metadata": Value()}, "metadata"),
    "metadata too large": ({"metadata": Value(data=bytes((1 << 20) + 1))}, "metadata"),
    "TTL of nothing": ({"create": ThreadOptions(ttl=Duration())}, "options.create.ttl"),
    "TTL out of range": ({"create": ThreadOptions(ttl=Duration(seconds=1 << 62))}, "options.create.ttl"),
    "retention that says nothing": ({"create": ThreadOptions(retention=Retention())}, "options.create.retention"),
    "retention negative": (
        {"create": ThreadOptions(retention=Retention(keep_last=-1))},
        "options.create.retention.keep_last",
    ),
}


@pytest.mark.parametrize("name", SAVES)
def test_a_wrong_save_is_refused_by_field(untouched: Place, name: str) -> None:
    """A save with a wrong or missing field is INVALID_FIELD, names the field twice, and writes nothing."""
    fields, field = SAVES[name]
    found = refused(untouched.wire.checkpoints.Save, untouched.request(**fields))
    assert (found.reason, found.code) == ("INVALID_FIELD", grpc.StatusCode.INVALID_ARGUMENT)
    assert found.field == field
    assert found.fields == (field,)
    assert found.message.startswith(field)


READS: dict[str, tuple[str, Any, str]] = {
    "hydrate a version below 1": (
        "checkpoints.Hydrate",
        c.HydrateRequest(version=VersionRef(version=0)),
        "version.version",
    ),
    "hydrate no version": ("checkpoints.Hydrate", c.HydrateRequest(version=VersionRef()), "version"),
    "hydrate in too small pages": ("checkpoints.Hydrate", c.HydrateRequest(max_bytes=1023), "max_bytes"),
    "hydrate in negative pages": ("checkpoints.Hydrate", c.HydrateRequest(max_bytes=-1), "max_bytes"),
    "hydrate an unnamed slot": (
        "checkpoints.Hydrate",
        c.HydrateRequest(projection=c.Projection(slots=["goal", ""])),
        "projection.slots[1]",
    ),
    "hydrate a negative tail": (
        "checkpoints.Hydrate",
        c.HydrateRequest(projection=c.Projection(logs=[c.LogSelection(log="l", last=-1)])),
        "projection.logs[0].last",
    ),
    "get with an empty tag": (
        "checkpoints.GetCheckpoint",
        c.GetCheckpointRequest(version=VersionRef(tag="")),
        "version.tag",
    ),
    "list with a negative page": ("checkpoints.ListCheckpoints", c.ListCheckpointsRequest(page_size=-1), "page_size"),
    "list with an unknown status": (
        "checkpoints.ListCheckpoints",
        c.ListCheckpointsRequest(statuses=[1, 99]),
        "statuses[1]",
    ),
    "list all before a version": (
        "checkpoints.ListCheckpoints",
        c.ListCheckpointsRequest(thread="-", before=REF),
        "before",
    ),
    "history from a negative version": (
        "checkpoints.ReadHistory",
        c.ReadHistoryRequest(oldest=VersionRef(version=-1)),
        "oldest.version",
    ),
    "history from after its end": (
        "checkpoints.ReadHistory",
        c.ReadHistoryRequest(version=REF, oldest=VersionRef(version=2)),
        "oldest",
    ),
    "history in an unknown direction": ("checkpoints.ReadHistory", c.ReadHistoryRequest(order=9), "order"),
    "difference from nowhere": ("checkpoints.DiffCheckpoints", c.DiffCheckpointsRequest(), "base"),
    "threads with a negative page": ("threads.ListThreads", t.ListThreadsRequest(page_size=-1), "page_size"),
    "threads after no time": (
        "threads.ListThreads",
        t.ListThreadsRequest(updated_after=Timestamp(seconds=1 << 62)),
        "updated_after",
    ),
    "threads before no time": (
        "threads.ListThreads",
        t.ListThreadsRequest(updated_before=Timestamp(seconds=-(1 << 63), nanos=-1)),
        "updated_before",
    ),
    "wait for nothing": ("threads.WaitDurable", t.WaitDurableRequest(), "receipt.sequence"),
    "watch after a negative place": ("threads.Watch", t.WatchRequest(after_sequence=-1), "after_sequence"),
    "watch after a place never given out": ("threads.Watch", t.WatchRequest(after_sequence=99), "after_sequence"),
    "watch all after a place of one": ("threads.Watch", t.WatchRequest(thread="-", after_sequence=0), "after_sequence"),
    "watch after garbage": ("threads.Watch", t.WatchRequest(after_cursor="garbage"), "after_cursor"),
    "watch one after a cursor of all": ("threads.Watch", t.WatchRequest(after_cursor="n.1"), "after_cursor"),
    "verify a bad name": ("admin.Verify", a.VerifyRequest(thread="a\nb"), "thread"),
}


def spans(*given: tuple[int, int]) -> dict[str, Any]:
    return {"versions": {"spans": [{"first": first, "last": last} for first, last in given]}}


PLAN: dict[str, Any] = {"uid": "0" * 32, **spans((1, 1)), "newest_digest": b"d" * 16}
CHANGES: dict[str, tuple[str, Any, str]] = {
    "fork to nowhere": ("threads.ForkThread", t.ForkThreadRequest(), "new_thread"),
    "fork to all": ("threads.ForkThread", t.ForkThreadRequest(new_thread="-"), "new_thread"),
    "fork to a bad name": ("threads.ForkThread", t.ForkThreadRequest(new_thread="a\n"), "new_thread"),
    "fork one of all": (
        "threads.ForkThread",
        t.ForkThreadRequest(new_thread="x", all_versions=True, version=REF),
        "all_versions",
    ),
    "prune nothing": ("threads.PruneThread", t.PruneThreadRequest(), "what"),
    "prune no versions": ("threads.PruneThread", t.PruneThreadRequest(versions={}), "versions.spans"),
    "prune the head": ("threads.PruneThread", t.PruneThreadRequest(versions=spans_of([2])), "versions"),
    "prune to nothing": (
        "threads.PruneThread",
        t.PruneThreadRequest(keep_latest_per_branch=-1),
        "keep_latest_per_branch",
    ),
    "prune the future": ("threads.PruneThread", t.PruneThreadRequest(older_than=Duration(seconds=-1)), "older_than"),
    "prune at a negative version": (
        "threads.PruneThread",
        t.PruneThreadRequest(keep_latest_per_branch=1, options=WriteOptions(expected_version=-1)),
        "options.expected_version",
    ),
    **{
        f"prune by a plan with {what}": (
            "threads.PruneThread",
            t.PruneThreadRequest(keep_latest_per_branch=1, plan={**PLAN, **fields}, **more),
            f"plan.{field}".removesuffix("."),
        )
        for what, fields, more, field in (
            ("dry run", {}, {"dry_run": True}, ""),
            ("no uid", {"uid": ""}, {}, "uid"),
            ("a bad uid", {"uid": "me"}, {}, "uid"),
            ("no versions", spans(), {}, "versions.spans"),
            ("version 0", spans((0, 1)), {}, "versions.spans[0]"),
            ("a span that ends first", spans((2, 1)), {}, "versions.spans[0]"),
            ("spans that touch", spans((1, 1), (2, 3)), {}, "versions.spans[1]"),
            ("no digest", {"newest_digest": b""}, {}, "newest_digest"),
            ("heads that stay", {"moved_heads": [{"branch": "main"}]}, {}, "moved_heads"),
        )
    },
    "untag from version 0": (
        "threads.DeleteTag",
        t.DeleteTagRequest(tag="x", expected_tagged_version=0),
        "expected_tagged_version",
    ),
    "untag by a digest alone": (
        "threads.DeleteTag",
        t.DeleteTagRequest(tag="x", expected_tagged_digest=b"d" * 16),
        "expected_tagged_digest",
    ),
    "delete with a bad uid": (
        "threads.DeleteThread",
        t.DeleteThreadRequest(options=WriteOptions(expected_uid="me")),
        "options.expected_uid",
    ),
    "delete at a negative version": (
        "threads.DeleteThread",
        t.DeleteThreadRequest(options=WriteOptions(expected_version=-1)),
        "options.expected_version",
    ),
    "delete with an unknown durability": (
        "threads.DeleteThread",
        t.DeleteThreadRequest(options=WriteOptions(durability=99)),
        "options.durability",
    ),
    "update nothing": ("threads.UpdateThread", t.UpdateThreadRequest(), "update_mask"),
    "update what cannot be": (
        "threads.UpdateThread",
        t.UpdateThreadRequest(update_mask=FieldMask(paths=["uid"])),
        "update_mask",
    ),
    "update to no retention": (
        "threads.UpdateThread",
        t.UpdateThreadRequest(update=ThreadOptions(retention=Retention()), update_mask=FieldMask(paths=["retention"])),
        "update.retention",
    ),
    "tag without name": ("threads.SetTag", t.SetTagRequest(), "tag"),
    "tag with a long name": ("threads.SetTag", t.SetTagRequest(tag="t" * 257), "tag"),
    "tag with a request id too long": (
        "threads.SetTag",
        t.SetTagRequest(tag="t", options=WriteOptions(request_id="r" * 257)),
        "options.request_id",
    ),
    "tag expected negative": (
        "threads.SetTag",
        t.SetTagRequest(tag="t", expected_tagged_version=-1),
        "expected_tagged_version",
    ),
    "untag without name": ("threads.DeleteTag", t.DeleteTagRequest(), "tag"),
}


@pytest.mark.parametrize("name", READS | CHANGES)
def test_a_wrong_request_is_refused_by_field(untouched: Place, name: str) -> None:
    """Every other call with a wrong field is INVALID_FIELD as well, and changes nothing."""
    path, request, field = (READS | CHANGES)[name]
    asked = type(request)()
    asked.CopyFrom(request)
    asked.namespace = untouched.namespace
    if "thread" in asked.DESCRIPTOR.fields_by_name and not asked.thread:
        asked.thread = THREAD
    service, method = path.split(".")
    found = refused(getattr(getattr(untouched.wire, service), method), asked)
    assert (found.reason, found.field, found.fields) == ("INVALID_FIELD", field, (field,))


def test_bytes_that_are_no_message_are_refused(untouched: Place) -> None:
    """A body that does not parse, or names that are no UTF-8, are INVALID_FIELD and not a broken connection."""
    for method in ("CheckpointService/Save", "CheckpointService/Hydrate", "ThreadService/GetThread"):
        call = untouched.wire.channel.unary_unary(f"/stateward.v1.{method}")
        for body in (b"\xff" * 40, b"\x12\x02\xc3\x28"):
            assert refused(call, body).field == "request"


def test_archived_without_archive_is_refused(untouched: Place) -> None:
    """ARCHIVED is NO_ARCHIVE in every call that takes a durability, and nothing is written."""
    wire, place = untouched.wire, {"namespace": untouched.namespace, "thread": THREAD}
    archived = {"durability": DURABILITY_ARCHIVED}
    save = untouched.request(**archived)
    for call, request in (
        (wire.checkpoints.Save, save),
        (wire.checkpoints.BatchSave, c.BatchSaveRequest(saves=[save])),
        (wire.threads.DeleteThread, t.DeleteThreadRequest(**place, options=WriteOptions(**archived))),
        (wire.threads.WaitDurable, t.WaitDurableRequest(**place, receipt=Receipt(sequence=1), **archived)),
    ):
        found = refused(call, request)
        assert (found.reason, found.code) == ("NO_ARCHIVE", grpc.StatusCode.FAILED_PRECONDITION)


def test_a_name_of_the_longest_kind_is_taken(place: Place) -> None:
    """The limits are where they are said to be: 1,024 bytes for names, 256 for request ids and tags."""
    name = "é" * 512
    place.wire.save(
        place.request(thread=name, branch=name, expected_version=0, checkpoint_id=name, request_id="r" * 256)
    )
    tag = t.SetTagRequest(namespace=place.namespace, thread=name, branch=name, tag="t" * 256)
    assert place.wire.threads.SetTag(tag).tag.version == 1
    assert refused(place.wire.checkpoints.Save, place.request(thread=name + "x")).field == "thread"


def test_one_bad_thread_hurts_no_other_in_flight(place: Place) -> None:
    """Wrong and right saves that travel together: each right one is taken, each wrong one refused."""
    calls = []
    for number in range(40):
        bad = number % 2
        diff = edit(delete_slot=DeleteSlot(slot="missing")) if bad else appends("x")
        save = place.request(thread=f"other-{number}", expected_version=0, diff=diff)
        calls.append((bad, place.wire.checkpoints.Save.future(save, timeout=20)))
    for bad, call in calls:
        assert (call.exception() is not None) == bool(bad)
        if not bad:
            assert call.result().version == 1
