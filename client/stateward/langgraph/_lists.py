"""Lists of versions, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from stateward._operations.steps import Call, Operation, ThreadRef
from stateward._operations.unfolding import unfold
from stateward.errors import ThreadNotFound, VersionNotFound, VersionPruned
from stateward.langgraph._channels import Serializer, from_value, read_channels
from stateward.langgraph._names import by_id
from stateward.langgraph._operations import REST, Found, get, make_found
from stateward.v1 import checkpoint_pb2
from stateward.v1 import checkpoint_service_pb2 as checkpoints

PAGE = 1000


def list_all(ref: ThreadRef, labels: Mapping[str, str] | None = None) -> Operation[list[checkpoint_pb2.Checkpoint]]:
    """All versions of all branches, newest first, without states. A thread that does not exist has none."""
    request = ref.about(checkpoints.ListCheckpointsRequest, page_size=PAGE, labels=labels)
    found = list[checkpoint_pb2.Checkpoint]()
    while True:
        try:
            page: checkpoints.ListCheckpointsResponse = yield Call("ListCheckpoints", request)
        except ThreadNotFound:
            return found
        found += page.checkpoints
        request.page_token = page.next_page_token
        if not page.next_page_token:
            return found


def begin_list(
    ref: ThreadRef, before: str | None, *, all_branches: bool
) -> Operation[checkpoints.ListCheckpointsRequest]:
    """Makes the request for the first page of a list, newest first, or after the checkpoint id `before`, which need not
    exist."""
    request = ref.about(checkpoints.ListCheckpointsRequest, include_states=True, include_effects=True)
    if not all_branches:
        request.branch = ref.branch
    if at := by_id(before):
        try:
            found = yield Call("GetCheckpoint", ref.on_branch(checkpoints.GetCheckpointRequest, version=at))
        except (ThreadNotFound, VersionNotFound, VersionPruned):
            return request
        request.before.version = found.checkpoint.version
    return request


def find_one(
    ref: ThreadRef,
    serde: Serializer,
    checkpoint_id: str,
    is_wanted: Callable[[checkpoint_pb2.Checkpoint], bool],
    *,
    all_branches: bool,
) -> Operation[list[Found]]:
    """Lists the checkpoint of an id, of the branch or of any branch."""
    version = by_id(checkpoint_id)
    assert version is not None
    if all_branches:
        version.branch = "-"
    found = yield from get(ref, serde, version)
    return [found] if found is not None and is_wanted(found.message) else []


def list_found(
    ref: ThreadRef,
    serde: Serializer,
    request: checkpoints.ListCheckpointsRequest,
    is_wanted: Callable[[checkpoint_pb2.Checkpoint], bool],
) -> Operation[list[Found]]:
    """Reads the next page. Sets the request's page token to the page after it; empty = there is none.

    A list leaves out states that are too large for it. They are read one by one, from the oldest on, so that of each of
    them only what changed since the one before is sent.
    """
    try:
        page: checkpoints.ListCheckpointsResponse = yield Call("ListCheckpoints", request)
    except ThreadNotFound:
        return []
    request.page_token = page.next_page_token
    listed, known = list[Found](), None
    for shown in reversed([shown for shown in unfold(page) if is_wanted(shown.checkpoint)]):
        place = replace(ref, branch=shown.checkpoint.branch)
        if shown.state is None or shown.effects is None:
            exactly = checkpoint_pb2.VersionRef(version=shown.checkpoint.version, digest=shown.checkpoint.digest)
            found = yield from get(place, serde, exactly, known)
        else:
            slots = shown.state.slots
            rest = from_value(slots[REST]) if REST in slots else None
            found = make_found(serde, shown.checkpoint, rest, read_channels(slots, shown.state.logs), shown.effects)
        if found is not None:
            listed.append(found)
            known = found.base
    return listed[::-1]
