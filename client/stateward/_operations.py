"""What the client does, written once and without I/O.

Each operation is a generator that yields one `Call` (or `Pause`, or `Await`) at a time, gets the answer sent in or the
error thrown in, and returns its result; `Client` and `AsyncClient` drive them. A write carries one request id for all
its attempts, so that trying again is free.
"""

from __future__ import annotations

import inspect
import random
import uuid
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypedDict, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from stateward import values
from stateward.errors import NotArchivedYet, ThreadNotFound, VersionMismatch, VersionNotFound
from stateward.models import (
    Change,
    Checkpoint,
    Durability,
    DurableResult,
    PruneResult,
    Retention,
    ServerInfo,
    Stats,
    Status,
    Tag,
    ThreadInfo,
    ThreadOptions,
    changes_from_proto,
    choice_number,
    status_numbers,
)
from stateward.state import Collected, Log, Origin, State
from stateward.v1 import admin_service_pb2 as admin
from stateward.v1 import checkpoint_pb2, diff_pb2, state_pb2, thread_pb2
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1 import thread_service_pb2 as threads

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """One unary call. `retry` says whether it may be sent again when its answer was lost."""

    method: str
    request: Message
    retry: bool = True


@dataclass(frozen=True)
class Pause:
    """Waits."""

    seconds: float


@dataclass(frozen=True)
class Await:
    """Waits for something of the caller's; only AsyncClient can."""

    awaitable: Awaitable[Any]


Operation = Generator[Call | Pause | Await, Any, T]


@dataclass(frozen=True)
class ThreadRef:
    """Names a branch of a thread. `at` is the version a branch starts from if it does not exist yet; None = empty."""

    namespace: str
    thread: str
    branch: str
    at: int | None = None


class SaveOptions(TypedDict, total=False):
    """What a save can say besides the state. Everything is optional."""

    step: int | None
    """The agent's own step number; may be negative."""
    status: Status | str | None
    """Where the work stands; None = RUNNING. Names in any case, such as "waiting"."""
    status_detail: str
    """A word on the status, at most 4 KiB."""
    checkpoint_id: str
    """A name for the version, unique in its branch."""
    labels: Mapping[str, str] | None
    """At most 64; `checkpoints(labels=…)` finds by them."""
    metadata: Any
    """One opaque value, at most 256 KiB."""
    metrics: Mapping[str, float] | None
    """At most 64 numbers such as tokens or cost; cumulative by convention."""
    schema_version: int
    """The agent's number for the shape of its state; 0 = not said."""
    durability: Durability | str | None
    """What must be reached before the answer; None = the daemon's default."""
    request_id: str | None
    """Makes a save free to repeat even by another process; None = a new one for this call and all its retries."""
    create: ThreadOptions | None
    """Used only if this call makes the thread."""
    overwrite: bool
    """Writes the whole state on top of whatever is there: the last writer wins."""
    wait_id: str
    """Names what a WAITING agent waits for."""


@dataclass(frozen=True)
class PreparedSave:
    """A save that is to be made together with others by `save_all`."""

    ref: ThreadRef
    state: State
    options: SaveOptions


class _Unchanged:
    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = _Unchanged()
"""Default of `update_options`: None clears, this leaves as it is."""


# Reading


def hydrate(
    ref: ThreadRef,
    version: int | None = None,
    *,
    tag: str | None = None,
    checkpoint_id: str | None = None,
    slots: Iterable[str] | None = None,
    logs: Mapping[str, int | None] | Iterable[str] | None = None,
    must_exist: bool = False,
) -> Operation[State]:
    """A state, put together from its pages. Only a branch's head may be missing: that is the empty state."""
    request = checkpoints.HydrateRequest(
        namespace=ref.namespace,
        thread=ref.thread,
        branch=ref.branch,
        version=version_ref(version, tag, checkpoint_id),
        projection=projection(slots, logs),
    )
    pinned = request.HasField("version")
    try:
        return (yield from _read_pages(request, pinned))
    except VersionNotFound:
        if pinned:
            raise
        if ref.at is not None:
            request.branch = ""
            request.version.version = ref.at
            return (yield from _read_pages(request, pinned=False))
        if must_exist:
            raise
    except ThreadNotFound:
        if pinned or must_exist or ref.at is not None:
            raise
    return State(origin=Origin(ref.namespace, ref.thread, ref.branch))


