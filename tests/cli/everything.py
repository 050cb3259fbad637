"""A thread with every kind of thing in it, and all that the API can read of it."""

from __future__ import annotations

import hashlib
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from tests.daemon.wire import Refusal, Wire, appends, refusal_of, sets, state, text
from tests.messages import to_write

from stateward._operations.threads import spans_of
from stateward.v1 import blob_service_pb2 as b
from stateward.v1 import checkpoint_service_pb2 as c
from stateward.v1 import effect_service_pb2 as e
from stateward.v1 import lease_service_pb2 as l
from stateward.v1 import record_service_pb2 as r
from stateward.v1 import signal_service_pb2 as s
from stateward.v1 import thread_service_pb2 as t
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.diff_pb2 import AddNumber, DeleteLog, DeleteSlot, Diff, Edit, ReplaceEntry, TrimLog
from stateward.v1.effect_pb2 import (
    EFFECT_STATE_DONE,
    EFFECT_STATE_FAILED,
    EFFECT_STATE_IN_PROGRESS,
    EFFECT_STATE_NEW,
    EFFECT_STATE_UNCERTAIN,
    Effect,
)
from stateward.v1.lease_pb2 import Holder
from stateward.v1.record_pb2 import RecordWrite
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_pb2 import Retention
from stateward.v1.write_pb2 import WriteOptions

HOLDER = Holder(name="worker", incarnation="1")
ATTRIBUTES = {
    "text": {"string_value": "é"}, "n": {"int_value": -(1 << 63)}, "x": {"double_value": 1.0},
    "no": {"bool_value": False},
}  # fmt: skip
LOGS = ("messages", "gone", "long", "never")
LARGE = b"blob " * 500_000
# What a restored thread has of its own.
OWN = {
    "ReadLogResponse": ("uid", "version_digest"),
    "ThreadInfo": (
        "uid", "version_digest", "sequence", "sequence_digest", "archived_sequence", "stored_bytes", "expire_time",
    ),
    "GetThreadResponse": ("lease",),
    "Branch": ("version_digest",),
    "Checkpoint": ("uid", "digest", "sequence", "stored_bytes", "durability", "acknowledged_signals"),
    "StoredRecord": ("expire_time",),
    "RecordedEffect": ("sequence",),
    "Signal": ("sequence",),
    "StatBlobResponse": ("sequence", "stored_bytes", "durability", "write_time"),
}


def edits(*changes: Any) -> Diff:
    """A diff of changes, each given as keyword of Edit."""
    return Diff(edits=[Edit(**change) for change in changes])


def fill(wire: Wire, namespace: str) -> None:
    """Makes threads of every kind."""
    _fill_rich(wire, {"namespace": namespace, "thread": "rich"})
    at = {"namespace": namespace, "thread": "no version"}
    wire.effects.BeginEffect(e.BeginEffectRequest(**at, key="pay", holder=HOLDER, options=WriteOptions(request_id="1")))
    at["thread"] = "lock"
    term = {"seconds": 3600}  # longer than the tests take
    wire.leases.AcquireLease(
        l.AcquireLeaseRequest(**at, holder=HOLDER, options=WriteOptions(request_id="1"), term=term)
    )
    at["thread"] = "store"
    wire.records.PutRecords(
        r.PutRecordsRequest(**at, writes=[RecordWrite(key="k", value=text("v"))], options=WriteOptions(request_id="1"))
    )
    wire.save(c.SaveRequest(namespace=namespace, thread="empty", options=WriteOptions(expected_version=0), diff=Diff()))
    for whole, name in ((True, "copy"), (False, "one")):
        wire.threads.ForkThread(
            t.ForkThreadRequest(
                namespace=namespace, thread="rich", new_thread=name, all_versions=whole,
                options=WriteOptions(request_id=name)
            )
        )


