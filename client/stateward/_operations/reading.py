"""Operations that read versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, TypedDict

from stateward._operations.known import Known, LogPart
from stateward._operations.pages import read_pages
from stateward._operations.steps import Call, Operation, ThreadRef, projection, version_ref
from stateward._operations.threads import damaged, unreadable
from stateward._operations.uploads import fetch_blobs
from stateward._state.log import Log
from stateward.arguments import instance, message, several
from stateward.changes import Change, changes_from_proto
from stateward.effects import RecordedEffect
from stateward.errors import ThreadNotFound, VersionNotFound
from stateward.models import At, Checkpoint, Status, choice_number
from stateward.records import Where, write_filters
from stateward.signals import Signal
from stateward.state import Origin, State
from stateward.v1 import checkpoint_pb2, state_pb2
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1.thread_pb2 import UnreadableThread


class CheckpointFilters(TypedDict, total=False):
    """Which versions are listed. Every option has a default."""

    labels: Mapping[str, str] | None
    """Only versions that have all of these labels."""
    where: Where | None
    """Only versions that meet all of these conditions on their attributes, as in `records.list`: a dict of values that
    they must equal, or a list of (key, operator, value). The daemon reads every version."""
    statuses: Iterable[Status | str | int]
    """Only versions that have one of these statuses; empty = any status."""
    page_size: int
    """How many versions the daemon sends at a time; 0 = its default. The list is read to its end in any case."""


def hydrate(
    ref: ThreadRef,
    at: At | None = None,
    *,
    slots: Iterable[str] | None = None,
    logs: Mapping[str, int | None] | Iterable[str] | None = None,
    must_exist: bool = False,
    since: State | None = None,
    effects: bool = False,
) -> Operation[State]:
    """Reads a state, and migrates it in memory if the thread's handle has migrations."""
    if since is not None:
        instance(since, "since", State, "a State")
    if since is not None and (slots is not None or logs is not None):
        raise TypeError("hydrate takes since, or slots and logs, but not both")
    read = partial(
        hydrate_stored, ref, at, must_exist=must_exist, since=since, effects=effects
    )
    state = yield from read(slots=slots, logs=logs)
    if ref.migrations is None:
        return state
    return (yield from ref.migrations._bring_up(ref, state, read))


def hydrate_stored(
    ref: ThreadRef,
    at: At | None = None,
    *,
    slots: Iterable[str] | None = None,
    logs: Mapping[str, int | None] | Iterable[str] | None = None,
    must_exist: bool = False,
    since: State | None = None,
    effects: bool = False,
) -> Operation[State]:
    """Reads a state as it is stored. Returns the empty state if a branch has no head yet, unless `must_exist`."""
    request = ref.on_branch(
        checkpoints.HydrateRequest, version=version_ref(at), projection=projection(slots, logs), include_effects=effects
    )
    pinned = request.HasField("version")
    request.include_signals = not pinned
    origin = Origin(ref.namespace, ref.thread, ref.branch)
    known = Known.of(since, origin, ref.ephemeral) if slots is None and logs is None else None
    if known is not None:
        request.known_version, request.known_digest = known.version, known.digest
    empty = State(origin=origin)
    empty._keep_out(ref.ephemeral)
    try:
        state = yield from _read_pages(request, pinned, known)
    except VersionNotFound:
        if not pinned and ref.branch == "main":
            ref.held.read_uid = ""  # a thread without versions, which need not be the one that was read before
        if pinned or (must_exist and ref.at is None):
            raise
        if ref.at is None:
            return empty
        request.branch = ""
        request.version.CopyFrom(ref.start)
        state = yield from _read_pages(request, pinned=False, known=known)
    except ThreadNotFound:
        ref.held.read_uid = ""
        if pinned or must_exist or ref.at is not None:
            raise
        return empty
    if state.checkpoint is not None:
        ref.held.read_uid = state.checkpoint.uid
    state._keep_out(ref.ephemeral)
    return (yield from fetch_blobs(ref, state))