def _read_pages(request: checkpoints.HydrateRequest, pinned: bool) -> Operation[State]:
    pages = _Pages()
    while True:
        page: checkpoints.HydrateResponse = yield Call("Hydrate", request)
        pages.add(page)
        if not page.next_page_token:
            return pages.join(request, page, pinned)
        request.page_token = page.next_page_token


class _Pages:
    """Puts the pages of one state together."""

    def __init__(self) -> None:
        self._slots: dict[str, state_pb2.Value] = {}
        self._logs: dict[str, state_pb2.Log] = {}
        self._pieces: list[bytes] = []

    def add(self, page: checkpoints.HydrateResponse) -> None:
        self._slots.update(page.state.slots)
        for name, log in page.state.logs.items():
            if name in self._logs:
                self._logs[name].entries.extend(log.entries)
            else:
                self._logs[name] = log
        if page.HasField("chunk"):
            self._add_piece(page.chunk)

    def _add_piece(self, chunk: checkpoints.ValueChunk) -> None:
        self._pieces.append(chunk.data)
        if chunk.offset + len(chunk.data) < chunk.size_bytes:
            return
        value = state_pb2.Value(media_type=chunk.media_type, data=b"".join(self._pieces))
        self._pieces.clear()
        if chunk.WhichOneof("place") == "slot":
            self._slots[chunk.slot] = value
        else:
            log = self._logs.setdefault(chunk.log, state_pb2.Log(first_index=chunk.index))
            log.entries.append(value)

    def join(self, request: checkpoints.HydrateRequest, last: checkpoints.HydrateResponse, pinned: bool) -> State:
        return read_state(
            last.checkpoint,
            self._slots,
            self._logs,
            asked=request.projection,
            partial=last.state.partial,
            pinned=pinned,
        )


def read_state(
    checkpoint: checkpoint_pb2.Checkpoint,
    slots: Mapping[str, state_pb2.Value],
    logs: Mapping[str, state_pb2.Log],
    *,
    asked: checkpoints.Projection,
    partial: bool,
    pinned: bool,
) -> State:
    """A state from what was sent; `asked` says of which logs that is only the end."""
    tails = {each.log for each in asked.logs if each.HasField("last")}
    return State(
        slots=dict(slots),
        logs={
            name: Log(
                name,
                list(log.entries),
                log.first_index,
                rewritten_version=log.rewritten_version,
                tail=name in tails,
            )
            for name, log in logs.items()
        },
        checkpoint=Checkpoint.from_proto(checkpoint),
        partial=partial,
        origin=Origin(checkpoint.namespace, checkpoint.thread, checkpoint.branch),
        pinned=pinned,
    )


def get_checkpoint(
    ref: ThreadRef, version: int | None, tag: str | None, checkpoint_id: str | None
) -> Operation[Checkpoint]:
    request = checkpoints.GetCheckpointRequest(
        namespace=ref.namespace,
        thread=ref.thread,
        branch=ref.branch,
        version=version_ref(version, tag, checkpoint_id),
    )
    return Checkpoint.from_proto((yield Call("GetCheckpoint", request)).checkpoint)


def diff(ref: ThreadRef, a: int, b: int | None) -> Operation[list[Change]]:
    """The edits from version `a` (0 = the empty state) to `b` (None = the branch's head), in order."""
    request = checkpoints.DiffCheckpointsRequest(
        namespace=ref.namespace, thread=ref.thread, branch=ref.branch, to=version_ref(b)
    )
    getattr(request, "from").version = a
    changes: list[Change] = []
    while True:
        page: checkpoints.DiffCheckpointsResponse = yield Call("DiffCheckpoints", request)
        changes += changes_from_proto(page.diff)
        if not page.next_page_token:
            return changes
        request.page_token = page.next_page_token


