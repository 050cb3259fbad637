"""A daemon seen from the wire: generated stubs only, so that no client mends or hides anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from tests.daemon.framed import FramedChannel

from stateward.v1 import (
    admin_service_pb2_grpc,
    archive_service_pb2_grpc,
    backup_service_pb2_grpc,
    blob_service_pb2_grpc,
    call_service_pb2_grpc,
    checkpoint_service_pb2_grpc,
    effect_service_pb2_grpc,
    lease_service_pb2_grpc,
    record_service_pb2_grpc,
    signal_service_pb2_grpc,
    thread_service_pb2_grpc,
    workspace_service_pb2_grpc,
    writer_service_pb2_grpc,
)
from stateward.v1.admin_service_pb2 import GetStatsRequest, VerifyFinding, VerifyRequest
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, HydrateResponse, SaveRequest, SaveResponse
from stateward.v1.diff_pb2 import Append, Diff, Edit, SetSlot
from stateward.v1.state_pb2 import Log, State, Value
from stateward.v1.thread_pb2 import ThreadInfo
from stateward.v1.thread_service_pb2 import GetThreadRequest, GetThreadResponse

DETAILS_KEY = "grpc-status-details-bin"
DOMAIN = "stateward"
TIMEOUT_S = 20.0
MESSAGE_BYTES_MAX = 80 << 20

THREAD = "booking-42"
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A typed error as it came over the wire."""

    reason: str
    code: grpc.StatusCode
    message: str
    metadata: dict[str, str]
    fields: tuple[str, ...]  # of a BadRequest, if there is one

    @property
    def field(self) -> str:
        """The field it names; empty = none."""
        return self.metadata.get("field", "")


class NotRefused(AssertionError):
    """A call that had to fail did not."""


def refusal_of(error: grpc.RpcError) -> Refusal:
    """Takes an error apart; fails unless it has exactly one ErrorInfo of this product."""
    found: list[error_details_pb2.ErrorInfo] = []
    fields: list[str] = []
    for key, data in error.trailing_metadata() or ():
        if key != DETAILS_KEY:
            continue
        status = status_pb2.Status.FromString(data)
        assert status.code == error.code().value[0]
        for detail in status.details:
            if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                found.append(error_details_pb2.ErrorInfo.FromString(detail.value))
            elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
                violations = error_details_pb2.BadRequest.FromString(detail.value).field_violations
                fields += [violation.field for violation in violations]
    assert len(found) == 1, f"{len(found)} ErrorInfo in {error.code()}: {error.details()}"
    assert found[0].domain == DOMAIN
    return Refusal(found[0].reason, error.code(), error.details() or "", dict(found[0].metadata), tuple(fields))


def refused(call: Callable[..., Any], request: Any, *, timeout: float = TIMEOUT_S) -> Refusal:
    """Makes a call that must fail, and returns how it did. Reads a stream to its end."""
    try:
        answer = call(request, timeout=timeout)
        if isinstance(answer, Iterable) and not hasattr(answer, "DESCRIPTOR"):
            list(answer)
    except grpc.RpcError as error:
        return refusal_of(error)
    raise NotRefused(f"{type(request).__name__} was answered: {str(answer)[:300]}")


def replayed(first: M) -> M:
    """The answer to a write, as a retry gets it."""
    again: Any = type(first)()
    again.CopyFrom(first)
    again.receipt.replayed = True
    return again  # type: ignore[no-any-return]


