"""The danger: a late write of a deleted thread brings it back, or reaches the next thread of its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from tests.daemon.inside import daemon_inside
from tests.daemon.wire import Refusal, Wire, appends, refusal_of, refused, state, text
from tests.messages import reason_of, to_write
from tests.service.agents import Agent, Stream, new_id
from tests.service.conftest import THREAD, Place

from stateward._operations.threads import spans_of
from stateward.v1 import blob_service_pb2 as b
from stateward.v1 import checkpoint_service_pb2 as c
from stateward.v1 import effect_service_pb2 as e
from stateward.v1 import lease_service_pb2 as l
from stateward.v1 import record_service_pb2 as r
from stateward.v1 import signal_service_pb2 as s
from stateward.v1 import thread_service_pb2 as t
from stateward.v1 import writer_service_pb2 as w
from stateward.v1.call_service_pb2 import RunCallsRequest, StreamedCall
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.effect_pb2 import EFFECT_STATE_DONE, Effect
from stateward.v1.lease_pb2 import Holder
from stateward.v1.record_pb2 import RecordWrite
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.write_pb2 import Receipt, WriteOptions

HOLDER = Holder(name="late", incarnation="1")
NOBODY = "0" * 32


def streamed(request: Message) -> RunCallsRequest:
    field = "save" if isinstance(request, c.SaveRequest) else "put_effects"
    return RunCallsRequest(calls=[StreamedCall(call=1, **{field: request})])


def run_streamed(wire: Wire, request: Message) -> Message:
    (answer,) = next(wire.calls.RunCalls(iter([streamed(request)]), timeout=20)).answers
    if not answer.HasField("refused"):
        return answer  # type: ignore[no-any-return]
    assert answer.refused.code == grpc.StatusCode.ABORTED.value[0], answer.refused.message
    assert reason_of(answer.refused) == "UID_MISMATCH"
    raise Gone(answer.refused.message)


class Gone(Exception):
    """A call on a stream was refused with UID_MISMATCH."""


def open_stream(wire: Wire, request: Message) -> Message:
    return next(wire.writers.Write(iter([w.WriteRequest(open=request)]), timeout=20))  # type: ignore[no-any-return]


def write_blob(wire: Wire, request: Message) -> Message:
    parts = iter([b.WriteBlobRequest(begin=request), b.WriteBlobRequest(data=b"late")])
    return wire.blobs.WriteBlob(parts, timeout=20)  # type: ignore[no-any-return]


def effect() -> Effect:
    return Effect(key="late", value=text("late"))


# Every call that writes: what it asks for, and how it is made. ``at``: namespace, thread and expected uid.
Ask = Callable[[dict[str, str]], Message]
WRITES: dict[str, tuple[Ask, Callable[[Wire, Message], Message]]] = {
    "save": (
        lambda at: to_write(c.SaveRequest, **at, diff=appends("late"), request_id=new_id()),
        lambda wire, request: wire.checkpoints.Save(request, timeout=20),
    ),
    "save of a new branch": (
        lambda at: to_write(c.SaveRequest, **at, branch="late", expected_version=0, state=state("late")),
        lambda wire, request: wire.checkpoints.Save(request, timeout=20),
    ),
    "batch": (
        lambda at: to_write(c.SaveRequest, **at, diff=appends("late"), request_id=new_id()),
        lambda wire, request: wire.checkpoints.BatchSave(c.BatchSaveRequest(saves=[request]), timeout=20),
    ),
    "streamed save": (
        lambda at: to_write(c.SaveRequest, **at, diff=appends("late"), request_id=new_id()),
        run_streamed,
    ),
    "streamed effects": (
        lambda at: to_write(e.PutEffectsRequest, **at, effects=[effect()], request_id=new_id()),
        run_streamed,
    ),
    "writer": (lambda at: to_write(w.OpenWriter, **at, holder=HOLDER, request_id=new_id()), open_stream),
    "effects": (
        lambda at: to_write(e.PutEffectsRequest, **at, effects=[effect()], request_id=new_id()),
        lambda wire, request: wire.effects.PutEffects(request, timeout=20),
    ),
    "claim": (
        lambda at: to_write(e.BeginEffectRequest, **at, key="late", holder=HOLDER, request_id=new_id()),
        lambda wire, request: wire.effects.BeginEffect(request, timeout=20),
    ),
    "delete effects": (
        lambda at: to_write(e.DeleteEffectsRequest, **at, all=Empty(), request_id=new_id()),
        lambda wire, request: wire.effects.DeleteEffects(request, timeout=20),
    ),
    "records": (
        lambda at: to_write(
            r.PutRecordsRequest, **at, writes=[RecordWrite(key="late", value=text("late"))], request_id=new_id()
        ),
        lambda wire, request: wire.records.PutRecords(request, timeout=20),
    ),
    "records that go": (
        lambda at: to_write(
            r.PutRecordsRequest, **at, writes=[RecordWrite(key="late", delete=Empty())], request_id=new_id()
        ),
        lambda wire, request: wire.records.PutRecords(request, timeout=20),
    ),
    "delete records": (
        lambda at: to_write(r.DeleteRecordsRequest, **at, all=Empty(), request_id=new_id()),
        lambda wire, request: wire.records.DeleteRecords(request, timeout=20),
    ),
    "lease": (
        lambda at: to_write(l.AcquireLeaseRequest, **at, holder=HOLDER, request_id=new_id()),
        lambda wire, request: wire.leases.AcquireLease(request, timeout=20),
    ),
    "signal": (
        lambda at: to_write(s.SendSignalRequest, **at, name="late", request_id=new_id()),
        lambda wire, request: wire.signals.SendSignal(request, timeout=20),
    ),
    "blob": (lambda at: to_write(b.BlobBegin, **at), write_blob),
    "blob of a new thread": (lambda at: to_write(b.BlobBegin, **at, create=ThreadOptions()), write_blob),
    "settings": (
        lambda at: to_write(t.UpdateThreadRequest, **at, update={"agent": "late"}, update_mask={"paths": ["agent"]}),
        lambda wire, request: wire.threads.UpdateThread(request, timeout=20),
    ),
    "tag": (
        lambda at: to_write(t.SetTagRequest, **at, tag="late"),
        lambda wire, request: wire.threads.SetTag(request, timeout=20),
    ),
    "move": (
        lambda at: to_write(t.MoveBranchRequest, **at, version=VersionRef(version=1)),
        lambda wire, request: wire.threads.MoveBranch(request, timeout=20),
    ),
    "prune": (
        lambda at: to_write(t.PruneThreadRequest, **at, keep_latest_per_branch=1),
        lambda wire, request: wire.threads.PruneThread(request, timeout=20),
    ),
    "fork": (
        lambda at: to_write(t.ForkThreadRequest, **at, new_thread="late copy"),
        lambda wire, request: wire.threads.ForkThread(request, timeout=20),
    ),
    "delete": (
        lambda at: to_write(t.DeleteThreadRequest, **at),
        lambda wire, request: wire.threads.DeleteThread(request, timeout=20),
    ),
}  # fmt: skip


def refusal(call: Callable[[Wire, Message], Message], wire: Wire, request: Message) -> Refusal | None:
    try:
        call(wire, request)
    except grpc.RpcError as error:
        return refusal_of(error)
    except Gone:
        return None
    raise AssertionError("the write was not refused")


def remake(place: Place) -> tuple[str, str]:
    """Deletes the thread and makes it anew, with the same versions. Returns the uids before and after."""
    before = place.thread().uid
    place.wire.threads.DeleteThread(t.DeleteThreadRequest(namespace=place.namespace, thread=THREAD))
    place.wire.save(place.request(expected_version=0, diff=appends("next", "next"), request_id="next-1"))
    place.wire.save(place.request(expected_version=1, diff=appends("next"), request_id="next-2"))
    return before, place.thread().uid


@pytest.mark.parametrize("name", WRITES)
def test_a_late_write_is_refused_whatever_its_form(name: str, place: Place) -> None:
    """Nothing is made of it: neither the deleted thread again, nor a change of the next thread of that name."""
    ask, call = WRITES[name]
    old, new = remake(place)
    before = place.look()
    found = refusal(call, place.wire, ask({"namespace": place.namespace, "thread": THREAD, "expected_uid": old}))
    if found is not None:
        assert (found.reason, found.code) == ("UID_MISMATCH", grpc.StatusCode.ABORTED)
        assert {"thread": THREAD, "uid": new, "expected_uid": old}.items() <= found.metadata.items()
    assert place.look() == before
    gone = {"namespace": place.namespace, "thread": "gone", "expected_uid": old}
    found = refusal(call, place.wire, ask(gone))
    if found is not None:
        assert (found.reason, found.metadata["thread"], found.metadata["expected_uid"]) == ("UID_MISMATCH", "gone", old)
        assert "uid" not in found.metadata  # nobody has the name
    threads = place.wire.threads.ListThreads(t.ListThreadsRequest(namespace=place.namespace)).threads
    assert [thread.thread for thread in threads] == [THREAD]
    assert place.findings() == []


def guarded_save(namespace: str, thread: str, uid: str) -> c.SaveRequest:
    guard = c.LeaseGuard(thread=thread, token=1, expected_uid=uid)
    options = WriteOptions(request_id=new_id())
    return c.SaveRequest(namespace=namespace, thread="board", diff=appends("late"), options=options, guard=guard)


OTHER_WAYS: dict[str, Callable[[Wire, str, str, str], Refusal]] = {
    "the page before": lambda wire, namespace, thread, uid: refused(
        wire.checkpoints.ReadLog, c.ReadLogRequest(namespace=namespace, thread=thread, log="l", expected_uid=uid)
    ),
    "the page before, with a wait": lambda wire, namespace, thread, uid: refused(
        wire.checkpoints.ReadLog,
        c.ReadLogRequest(namespace=namespace, thread=thread, log="l", expected_uid=uid, wait={"seconds": 20}),
    ),
    "the entry": lambda wire, namespace, thread, uid: refused(
        wire.threads.WaitDurable,
        t.WaitDurableRequest(namespace=namespace, thread=thread, receipt=Receipt(uid=uid, sequence=1)),
    ),
    "the plan": lambda wire, namespace, thread, uid: refused(
        wire.threads.PruneThread,
        t.PruneThreadRequest(
            namespace=namespace, thread=thread, keep_latest_per_branch=1,
            plan=t.PrunePlan(uid=uid, versions=spans_of([1]), newest_digest=b"d" * 16),
        ),
    ),
    "the guard": lambda wire, namespace, thread, uid: refused(
        wire.checkpoints.Save, guarded_save(namespace, thread, uid)
    ),
    "the guard of an item": lambda wire, namespace, thread, uid: refused(
        wire.checkpoints.BatchSave,
        c.BatchSaveRequest(saves=[
            to_write(c.SaveRequest, namespace=namespace, thread="first", diff=appends("x"), request_id=new_id()),
            guarded_save(namespace, thread, uid),
        ]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", OTHER_WAYS)
def test_a_uid_is_named_in_other_ways_too(way: str, place: Place) -> None:
    """Of the page before, an entry, a plan, a guard: whoever names it learns that this creation is gone, and what is
    there now."""
    old, new = remake(place)
    for thread, now in ((THREAD, new), ("gone", None)):
        found = OTHER_WAYS[way](place.wire, place.namespace, thread, old)
        told = found.metadata
        assert (found.reason, told["thread"], told.get("uid")) == ("UID_MISMATCH", thread, now)
        assert (told["expected_uid"], told.get("item")) == (old, "saves[1]" if "item" in way else None)
    threads = place.wire.threads.ListThreads(t.ListThreadsRequest(namespace=place.namespace)).threads
    assert [thread.thread for thread in threads] == [THREAD]


def test_what_only_the_archive_may_know_is_gone_as_well(tmp_path: Path) -> None:
    """The archive finds no thread of the name, and knows nothing of uids: the caller is told of the uid."""
    with daemon_inside(tmp_path, archive=f"file://{tmp_path}/bucket") as daemon:
        at = {"namespace": "default", "thread": "gone", "expected_uid": NOBODY}
        for name, (ask, call) in WRITES.items():
            found = refusal(call, daemon.wire, ask(at))
            if not name.startswith("streamed"):
                assert found is not None
                assert (name, found.reason, found.metadata["expected_uid"]) == (name, "UID_MISMATCH", NOBODY)
        for way, ask_way in OTHER_WAYS.items():
            assert (way, ask_way(daemon.wire, "default", "gone", NOBODY).reason) == (way, "UID_MISMATCH")
        assert list(daemon.wire.threads.ListThreads(t.ListThreadsRequest()).threads) == []


@pytest.mark.parametrize("name", WRITES)
def test_a_write_of_the_thread_that_is_there_passes(name: str, place: Place) -> None:
    """Its uid is the expected one."""
    ask, call = WRITES[name]
    call(place.wire, ask({"namespace": place.namespace, "thread": THREAD, "expected_uid": place.thread().uid}))


@pytest.mark.parametrize("name", WRITES)
def test_a_uid_that_cannot_be_one_is_named(name: str, untouched: Place) -> None:
    """INVALID_FIELD, before anything is written."""
    ask, call = WRITES[name]
    request = ask({"namespace": untouched.namespace, "thread": THREAD, "expected_uid": "not a uid"})
    if name.startswith("streamed"):
        with pytest.raises(AssertionError, match="expected_uid"):
            run_streamed(untouched.wire, request)
        return
    found = refusal(call, untouched.wire, request)
    assert found is not None
    assert found.reason == "INVALID_FIELD"
    assert found.field.endswith("expected_uid")


def test_tokens_of_the_deleted_thread_move_nothing_of_the_next(place: Place) -> None:
    """Both creations give out the same tokens: of leases, of claims, and of a lease that guards another thread."""
    where = {"namespace": place.namespace, "thread": THREAD}
    wire, lease = place.wire, {**where, "holder": HOLDER}

    def take() -> tuple[int, int]:
        token = wire.leases.AcquireLease(
            l.AcquireLeaseRequest(**lease, options=WriteOptions(request_id="lease"))
        ).lease.token
        claim = e.BeginEffectRequest(**lease, key="call", options=WriteOptions(request_id="claim", lease_token=token))
        return token, wire.effects.BeginEffect(claim).claim_token

    old_tokens = take()
    old, new = remake(place)
    tokens = take()
    assert tokens == old_tokens
    token, claim = tokens
    ended = {"state": EFFECT_STATE_DONE, "value": text("paid")}
    late = {**where, "expected_uid": old}
    guard = {"thread": THREAD, "token": token, "expected_uid": old}
    assert refused(wire.leases.RenewLease, l.RenewLeaseRequest(**late, lease_token=token)).reason == "UID_MISMATCH"
    assert (
        refused(wire.leases.ReleaseLease, to_write(l.ReleaseLeaseRequest, **late, lease_token=token)).reason
        == "UID_MISMATCH"
    )
    complete = to_write(e.CompleteEffectRequest, **late, key="call", claim_token=claim, **ended)
    assert refused(wire.effects.CompleteEffect, complete).reason == "UID_MISMATCH"
    renewal = e.RenewEffectRequest(**late, key="call", claim_token=claim)
    assert refused(wire.effects.RenewEffect, renewal).reason == "UID_MISMATCH"
    guarded = c.SaveRequest(
        namespace=place.namespace,
        thread="board",
        diff=appends("late"),
        options=WriteOptions(request_id=new_id()),
        guard=guard,
    )
    found = refused(wire.checkpoints.Save, guarded)
    assert (found.reason, found.metadata["uid"]) == ("UID_MISMATCH", new)
    guarded.guard.expected_uid = new
    wire.save(guarded)
    complete.options.expected_uid = new
    wire.effects.CompleteEffect(complete)
    assert wire.leases.ReleaseLease(
        l.ReleaseLeaseRequest(**where, options=WriteOptions(expected_uid=new, lease_token=token))
    ).released


def test_a_writers_stream_ends_with_its_thread(make: Callable[[str], Agent], place: Place) -> None:
    """Its frames do not reach the next thread of the name, although that has a writer with the same token."""
    where = {"namespace": place.namespace, "thread": "run"}

    def begin() -> Stream:
        agent = Agent(place.wire, place.namespace, "worker", "run")
        return agent.open()

    first = begin()
    first.send()
    assert first.next().HasField("saved")
    assert first.opened.receipt.uid == place.wire.thread(place.namespace, "run").uid
    place.wire.threads.DeleteThread(t.DeleteThreadRequest(**where))
    first.send()
    assert reason_of(first.next().refused.status) == "UID_MISMATCH"
    second = begin()
    assert (second.token, second.opened.receipt.uid != first.opened.receipt.uid) == (first.token, True)
    first.reset()
    assert first.next().HasField("reset")
    first.send()
    assert reason_of(first.next().refused.status) == "UID_MISMATCH"
    second.send()
    assert second.next().saved.save.version == 1


def test_a_retry_with_the_uid_gets_the_first_answer(place: Place) -> None:
    """Whether the first attempt named the uid or not: it says which thread is meant, and not what is written."""
    uid = place.thread().uid
    first = place.wire.save(place.request(expected_version=2, request_id="again"))
    again = place.wire.save(place.request(expected_version=2, request_id="again", expected_uid=uid))
    assert (again.version, again.receipt.replayed) == (first.version, True)
    signal = {"namespace": place.namespace, "thread": THREAD, "name": "go", "request_id": "signal"}
    place.wire.signals.SendSignal(to_write(s.SendSignalRequest, **signal))
    assert place.wire.signals.SendSignal(to_write(s.SendSignalRequest, **signal, expected_uid=uid)).receipt.replayed


def test_a_repeated_deletion_leaves_the_next_thread(place: Place) -> None:
    """With the uid it deletes one creation, however often it is sent."""
    old, new = remake(place)
    request = t.DeleteThreadRequest(
        namespace=place.namespace, thread=THREAD, options=WriteOptions(expected_uid=old), allow_missing=True
    )
    assert place.wire.threads.DeleteThread(request).receipt.uid == ""
    assert place.thread().uid == new


# -- digests -----------------------------------------------------------------------------------------------------------


def test_a_digest_of_another_history_is_refused_beside_every_version(place: Place) -> None:
    """The next thread has the same numbers; whoever names version and digest of the old one changes nothing."""
    wire, head = place.wire, place.thread()
    where = {"namespace": place.namespace, "thread": THREAD}
    first = wire.checkpoints.GetCheckpoint(c.GetCheckpointRequest(**where, version=VersionRef(version=1))).checkpoint
    remake(place)
    now, before = place.thread(), place.look()
    assert (now.version, now.version_digest != head.version_digest) == (head.version, True)
    other = VersionRef(version=1, digest=first.digest)
    expected = {"expected_version": head.version, "expected_digest": head.version_digest}
    calls: list[tuple[Callable[..., Any], Message]] = [
        (wire.threads.DeleteThread, to_write(t.DeleteThreadRequest, **where, **expected)),
        (wire.threads.PruneThread, to_write(t.PruneThreadRequest, **where, **expected, keep_latest_per_branch=1)),
        (
            wire.threads.UpdateThread,
            to_write(t.UpdateThreadRequest, **where, **expected, update_mask={"paths": ["agent"]}),
        ),
        (wire.threads.MoveBranch, to_write(t.MoveBranchRequest, **where, **expected, version=VersionRef(version=1))),
        (wire.threads.MoveBranch, t.MoveBranchRequest(**where, version=other)),
        (wire.threads.SetTag, t.SetTagRequest(**where, tag="best", version=other)),
        (wire.threads.ForkThread, t.ForkThreadRequest(**where, new_thread="copy", version=other)),
        (wire.checkpoints.Save, place.request(expected_version=None, parent=other, request_id="late", branch="b")),
        (wire.checkpoints.Save, place.request(parent=VersionRef(version=2, digest=head.version_digest))),
        (wire.checkpoints.Save, place.request(expected_version=2, expected_digest=head.version_digest)),
        (wire.checkpoints.Hydrate, c.HydrateRequest(**where, version=other)),
        (wire.checkpoints.GetCheckpoint, c.GetCheckpointRequest(**where, version=other)),
        (wire.checkpoints.DiffCheckpoints, c.DiffCheckpointsRequest(**where, base=other)),
        (wire.checkpoints.ListCheckpoints, c.ListCheckpointsRequest(**where, before=other)),
        (wire.checkpoints.ReadLog, c.ReadLogRequest(**where, log="messages", version=other)),
        (lambda asked, **_: list(wire.checkpoints.ReadHistory(asked)), c.ReadHistoryRequest(**where, version=other)),
    ]  # fmt: skip
    for call, request in calls:
        found = refused(call, request)
        assert (found.reason, found.metadata["thread"]) == ("VERSION_MISMATCH", THREAD), request
        assert found.metadata["current_digest"] not in (head.version_digest.hex(), first.digest.hex()), request
    assert place.look() == before


def test_a_tag_is_moved_only_from_the_version_and_digest_that_it_names(place: Place) -> None:
    """As a head is."""
    where = {"namespace": place.namespace, "thread": THREAD, "tag": "best"}
    head = place.thread()
    place.wire.threads.SetTag(t.SetTagRequest(**where))
    right = {"expected_tagged_version": head.version, "expected_tagged_digest": head.version_digest}
    wrong = {**right, "expected_tagged_digest": b"x" * 16}
    to = VersionRef(version=1)
    found = refused(place.wire.threads.SetTag, t.SetTagRequest(**where, **wrong, version=to))
    assert found.reason == "VERSION_MISMATCH"
    assert place.wire.threads.SetTag(t.SetTagRequest(**where, **right, version=to)).tag.version == 1


@pytest.mark.parametrize(
    ("kind", "fields", "field"),
    [
        (t.DeleteThreadRequest, {"expected_digest": b"x" * 16}, "options.expected_digest"),
        (t.DeleteThreadRequest, {"expected_digest": b"x", "expected_version": 2}, "options.expected_digest"),
        (t.SetTagRequest, {"tag": "a", "expected_tagged_digest": b"x" * 16}, "expected_tagged_digest"),
        (t.SetTagRequest, {"tag": "a", "version": {"tag": "b", "digest": b"x" * 16}}, "version.digest"),
        (t.SetTagRequest, {"tag": "a", "version": {"version": 1, "digest": b"x"}}, "version.digest"),
        (
            c.SaveRequest,
            {"diff": appends("x"), "parent": {"version": 0, "digest": b"x" * 16}, "request_id": "r"},
            "parent.digest",
        ),
    ],
)
def test_a_digest_that_cannot_be_one_is_named(
    kind: Any, fields: dict[str, Any], field: str, untouched: Place
) -> None:
    """INVALID_FIELD, before anything is written."""
    calls = {
        t.DeleteThreadRequest: untouched.wire.threads.DeleteThread, t.SetTagRequest: untouched.wire.threads.SetTag,
        c.SaveRequest: untouched.wire.checkpoints.Save,
    }  # fmt: skip
    found = refused(calls[kind], to_write(kind, namespace=untouched.namespace, thread=THREAD, **fields))
    assert (found.reason, found.field) == ("INVALID_FIELD", field)