def list_checkpoints(
    namespace: str,
    thread: str,
    *,
    branch: str = "",
    labels: Mapping[str, str] | None = None,
    statuses: Iterable[Status | str | int] = (),
    before: int | None = None,
    page_size: int = 0,
) -> checkpoints.ListCheckpointsRequest:
    return checkpoints.ListCheckpointsRequest(
        namespace=namespace,
        thread=thread,
        branch=branch,
        labels=dict(labels or {}),
        statuses=status_numbers(statuses),  # type: ignore[arg-type]
        before=version_ref(before),
        page_size=page_size,
    )


def list_threads(
    namespace: str,
    *,
    statuses: Iterable[Status | str | int] = (),
    labels: Mapping[str, str] | None = None,
    name_prefix: str = "",
    updated_after: datetime | None = None,
    updated_before: datetime | None = None,
    min_step: int | None = None,
    max_step: int | None = None,
    page_size: int = 0,
) -> threads.ListThreadsRequest:
    return threads.ListThreadsRequest(
        namespace=namespace,
        statuses=status_numbers(statuses),  # type: ignore[arg-type]
        labels=dict(labels or {}),
        name_prefix=name_prefix,
        updated_after=_timestamp(updated_after),
        updated_before=_timestamp(updated_before),
        min_step=min_step,
        max_step=max_step,
        page_size=page_size,
    )


def read_checkpoints(request: checkpoints.ListCheckpointsRequest) -> Operation[list[Checkpoint]]:
    """The next page; moves the request's page token on, and leaves it empty at the end."""
    page: checkpoints.ListCheckpointsResponse = yield Call("ListCheckpoints", request)
    request.page_token = page.next_page_token
    return list(map(Checkpoint.from_proto, page.checkpoints))


def read_threads(request: threads.ListThreadsRequest) -> Operation[list[ThreadInfo]]:
    """As `read_checkpoints`."""
    page: threads.ListThreadsResponse = yield Call("ListThreads", request)
    request.page_token = page.next_page_token
    return list(map(ThreadInfo.from_proto, page.threads))


# Saving


def save(ref: ThreadRef, state: State, options: SaveOptions) -> Operation[Checkpoint]:
    """One version from what changed in `state`, which then continues from it."""
    saved = yield from save_all([PreparedSave(ref, state, options)], single=True)
    return saved[0]


def save_all(saves: Sequence[PreparedSave], *, single: bool = False) -> Operation[list[Checkpoint]]:
    """One version in each of several threads, all or none."""
    states = [each.state for each in saves]
    if any(state.saving for state in states) or len({id(state) for state in states}) < len(states):
        raise RuntimeError("this state is being saved already; wait for that save")
    for state in states:
        state.saving = True
    try:
        collected = []
        for each in saves:
            yield from _learn_numbers(each.ref, each.state)
            collected.append(each.state.collect())
        requests = [_save_request(each, part) for each, part in zip(saves, collected, strict=True)]
        try:
            if single:
                responses = [(yield Call("Save", requests[0]))]
            else:
                responses = (yield Call("BatchSave", checkpoints.BatchSaveRequest(saves=requests))).saves
        except VersionMismatch as error:
            raise _advise(error, saves) from None
        return _accept(saves, collected, requests, responses)
    finally:
        for state in states:
            state.saving = False


def _learn_numbers(ref: ThreadRef, state: State) -> Operation[None]:
    """Asks where logs end whose indexes cannot be known: made where one of that name may have been deleted before."""
    logs = state.logs_without_numbers()
    if logs:
        found = yield from hydrate(ref, state.version, logs={log.name: 1 for log in logs})
        for log in logs:
            log._renumber(found.logs[log.name].next_index)


def _accept(
    saves: Sequence[PreparedSave],
    collected: Sequence[Collected],
    requests: Sequence[checkpoints.SaveRequest],
    responses: Sequence[checkpoints.SaveResponse],
) -> list[Checkpoint]:
    """Rebases every state; then NotArchivedYet for the first save that is less durable than asked."""
    made, short = [], None
    for each, part, request, response in zip(saves, collected, requests, responses, strict=True):
        checkpoint = _checkpoint_from_save(request, response)
        origin = Origin(each.ref.namespace, each.ref.thread, each.ref.branch)
        each.state.rebase(part, checkpoint, origin, whole=request.overwrite)
        made.append(checkpoint)
        if response.durability < request.durability:
            short = short or checkpoint
    if short:
        raise NotArchivedYet(short)
    return made