def _fill_rich(wire: Wire, at: dict[str, str]) -> None:
    def save(**fields: Any) -> int:
        request = to_write(c.SaveRequest, **at, **fields)
        if not request.options.HasField("expected_version") and not request.options.request_id:
            heads = {each.name: each.version for each in wire.described(**at).branches}
            request.options.expected_version = heads.get(request.branch or "main", 0)
        return wire.save(request).version

    long = "0123456789" * 2000
    options = {"labels": {"team": "red"}, "ttl": {"seconds": 10**6}, "retention": Retention(keep_last=99)}
    first = state("a", "b", "c", long=long, odd="x")
    first.logs["gone"].entries.extend([text("1"), text("2")])
    save(state=first, step=-3, checkpoint_id="first", request_id="save-1", schema_version=2, expected_version=0,
         create={**options, "parent_thread": "boss", "agent": "agent"},
         metadata=Value(media_type="x/y", data=b"\xff"),
         effects=[
             Effect(anchor="first", key=each, sort_key=each.encode(), value=text(each), keep_when_pruned=each == "y")
             for each in "zya"
         ],
    )  # fmt: skip
    save(diff=sets("long", long[:9000] + "X" + long[9000:]), labels={"k": "v"}, metrics={"cost": 0.1},
         attributes=ATTRIBUTES)  # fmt: skip  # a splice
    save(diff=edits({"add_number": AddNumber(slot="n", delta=7)}, {"delete_slot": DeleteSlot(slot="odd")},
                    {"delete_log": DeleteLog(log="gone")}, {"trim_log": TrimLog(log="messages", before_index=1)},
                    {"replace_entry": ReplaceEntry(log="messages", index=1, value=text("B"))}))  # fmt: skip
    save(diff=appends("d"), status=5, status_detail="why")
    numbers = appends(*map(str, range(300)), log="long")
    save(diff=numbers, parent=VersionRef(version=2), branch="side", checkpoint_id="first")
    _write_blobs(wire, at)
    save(diff=Diff(edits=[_named(LARGE, "slot"), _named(b"", "log")]))
    save(diff=appends("again", log="gone"), parent=VersionRef(version=1), branch="moved")
    save(diff=edits({"trim_log": TrimLog(log="messages", from_index=1)}), parent=VersionRef(version=2), branch="moved")
    for name in ("done", "waits"):
        request = s.SendSignalRequest(
            **at, name=name, sender="me", payload=text(name), options=WriteOptions(request_id=name)
        )
        wire.signals.SendSignal(request)
    done = wire.signals.ListSignals(s.ListSignalsRequest(**at)).signals[0].signal_id
    save(diff=Diff(), ack_signals=[done], status=2, wait_id="q", question={"prompt": "Go?", "answer_schema": "{}"})
    wire.signals.SendSignal(
        s.SendSignalRequest(**at, name="answer", wait_id="q", options=WriteOptions(request_id="answer"))
    )
    for tag, version in (("good", 4), ("best", 4), ("side", 5)):
        wire.threads.SetTag(t.SetTagRequest(**at, tag=tag, version=VersionRef(version=version)))
    wire.threads.DeleteTag(t.DeleteTagRequest(**at, tag="best"))
    _do_effects(wire, at)
    _put_records(wire, at)
    wire.leases.AcquireLease(l.AcquireLeaseRequest(**at, holder=HOLDER, options=WriteOptions(request_id="lease")))
    # What rewrote logs and deleted one goes, and so do parents of what stays.
    wire.threads.PruneThread(t.PruneThreadRequest(**at, versions=spans_of([3, 7])))


def _named(data: bytes, name: str) -> Edit:
    value = Value(media_type="x/blob")
    value.blob.sha256, value.blob.size_bytes = hashlib.sha256(data).digest(), len(data)
    if name == "log":
        return Edit(append={"log": "messages", "entries": [value]})
    return Edit(set_slot={"slot": name, "value": value})


def _write_blobs(wire: Wire, at: dict[str, str]) -> None:
    for data in (LARGE, b"", b"named by nothing"):
        begin = b.BlobBegin(**at, media_type="x/blob")
        pieces = [b.WriteBlobRequest(data=data[i : i + 700_000]) for i in range(0, len(data), 700_000)]
        wire.blobs.WriteBlob(iter([b.WriteBlobRequest(begin=begin), *pieces]))


def _put_records(wire: Wire, at: dict[str, str]) -> None:
    writes = [RecordWrite(key=f"a/{number}", value=Value(media_type="x/y", data=b"\xff" * number * 40))
              for number in range(150)]  # fmt: skip
    writes[0].attributes["n"].int_value = 1 << 60
    writes[1].attributes["x"].double_value = 1.0
    writes[2].ttl.seconds = 10**6
    wire.records.PutRecords(r.PutRecordsRequest(**at, writes=writes, options=WriteOptions(request_id="records")))
    again = [RecordWrite(key="a/3", delete=Empty()), RecordWrite(key="é\x1f", value=text("last"))]
    wire.records.PutRecords(r.PutRecordsRequest(**at, writes=again, options=WriteOptions(request_id="more records")))


def _do_effects(wire: Wire, at: dict[str, str]) -> None:
    ends = {
        "done": {"state": EFFECT_STATE_DONE, "value": text("receipt")},
        "failed": {"state": EFFECT_STATE_FAILED, "value": text("no"), "detail": "because"},
        "detail": {"state": EFFECT_STATE_FAILED, "detail": "only that"},
        "given up": {"state": EFFECT_STATE_NEW},
        "uncertain": {"state": EFFECT_STATE_UNCERTAIN},
        "open": None,
    }
    for key, end in ends.items():
        names = {"anchor": "a", "key": key, "name": "tool", "request_id": f"effect {key}"}
        request = to_write(e.BeginEffectRequest, **at, **names, holder=HOLDER)
        token = wire.effects.BeginEffect(request).claim_token
        if end is not None:
            wire.effects.CompleteEffect(e.CompleteEffectRequest(**at, anchor="a", key=key, claim_token=token, **end))


