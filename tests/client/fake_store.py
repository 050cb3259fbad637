"""What the fake daemon keeps: whole states by version, with edits applied one by one as `diff.proto` says."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from typing import Any

import grpc

from stateward.v1 import checkpoint_pb2, checkpoint_service_pb2, diff_pb2, state_pb2, thread_pb2, thread_service_pb2
from stateward.v1.write_pb2 import Receipt


class Fault(Exception):
    """An error that the fake answers with."""

    def __init__(self, reason: str, **metadata: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.metadata = {key: str(value) for key, value in metadata.items()}


@dataclass
class Version:
    checkpoint: checkpoint_pb2.Checkpoint
    state: state_pb2.State
    diff: diff_pb2.Diff
    retired: dict[str, int]


@dataclass
class StoredThread:
    uid: str
    versions: dict[int, Version] = field(default_factory=dict)
    branches: dict[str, int] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)
    options: thread_pb2.ThreadOptions = field(default_factory=thread_pb2.ThreadOptions)
    events: list[thread_service_pb2.JournalEvent] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)


def apply_edits(state: state_pb2.State, retired: dict[str, int], diff: diff_pb2.Diff, version: int) -> None:
    for number, edit in enumerate(diff.edits):
        try:
            _apply_edit(state, retired, edit, version)
        except Fault as fault:
            fault.metadata.setdefault("edit", str(number))
            raise


def _apply_edit(  # noqa: C901  one function applies all edits
    state: state_pb2.State, retired: dict[str, int], edit: diff_pb2.Edit, version: int
) -> None:
    kind = edit.WhichOneof("edit")
    change = getattr(edit, kind)
    if kind in ("delete_slot", "splice_slot") and change.slot not in state.slots:
        raise Fault("EDIT_CONFLICT", field="slot")
    if kind in ("replace_entry", "trim_log", "delete_log") and change.log not in state.logs:
        raise Fault("EDIT_CONFLICT", field="log")
    if kind == "set_slot":
        state.slots[change.slot].CopyFrom(change.value)
    elif kind == "delete_slot":
        del state.slots[change.slot]
    elif kind == "splice_slot":
        data = state.slots[change.slot].data
        if hashlib.sha256(data).digest() != change.base_sha256:
            raise Fault("EDIT_CONFLICT", field="base_sha256")
        for splice in reversed(change.splices):
            data = data[: splice.offset] + splice.insert + data[splice.offset + splice.delete :]
        state.slots[change.slot].data = data
    elif kind == "append":
        if change.log not in state.logs:
            state.logs[change.log].first_index = retired.pop(change.log, 0)
        state.logs[change.log].entries.extend(change.entries)
    elif kind == "replace_entry":
        log = state.logs[change.log]
        if not 0 <= change.index - log.first_index < len(log.entries):
            raise Fault("EDIT_CONFLICT", field="index")
        log.entries[change.index - log.first_index].CopyFrom(change.value)
        log.rewritten_version = version
    elif kind == "trim_log":
        _trim(state.logs[change.log], change, version)
    elif kind == "delete_log":
        log = state.logs[change.log]
        retired[change.log] = log.first_index + len(log.entries)
        del state.logs[change.log]


def _trim(log: state_pb2.Log, change: diff_pb2.TrimLog, version: int) -> None:
    end = log.first_index + len(log.entries)
    match change.WhichOneof("trim"):
        case "from_index":
            if change.from_index > end:
                raise Fault("EDIT_CONFLICT", field="from_index")
            del log.entries[max(change.from_index - log.first_index, 0) :]
        case "before_index" | "keep_last" as kind:
            before = change.before_index if kind == "before_index" else end - change.keep_last
            if before > end:
                raise Fault("EDIT_CONFLICT", field="before_index")
            dropped = max(before - log.first_index, 0)
            del log.entries[:dropped]
            log.first_index += dropped
    log.rewritten_version = version


class FakeStore:
    """Threads by (namespace, name), and what is to go wrong next."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.threads: dict[tuple[str, str], StoredThread] = {}
        self.log: list[thread_service_pb2.JournalEvent] = []  # all events, for watches of the namespace
        self.saves: list[checkpoint_service_pb2.SaveRequest] = []  # every attempt that arrived
        self.lose_answers = 0  # so many writes are made and then answered with lost_code
        self.lost_code = grpc.StatusCode.UNAVAILABLE
        self.fail_before = 0  # so many calls fail with SHUTTING_DOWN before anything is done
        self.break_streams = 0  # so many watches end after their next event
        self.reached = checkpoint_pb2.DURABILITY_COMMITTED
        self.created = 0
        self.archive = False  # True: ARCHIVED is accepted, and COMMITTED reached

    def thread(self, namespace: str, name: str) -> StoredThread:
        try:
            return self.threads[namespace, name]
        except KeyError:
            raise Fault("THREAD_NOT_FOUND", thread=name) from None

    def resolve(self, thread: StoredThread, branch: str, ref: checkpoint_pb2.VersionRef | None) -> Version:
        kind = ref.WhichOneof("ref") if ref is not None else None
        if kind is None:
            number = thread.branches.get(branch or "main", 0)
        elif kind == "version":
            number = ref.version
        elif kind == "tag":
            number = thread.tags.get(ref.tag, 0)
        else:
            asked = ref.branch or branch or "main"
            found = [
                each for each in thread.versions.values()
                if each.checkpoint.checkpoint_id == ref.checkpoint_id and asked in ("-", each.checkpoint.branch)
            ]  # fmt: skip
            number = found[-1].checkpoint.version if found else 0
        if number not in thread.versions:
            raise Fault("VERSION_NOT_FOUND", version=number)
        return thread.versions[number]

    def emit(self, namespace: str, name: str, thread: StoredThread, **what: Any) -> thread_service_pb2.JournalEvent:
        event = thread_service_pb2.JournalEvent(thread=name, uid=thread.uid, sequence=len(thread.events) + 1, **what)
        event.cursor = str(len(self.log) + 1)
        event.time.GetCurrentTime()
        thread.events.append(event)
        self.log.append(event)
        self.changed.notify_all()
        return event

    def save(self, request: checkpoint_service_pb2.SaveRequest) -> checkpoint_service_pb2.SaveResponse:
        key, branch = (request.namespace, request.thread), request.branch or "main"
        thread = self.threads.get(key)
        if thread is not None and request.options.request_id in thread.answers:
            answer = checkpoint_service_pb2.SaveResponse()
            answer.CopyFrom(thread.answers[request.options.request_id])
            answer.receipt.replayed = True
            return answer
        if request.options.durability == checkpoint_pb2.DURABILITY_ARCHIVED and not self.archive:
            raise Fault("NO_ARCHIVE")
        head = thread.branches.get(branch, 0) if thread else 0
        self._check_expected(request, thread, head)
        base = self._parent(request, thread, head)
        number = max(thread.versions, default=0) + 1 if thread else 1
        state, retired = state_pb2.State(), dict(base.retired) if base else {}
        if request.WhichOneof("content") == "state":
            state.CopyFrom(request.state)
            for name, log in state.logs.items():
                log.first_index = base.state.logs[name].first_index if base and name in base.state.logs else 0
        else:
            if base:
                state.CopyFrom(base.state)
            apply_edits(state, retired, request.diff, number)
        if thread is None:
            self.created += 1
            thread = self.threads[key] = StoredThread(f"{self.created:032x}")
            thread.options.CopyFrom(request.options.create)
        return self._store(request, thread, base, number, state, retired)

    def _check_expected(self, request: Any, thread: StoredThread | None, head: int) -> None:
        digest = thread.versions[head].checkpoint.digest if thread and head else b""
        if request.options.HasField("expected_version"):
            other = request.options.expected_digest and request.options.expected_digest != digest
            if request.options.expected_version != head or other:
                facts = {"current_version": head, "current_digest": digest.hex()}
                raise Fault("VERSION_MISMATCH", expected_version=request.options.expected_version, **facts)
        elif not request.options.request_id:
            raise Fault("INVALID_FIELD", field="options.request_id")

    def _parent(self, request: Any, thread: StoredThread | None, head: int) -> Version | None:
        if request.HasField("parent"):
            if thread is None:
                raise Fault("THREAD_NOT_FOUND", thread=request.thread)
            return self.resolve(thread, request.branch, request.parent)
        return thread.versions[head] if thread and head else None

    def _store(
        self,
        request: Any,
        thread: StoredThread,
        base: Version | None,
        number: int,
        state: state_pb2.State,
        retired: dict[str, int],
    ) -> checkpoint_service_pb2.SaveResponse:
        checkpoint = checkpoint_pb2.Checkpoint(
            namespace=request.namespace,
            thread=request.thread,
            uid=thread.uid,
            version=number,
            parent_version=base.checkpoint.version if base else 0,
            branch=request.branch or "main",
            checkpoint_id=request.checkpoint_id,
            parent_checkpoint_id=base.checkpoint.checkpoint_id if base else "",
            status=request.status or 1,
            status_detail=request.status_detail,
            step=request.step if request.HasField("step") else None,
            schema_version=request.schema_version,
            labels=dict(request.labels),
            attributes=dict(request.attributes),
            metadata=request.metadata if request.HasField("metadata") else None,
            metrics=dict(request.metrics),
            sequence=len(thread.events) + 1,
            durability=self.reached,
            wait_id=request.wait_id,
            edit_bytes=request.diff.ByteSize() or request.state.ByteSize(),
            stored_bytes=request.ByteSize(),
        )
        before = base.checkpoint.digest if base else b""
        checkpoint.digest = hashlib.sha256(before + request.SerializeToString(deterministic=True)).digest()[:16]
        checkpoint.create_time.GetCurrentTime()
        state.retired_logs.clear()
        state.retired_logs.update({name: index for name, index in retired.items() if index})
        thread.versions[number] = Version(checkpoint, state, request.diff, retired)
        thread.branches[checkpoint.branch] = number
        self.emit(request.namespace, request.thread, thread, checkpoint=checkpoint)
        answer = checkpoint_service_pb2.SaveResponse(
            version=number,
            receipt=Receipt(
                uid=thread.uid, sequence=checkpoint.sequence, digest=checkpoint.digest, durability=self.reached
            ),
            parent_version=checkpoint.parent_version,
            parent_checkpoint_id=checkpoint.parent_checkpoint_id,
            create_time=checkpoint.create_time,
            stored_bytes=checkpoint.stored_bytes,
        )
        if request.options.request_id:
            thread.answers[request.options.request_id] = answer
        return answer

    def describe(self, namespace: str, name: str) -> thread_pb2.ThreadInfo:
        thread = self.thread(namespace, name)
        head = thread.branches.get("main", 0)
        message = thread_pb2.ThreadInfo(namespace=namespace, thread=name, uid=thread.uid, sequence=len(thread.events))
        message.labels.update(thread.options.labels)
        message.agent, message.parent_thread = thread.options.agent, thread.options.parent_thread
        if thread.options.HasField("ttl"):
            message.ttl.CopyFrom(thread.options.ttl)
        if thread.options.HasField("retention"):
            message.retention.CopyFrom(thread.options.retention)
        message.last_version, message.retained_versions = max(thread.versions, default=0), len(thread.versions)
        if head:
            checkpoint = thread.versions[head].checkpoint
            message.version, message.version_digest, message.status = head, checkpoint.digest, checkpoint.status
            if checkpoint.HasField("step"):
                message.step = checkpoint.step
        return message

    def describe_all(self, namespace: str, name: str) -> thread_service_pb2.GetThreadResponse:
        thread, message = self.thread(namespace, name), self.describe(namespace, name)
        answer = thread_service_pb2.GetThreadResponse(thread=message)
        for branch, version in sorted(thread.branches.items()):
            answer.branches.add(name=branch, version=version)
        for tag, version in sorted(thread.tags.items()):
            answer.tags.add(name=tag, version=version)
        return answer