def _save_request(prepared: PreparedSave, collected: Collected) -> checkpoints.SaveRequest:
    ref, state, options = prepared.ref, prepared.state, prepared.options
    request = _bare_save_request(ref, options)
    if options.get("overwrite"):
        request.overwrite = True
        request.state.CopyFrom(state.whole(collected))
        return request
    request.diff.CopyFrom(collected.diff)
    origin = state.origin
    if origin is not None and (origin.namespace, origin.thread) != (ref.namespace, ref.thread):
        raise ValueError(f"this state belongs to thread {origin.thread!r}, not {ref.thread!r}; fork copies a state")
    if state.version == 0 or origin is None:
        request.expected_version = 0
    elif origin.branch == ref.branch:
        request.expected_version, request.expected_digest = state.version, state.digest
    elif ref.at == state.version:
        request.expected_version = 0
        request.parent.version = state.version
    else:
        raise ValueError(
            f"this state is version {state.version} of branch {origin.branch!r}; to go on from it on another branch: "
            f'thread.branch("{ref.branch}", at={state.version}).save(state)'
        )
    return request


def _bare_save_request(ref: ThreadRef, options: SaveOptions) -> checkpoints.SaveRequest:
    """A SaveRequest without expectation and content."""
    unknown = options.keys() - SaveOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"save has no option {', '.join(sorted(unknown))}")
    metadata, create = options.get("metadata"), options.get("create")
    return checkpoints.SaveRequest(
        namespace=ref.namespace,
        thread=ref.thread,
        branch=ref.branch,
        checkpoint_id=options.get("checkpoint_id", ""),
        status=choice_number(Status, options.get("status")),  # type: ignore[arg-type]
        status_detail=options.get("status_detail", ""),
        step=options.get("step"),
        schema_version=options.get("schema_version", 0),
        labels=dict(options.get("labels") or {}),
        metadata=None if metadata is None else values.encode(metadata, "metadata"),
        metrics=dict(options.get("metrics") or {}),
        request_id=options.get("request_id") or new_request_id(),
        durability=choice_number(Durability, options.get("durability")),  # type: ignore[arg-type]
        create=None if create is None else create.to_proto(),
        wait_id=options.get("wait_id", ""),
    )


def _checkpoint_from_save(request: checkpoints.SaveRequest, response: checkpoints.SaveResponse) -> Checkpoint:
    message = checkpoint_pb2.Checkpoint(
        namespace=request.namespace,
        thread=request.thread,
        uid=response.uid,
        version=response.version,
        parent_version=response.parent_version,
        branch=request.branch,
        checkpoint_id=request.checkpoint_id,
        digest=response.digest,
        status=request.status or checkpoint_pb2.STATUS_RUNNING,
        status_detail=request.status_detail,
        step=request.step if request.HasField("step") else None,
        schema_version=request.schema_version,
        labels=dict(request.labels),
        metadata=request.metadata if request.HasField("metadata") else None,
        metrics=dict(request.metrics),
        create_time=response.create_time,
        edit_bytes=request.diff.ByteSize() if request.HasField("diff") else request.state.ByteSize(),
        sequence=response.sequence,
        durability=response.durability,
        wait_id=request.wait_id,
    )
    return Checkpoint.from_proto(message, replayed=response.replayed)


def _advise(error: VersionMismatch, saves: Sequence[PreparedSave]) -> VersionMismatch:
    """The same error, saying what to do in this client's words."""
    state = next((each.state for each in saves if each.state.pinned), saves[0].state)
    if state.pinned:
        advice = (
            f"this state was hydrated at version {state.version}, which is not the head; to go on from it on a branch "
            f'of its own: thread.branch("name", at={state.version}).save(state)'
        )
    else:
        advice = "somebody saved in between: hydrate, redo the change and save again, as thread.update(fn) does"
    return VersionMismatch(f"{error.message}; {advice}", reason=error.reason, code=error.code, metadata=error.metadata)