def read(wire: Wire, namespace: str, name: str, *, is_restored: bool) -> dict[str, Any]:
    """All that can be read of a thread, but for what a restored one has of its own."""
    at = {"namespace": namespace, "thread": name}
    thread = wire.thread(**at)
    described = wire.described(**at)
    found: dict[str, Any] = {"thread": thread, "described": described}
    listed = c.ListCheckpointsRequest(**at, page_size=1000)
    found["checkpoints"] = list(wire.checkpoints.ListCheckpoints(listed).checkpoints)
    retained = {each.version for each in found["checkpoints"]}
    for version in range(1, thread.last_version + 1):
        ref = VersionRef(version=version)
        found["state", version] = _try(wire.hydrate, c.HydrateRequest(**at, version=ref))
        found["get", version] = _try(wire.checkpoints.GetCheckpoint, c.GetCheckpointRequest(**at, version=ref))
        for log in LOGS:
            request = c.ReadLogRequest(**at, version=ref, log=log)
            found["log", version, log] = _try(wire.checkpoints.ReadLog, request)
        for base in sorted({0, *retained}):
            request = c.DiffCheckpointsRequest(**at, base=VersionRef(version=base), target=ref)
            found["diff", base, version] = _try(wire.checkpoints.DiffCheckpoints, request)
        request = c.ReadHistoryRequest(**at, version=ref)
        found["history", version] = _try(lambda each: list(wire.checkpoints.ReadHistory(each)), request)
    for branch in described.branches:
        for log in LOGS:
            request = c.ReadLogRequest(**at, branch=branch.name, log=log)
            found["log", branch.name, log] = _try(wire.checkpoints.ReadLog, request)
        for ref in (VersionRef(checkpoint_id="first"), VersionRef(tag="good")):
            request = c.GetCheckpointRequest(**at, branch=branch.name, version=ref)
            found["by", branch.name, str(ref)] = _try(wire.checkpoints.GetCheckpoint, request)
    for anchor in (None, "", "a", "first"):
        request = e.ListEffectsRequest(**at, anchor=anchor, page_size=1000)
        effects = list(wire.effects.ListEffects(request).effects)
        for each in effects:
            if each.state == EFFECT_STATE_IN_PROGRESS and not is_restored:
                each.state = EFFECT_STATE_UNCERTAIN
        found["effects", anchor] = effects
    for order in (r.RECORD_ORDER_KEY, r.RECORD_ORDER_NEWEST):
        request = r.ListRecordsRequest(**at, page_size=1000, order=order)
        found["records", order] = list(wire.records.ListRecords(request).records)
    found["signals"] = list(wire.signals.ListSignals(s.ListSignalsRequest(**at)).signals)
    for data in (LARGE, b"", b"named by nothing"):
        digest = hashlib.sha256(data).digest()
        request = b.ReadBlobRequest(**at, blob={"sha256": digest})
        found["blob", digest] = _try(lambda each: b"".join(m.data for m in wire.blobs.ReadBlob(each)), request)
        found["stat", digest] = _try(wire.blobs.StatBlob, b.StatBlobRequest(**at, sha256=digest))
    return {key: _bare(value) for key, value in found.items()}


def lists(wire: Wire, namespace: str) -> dict[str, Any]:
    """What lists across threads show."""
    threads = t.ListThreadsRequest(namespace=namespace)
    checkpoints = c.ListCheckpointsRequest(namespace=namespace, thread="-", labels={"k": "v"})
    return {
        "threads": sorted(map(str, _bare(list(wire.threads.ListThreads(threads).threads)))),
        "by label": sorted(map(str, _bare(list(wire.checkpoints.ListCheckpoints(checkpoints).checkpoints)))),
        "counts": _bare(wire.threads.CountThreads(t.CountThreadsRequest(namespace=namespace))),
    }


def _try(call: Any, request: Any) -> Any:
    try:
        return call(request)
    except grpc.RpcError as error:
        refusal: Refusal = refusal_of(error)
        return refusal.reason, refusal.code


def _bare(value: Any) -> Any:
    """Without what a restored thread has of its own, wherever it stands in a message."""
    if isinstance(value, list | tuple):
        return type(value)(map(_bare, value))
    if not hasattr(value, "DESCRIPTOR"):
        return value
    copy = type(value)()
    copy.CopyFrom(value)
    _clear(copy)
    return copy


def _clear(message: Any) -> None:
    for name in OWN.get(message.DESCRIPTOR.name, ()):
        message.ClearField(name)
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in value if field.is_repeated else (value,):
            _clear(each)
