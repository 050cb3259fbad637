"""Operations that read versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TypedDict

from stateward._operations.steps import Call, Operation, ThreadRef, projection, version_ref
from stateward._operations.uploads import fetch_blobs
from stateward._state.log import Log
from stateward.changes import Change, changes_from_proto
from stateward.errors import ThreadNotFound, VersionNotFound
from stateward.models import Checkpoint, Status, choice_number
from stateward.signals import Signal
from stateward.state import Origin, State
from stateward.v1 import checkpoint_pb2, state_pb2
from stateward.v1 import checkpoint_service_pb2 as checkpoints


class CheckpointFilters(TypedDict, total=False):
    """Which versions are listed. Every option has a default."""

    labels: Mapping[str, str] | None
    """Only versions that have all of these labels."""
    statuses: Iterable[Status | str | int]
    """Only versions that have one of these statuses; empty = any status."""
    page_size: int
    """How many versions the daemon sends at a time; 0 = its default. The list is read to its end in any case."""


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
    """A state, brought up to date by the migrations of the thread's handle, if it has any."""
    read = partial(hydrate_stored, ref, version, tag=tag, checkpoint_id=checkpoint_id, must_exist=must_exist)
    state = yield from read(slots=slots, logs=logs)
    if ref.migrations is None:
        return state
    return (yield from ref.migrations._bring_up(ref, state, read))


def hydrate_stored(
    ref: ThreadRef,
    version: int | None = None,
    *,
    tag: str | None = None,
    checkpoint_id: str | None = None,
    slots: Iterable[str] | None = None,
    logs: Mapping[str, int | None] | Iterable[str] | None = None,
    must_exist: bool = False,
) -> Operation[State]:
    """A state as it is stored, put together from its pages. Only a branch's head may be missing: that is the empty
    state."""
    request = ref.on_branch(
        checkpoints.HydrateRequest, version=version_ref(version, tag, checkpoint_id), projection=projection(slots, logs)
    )
    pinned = request.HasField("version")
    request.include_signals = not pinned
    empty = State(origin=Origin(ref.namespace, ref.thread, ref.branch))
    empty.keep_out(ref.ephemeral)
    try:
        state = yield from _read_pages(request, pinned)
    except VersionNotFound:
        if pinned or (must_exist and ref.at is None):
            raise
        if ref.at is None:
            return empty
        request.branch = ""
        request.version.version = ref.at
        state = yield from _read_pages(request, pinned=False)
    except ThreadNotFound:
        if pinned or must_exist or ref.at is not None:
            raise
        return empty
    state.keep_out(ref.ephemeral)
    return (yield from fetch_blobs(ref, state))


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
        self._signals: list[Signal] = []

    def add(self, page: checkpoints.HydrateResponse) -> None:
        self._signals += map(Signal.from_proto, page.signals)
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
        state = read_state(
            last.checkpoint,
            self._slots,
            self._logs,
            asked=request.projection,
            partial=last.state.partial,
            pinned=pinned,
        )
        state.owner_id, state.signals = last.owner_id, tuple(self._signals)
        return state


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
            name: Log(name, log.entries, log.first_index, rewritten_version=log.rewritten_version, tail=name in tails)
            for name, log in logs.items()
        },
        checkpoint=Checkpoint.from_proto(checkpoint),
        partial=partial,
        asked_slots=set(asked.slots),
        asked_logs={each.log for each in asked.logs},
        origin=Origin(checkpoint.namespace, checkpoint.thread, checkpoint.branch),
        pinned=pinned,
    )


def get_checkpoint(
    ref: ThreadRef, version: int | None, tag: str | None, checkpoint_id: str | None
) -> Operation[Checkpoint]:
    """What is known about a version."""
    request = ref.on_branch(checkpoints.GetCheckpointRequest, version=version_ref(version, tag, checkpoint_id))
    return Checkpoint.from_proto((yield Call("GetCheckpoint", request)).checkpoint)


def diff(ref: ThreadRef, a: int, b: int | None) -> Operation[list[Change]]:
    """The edits from version `a` (0 = the empty state) to `b` (None = the branch's head), in order."""
    request = ref.on_branch(checkpoints.DiffCheckpointsRequest, to=version_ref(b))
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
    before: int | None = None,
    labels: Mapping[str, str] | None = None,
    statuses: Iterable[Status | str | int] = (),
    page_size: int = 0,
) -> checkpoints.ListCheckpointsRequest:
    """The request for the first page; thread "-" = all threads."""
    return checkpoints.ListCheckpointsRequest(
        namespace=namespace,
        thread=thread,
        branch=branch,
        labels=dict(labels or {}),
        statuses=[choice_number(Status, each) for each in statuses],  # type: ignore[misc]
        before=version_ref(before),
        page_size=page_size,
    )


def read_checkpoints(request: checkpoints.ListCheckpointsRequest) -> Operation[list[Checkpoint]]:
    """The next page; moves the request's page token on, and leaves it empty at the end."""
    page: checkpoints.ListCheckpointsResponse = yield Call("ListCheckpoints", request)
    request.page_token = page.next_page_token
    return list(map(Checkpoint.from_proto, page.checkpoints))