def update(ref: ThreadRef, fn: Callable[[State], Any], attempts: int, options: SaveOptions) -> Operation[Checkpoint]:
    """Hydrate, change, save; again from the start as long as somebody else saves in between."""
    if attempts < 1:
        raise ValueError("attempts is below 1")
    for attempt in range(1, attempts + 1):
        state = yield from hydrate(ref)
        result = fn(state)
        if inspect.isawaitable(result):
            yield Await(result)
        try:
            return (yield from save(ref, state, options))
        except VersionMismatch:
            if attempt == attempts:
                raise
        # Full jitter over a doubling range: writers that collided once must not meet again.
        yield Pause(random.uniform(0, min(0.01 * 2**attempt, 1.0)))  # noqa: S311  spreads, hides nothing
    raise AssertionError("not reached")


def append(ref: ThreadRef, log: str, entries: Sequence[Any], options: SaveOptions) -> Operation[Checkpoint]:
    """Adds entries on top of whatever is the branch's head, without reading it."""
    if not entries:
        raise ValueError("append needs at least one value")
    if options.get("overwrite"):
        raise TypeError("append has no option overwrite")
    request = _bare_save_request(ref, options)
    if ref.at is not None:
        raise ValueError(f"branch {ref.branch!r} may not exist yet: hydrate and save it once, then append")
    encoded = [values.encode(value, f"logs.{log}[{position}]") for position, value in enumerate(entries)]
    request.diff.edits.add().append.CopyFrom(diff_pb2.Append(log=log, entries=encoded))
    response = yield Call("Save", request)
    checkpoint = _checkpoint_from_save(request, response)
    if response.durability < request.durability:
        raise NotArchivedYet(checkpoint)
    return checkpoint


# Threads as a whole


def get_thread(ref: ThreadRef) -> Operation[ThreadInfo]:
    response = yield Call("GetThread", threads.GetThreadRequest(namespace=ref.namespace, thread=ref.thread))
    return ThreadInfo.from_proto(response.thread)


def fork(
    ref: ThreadRef, new_thread: str, version: int | None, whole: bool, create: ThreadOptions | None
) -> Operation[ThreadInfo]:
    request = threads.ForkThreadRequest(
        namespace=ref.namespace,
        thread=ref.thread,
        branch="" if whole else ref.branch,
        version=version_ref(version),
        new_thread=new_thread,
        whole=whole,
        create=None if create is None else create.to_proto(),
        request_id=new_request_id(),
    )
    return ThreadInfo.from_proto((yield Call("ForkThread", request)).thread)


def prune(
    ref: ThreadRef,
    versions: Iterable[int] | None,
    older_than: timedelta | None,
    keep_latest_per_branch: int | None,
    dry_run: bool,
) -> Operation[PruneResult]:
    if sum(each is not None for each in (versions, older_than, keep_latest_per_branch)) != 1:
        raise TypeError("prune takes exactly one of versions, older_than and keep_latest_per_branch")
    request = threads.PruneThreadRequest(
        namespace=ref.namespace,
        thread=ref.thread,
        versions=None if versions is None else threads.VersionList(versions=versions),
        older_than=_duration(older_than),
        keep_latest_per_branch=keep_latest_per_branch,
        dry_run=dry_run,
        request_id="" if dry_run else new_request_id(),
    )
    response: threads.PruneThreadResponse = yield Call("PruneThread", request)
    return PruneResult(tuple(response.pruned_versions), response.retained_versions)


def delete(
    ref: ThreadRef, missing_ok: bool, expected_version: int | None, durability: Durability | str | None
) -> Operation[bool]:
    """Whether there was a thread. To make a retry free, what is deleted is the uid that was seen first."""
    request = threads.DeleteThreadRequest(
        namespace=ref.namespace,
        thread=ref.thread,
        expected_version=expected_version,
        allow_missing=True,
        durability=choice_number(Durability, durability),  # type: ignore[arg-type]
    )
    if missing_ok:
        return bool((yield Call("DeleteThread", request)).uid)
    request.expected_uid = (yield from get_thread(ref)).uid
    yield Call("DeleteThread", request)
    return True