def _read_pages(request: checkpoints.HydrateRequest, pinned: bool, known: Known | None) -> Operation[State]:
    """Reads a state. What changed since `known` is put over that."""
    pages = yield from read_pages(request)
    last, slots, read = pages.last, pages.slots, parts_of(pages.logs)
    retired: Mapping[str, int] | None = pages.retired_logs
    is_partial = last.state.partial
    if last.base_version:
        assert known is not None
        known.change(pages.removed_slots, pages.removed_logs, slots, read, pages.retired_logs)
        slots, read, retired, is_partial = known.slots, known.logs, known.retired_logs, False
    state = read_state(
        last.checkpoint, slots, read, retired, asked=request.projection, partial=is_partial, pinned=pinned
    )
    state.owner_id, state.signals = last.owner_id, tuple(map(Signal.from_proto, pages.signals))
    state.effects = tuple(map(RecordedEffect.from_proto, pages.effects))
    return state


def parts_of(logs: Mapping[str, state_pb2.Log]) -> dict[str, LogPart]:
    """Takes logs apart, because their entries are shared with other states."""
    return {name: LogPart(log.entries, log.first_index, log.rewritten_version) for name, log in logs.items()}


def read_state(
    checkpoint: checkpoint_pb2.Checkpoint,
    slots: Mapping[str, state_pb2.Value],
    logs: Mapping[str, LogPart],
    retired_logs: Mapping[str, int] | None,
    *,
    asked: checkpoints.Projection,
    partial: bool,
    pinned: bool,
) -> State:
    """Makes a state of what the daemon sent; `asked` says which logs contain only their last entries."""
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
        retired_logs=retired_logs,
        origin=Origin(checkpoint.namespace, checkpoint.thread, checkpoint.branch),
        pinned=pinned,
    )


def get_checkpoint(ref: ThreadRef, at: At | None) -> Operation[Checkpoint]:
    """Returns the description of a version."""
    request = ref.on_branch(checkpoints.GetCheckpointRequest, version=version_ref(at))
    return Checkpoint.from_proto((yield Call("GetCheckpoint", request)).checkpoint)


def diff(ref: ThreadRef, a: At, b: At | None) -> Operation[list[Change]]:
    """Returns the edits from version `a` (0 = the empty state) to `b` (None = the branch's head), in order."""
    base, target = version_ref(a, called="a"), version_ref(b, called="b")
    request = ref.on_branch(checkpoints.DiffCheckpointsRequest, base=base, target=target)
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
    before: At | None = None,
    labels: Mapping[str, str] | None = None,
    where: Where | None = None,
    statuses: Iterable[Status | str | int] = (),
    page_size: int = 0,
    **contents: Any,
) -> checkpoints.ListCheckpointsRequest:
    """Builds the request for the first page; thread "-" = all threads. `contents` are fields that ask for states."""
    fields: dict[str, Any] = {
        "namespace": namespace,
        "thread": thread,
        "branch": branch,
        "labels": _as_dict(labels),
        "filters": write_filters(where),
        "statuses": [choice_number(Status, each, "statuses") for each in several(statuses, "statuses", "Statuses")],
        "before": version_ref(before, called="before"),
        "page_size": page_size,
    }
    return message(checkpoints.ListCheckpointsRequest, {**fields, **contents})


def _as_dict(labels: Any) -> Any:
    """A message takes no other mapping. Anything else stays as it is, to be refused by name."""
    return dict(labels) if isinstance(labels, Mapping) else labels


class NamespaceVersions:
    """The list of the versions of all threads, which is being read."""

    def __init__(self, request: checkpoints.ListCheckpointsRequest) -> None:
        self._request = request
        self._unreadable: dict[str, UnreadableThread] = {}
        self._is_over = False

    @property
    def page_token(self) -> str:
        """Empty = the list has ended."""
        return "" if self._is_over and not self._unreadable else "more"

    def next_page(self) -> Operation[list[Checkpoint]]:
        """Returns the next versions. Raises ThreadsUnreadable after the last page if the list lacks versions of threads
        that cannot be opened."""
        if self._is_over:
            raise unreadable(self._unreadable.values())
        page: checkpoints.ListCheckpointsResponse = yield Call("ListCheckpoints", self._request)
        self._unreadable.update((each.uid or each.message, each) for each in damaged(page.unreadable))
        self._request.page_token = page.next_page_token
        self._is_over = not page.next_page_token
        return list(map(Checkpoint.from_proto, page.checkpoints))


def read_checkpoints(request: checkpoints.ListCheckpointsRequest) -> Operation[list[Checkpoint]]:
    """Reads the next page. Sets the request's page token to the page after it; empty = there is none."""
    page: checkpoints.ListCheckpointsResponse = yield Call("ListCheckpoints", request)
    request.page_token = page.next_page_token
    return list(map(Checkpoint.from_proto, page.checkpoints))