class Wire:
    """The services of a daemon."""

    def __init__(self, target: str, *, frames: bool = False) -> None:
        """``frames``: over its second socket."""
        self.target, self.name = target, "frames" if frames else "grpc"
        options = [
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
            ("grpc.use_local_subchannel_pool", 1),
            # A daemon that comes back is found at once.
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 200),
        ]
        self.channel: Any = FramedChannel(target) if frames else grpc.insecure_channel(target, options=options)
        self.backups: Any = backup_service_pb2_grpc.BackupServiceStub(self.channel)
        self.blobs: Any = blob_service_pb2_grpc.BlobServiceStub(self.channel)
        self.workspaces: Any = workspace_service_pb2_grpc.WorkspaceServiceStub(self.channel)
        self.effects: Any = effect_service_pb2_grpc.EffectServiceStub(self.channel)
        self.records: Any = record_service_pb2_grpc.RecordServiceStub(self.channel)
        self.leases: Any = lease_service_pb2_grpc.LeaseServiceStub(self.channel)
        self.signals: Any = signal_service_pb2_grpc.SignalServiceStub(self.channel)
        self.writers: Any = writer_service_pb2_grpc.WriterServiceStub(self.channel)
        self.calls: Any = call_service_pb2_grpc.CallServiceStub(self.channel)
        self.checkpoints: Any = checkpoint_service_pb2_grpc.CheckpointServiceStub(self.channel)
        self.threads: Any = thread_service_pb2_grpc.ThreadServiceStub(self.channel)
        self.archive: Any = archive_service_pb2_grpc.ArchiveServiceStub(self.channel)
        self.admin: Any = admin_service_pb2_grpc.AdminServiceStub(self.channel)

    def close(self) -> None:
        self.channel.close()

    def save(self, request: SaveRequest, timeout: float = TIMEOUT_S) -> SaveResponse:
        """Saves; waits for a daemon that is just coming up."""
        answer: SaveResponse = self.checkpoints.Save(request, timeout=timeout, wait_for_ready=True)
        return answer

    def thread(self, namespace: str, thread: str) -> ThreadInfo:
        """A thread, without its branches and tags."""
        return self.described(namespace, thread).thread

    def described(self, namespace: str, thread: str) -> GetThreadResponse:
        """What is known about a thread."""
        request = GetThreadRequest(namespace=namespace, thread=thread)
        found: GetThreadResponse = self.threads.GetThread(request, timeout=TIMEOUT_S, wait_for_ready=True)
        return found

    def hydrate(self, request: HydrateRequest) -> State:
        """The whole state a request asks for, its pages joined as the contract says."""
        whole, asked = State(), HydrateRequest()
        asked.CopyFrom(request)
        while True:
            page: HydrateResponse = self.checkpoints.Hydrate(asked, timeout=TIMEOUT_S, wait_for_ready=True)
            join_page(whole, page)
            if not page.next_page_token:
                return whole
            asked.page_token = page.next_page_token

    def hydrate_since(self, request: HydrateRequest, known: State) -> State:
        """The state that a request with a known version asks for, made of what that version has and what changed."""
        part, asked, first = State(), HydrateRequest(), None
        asked.CopyFrom(request)
        while True:
            page: HydrateResponse = self.checkpoints.Hydrate(asked, timeout=TIMEOUT_S, wait_for_ready=True)
            first = first or page
            assert page.base_version == first.base_version
            join_page(part, page)
            if not page.next_page_token:
                break
            asked.page_token = page.next_page_token
        if not first.base_version:
            return part
        assert first.base_version == request.known_version
        return put_over(known, first, part)

    def findings(self, namespace: str = "", thread: str = "") -> list[VerifyFinding]:
        """What Verify finds."""
        stream = self.admin.Verify(VerifyRequest(namespace=namespace, thread=thread), timeout=60, wait_for_ready=True)
        answers = list(stream)
        return [answer.finding for answer in answers if answer.HasField("finding")]

    def entries_written(self) -> int:
        """Journal entries written since the daemon's start."""
        return int(self.admin.GetStats(GetStatsRequest(), timeout=TIMEOUT_S).entries)


def put_over(known: State, first: HydrateResponse, part: State) -> State:
    """The state of a known version with what changed since: names to remove on the first page, and parts of a state."""
    whole = State()
    whole.CopyFrom(known)
    for name in first.removed_slots:
        whole.slots.pop(name, None)
    for name in first.removed_logs:
        whole.logs.pop(name, None)
    for name, value in part.slots.items():
        whole.slots[name].CopyFrom(value)
    for name in part.logs:
        whole.retired_logs.pop(name, None)
    whole.retired_logs.update(part.retired_logs)
    for name, log in part.logs.items():
        if name not in whole.logs:
            whole.logs[name].CopyFrom(log)
            continue
        mine = whole.logs[name]
        assert mine.first_index + len(mine.entries) == log.first_index
        mine.entries.extend(log.entries)
        mine.rewritten_version = log.rewritten_version
    return whole


def join_page(whole: State, page: HydrateResponse) -> None:
    """Adds a page to what came before it."""
    whole.partial = page.state.partial
    whole.retired_logs.update(page.state.retired_logs)
    for name, value in page.state.slots.items():
        whole.slots[name].CopyFrom(value)
    for name, log in page.state.logs.items():
        if name not in whole.logs:
            whole.logs[name].CopyFrom(log)
        else:
            whole.logs[name].entries.extend(log.entries)
    if not page.HasField("chunk"):
        return
    chunk = page.chunk
    if chunk.WhichOneof("place") == "slot":
        target = whole.slots[chunk.slot]
    else:
        entries = whole.logs[chunk.log].entries
        target = entries.add() if chunk.offset == 0 else entries[-1]
    target.media_type = chunk.media_type
    assert len(target.data) == chunk.offset
    target.data += chunk.data


def text(content: str) -> Value:
    """A value."""
    return Value(media_type="text/plain", data=content.encode())


def appends(*contents: str, log: str = "messages") -> Diff:
    """A diff that adds entries to a log."""
    return Diff(edits=[Edit(append=Append(log=log, entries=[text(content) for content in contents]))])


def sets(slot: str, content: str) -> Diff:
    """A diff that sets a slot."""
    return Diff(edits=[Edit(set_slot=SetSlot(slot=slot, value=text(content)))])


def state(*messages: str, **slots: str) -> State:
    """A full state with one log and some slots."""
    return State(
        slots={name: text(content) for name, content in slots.items()},
        logs={"messages": Log(entries=[text(content) for content in messages])},
    )