def update_options(
    ref: ThreadRef,
    *,
    labels: Mapping[str, str] | _Unchanged | None,
    ttl: timedelta | _Unchanged | None,
    retention: Retention | _Unchanged | None,
    parent_thread: str | _Unchanged | None,
    agent: str | _Unchanged | None,
) -> Operation[ThreadInfo]:
    given = {"labels": labels, "ttl": ttl, "retention": retention, "parent_thread": parent_thread, "agent": agent}
    mask = [name for name, value in given.items() if value is not UNCHANGED]
    if not mask:
        raise TypeError("update_options needs at least one option")
    options = thread_pb2.ThreadOptions(
        labels=dict(labels) if isinstance(labels, Mapping) else None,
        ttl=_duration(ttl) if isinstance(ttl, timedelta) else None,
        retention=retention.to_proto() if isinstance(retention, Retention) else None,
        parent_thread=parent_thread if isinstance(parent_thread, str) else "",
        agent=agent if isinstance(agent, str) else "",
    )
    request = threads.UpdateThreadRequest(
        namespace=ref.namespace,
        thread=ref.thread,
        options=options,
        update_mask=FieldMask(paths=mask),
        request_id=new_request_id(),
    )
    return ThreadInfo.from_proto((yield Call("UpdateThread", request)).thread)


def set_tag(ref: ThreadRef, name: str, version: int | None, expected: int | None) -> Operation[Tag]:
    request = threads.SetTagRequest(
        namespace=ref.namespace,
        thread=ref.thread,
        branch=ref.branch,
        tag=name,
        version=version_ref(version),
        expected_tagged_version=expected,
        request_id=new_request_id(),
    )
    return Tag.from_proto((yield Call("SetTag", request)).tag)


def delete_tag(ref: ThreadRef, name: str) -> Operation[Tag]:
    request = threads.DeleteTagRequest(
        namespace=ref.namespace, thread=ref.thread, tag=name, request_id=new_request_id()
    )
    return Tag.from_proto((yield Call("DeleteTag", request)).tag)


def wait_durable(ref: ThreadRef, sequence: int, durability: Durability | str | None) -> Operation[DurableResult]:
    request = threads.WaitDurableRequest(
        namespace=ref.namespace,
        thread=ref.thread,
        sequence=sequence,
        durability=choice_number(Durability, durability),  # type: ignore[arg-type]
    )
    return DurableResult.from_proto((yield Call("WaitDurable", request)))


def server_info() -> Operation[ServerInfo]:
    return ServerInfo.from_proto((yield Call("GetServerInfo", admin.GetServerInfoRequest())))


def stats() -> Operation[Stats]:
    return Stats.from_proto((yield Call("GetStats", admin.GetStatsRequest())))


# Pieces of requests


def new_request_id() -> str:
    return str(uuid.uuid4())


def version_ref(
    version: int | None, tag: str | None = None, checkpoint_id: str | None = None
) -> checkpoint_pb2.VersionRef | None:
    """The reference that is given; None = none, which means the head. TypeError for more than one."""
    given = {"version": version, "tag": tag, "checkpoint_id": checkpoint_id}
    given = {name: value for name, value in given.items() if value is not None}
    if len(given) > 1:
        raise TypeError(f"give only one of {', '.join(given)}")
    return checkpoint_pb2.VersionRef(**given) if given else None  # type: ignore[arg-type]


def projection(
    slots: Iterable[str] | None, logs: Mapping[str, int | None] | Iterable[str] | None
) -> checkpoints.Projection | None:
    if slots is None and logs is None:
        return None
    if isinstance(slots, str) or isinstance(logs, str):
        raise TypeError("slots and logs take a list of names, not one name")
    chosen = logs if isinstance(logs, Mapping) else dict.fromkeys(logs or ())
    selections = [checkpoints.LogSelection(log=name, last=last) for name, last in chosen.items()]
    return checkpoints.Projection(slots=slots or (), logs=selections)


def _timestamp(time: datetime | None) -> Timestamp | None:
    if time is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(time.astimezone(UTC))  # a naive time is local, as everywhere in Python
    return stamp


def _duration(delta: timedelta | None) -> Duration | None:
    if delta is None:
        return None
    message = Duration()
    message.FromTimedelta(delta)
    return message
