"""Whole threads: copying and removing them, and removing versions, without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stateward._operations.steps import Call, Operation, ThreadRef, new_request_id
from stateward.errors import ThreadNotFound, VersionMismatch
from stateward.langgraph._channels import Serializer
from stateward.langgraph._lists import list_all
from stateward.langgraph._operations import MAIN, RUN_LABEL, about, get
from stateward.v1 import checkpoint_pb2, state_pb2
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1 import thread_service_pb2 as threads

DELTA_COUNTERS = "counters_since_delta_snapshot"


def delete_thread(ref: ThreadRef) -> Operation[None]:
    """Removes a thread with all its namespaces."""
    yield Call("DeleteThread", ref.about(threads.DeleteThreadRequest, allow_missing=True))


def copy_thread(ref: ThreadRef, target: str) -> Operation[None]:
    """Copies a thread whole. A source that does not exist is copied as nothing."""
    request = ref.about(threads.ForkThreadRequest, new_thread=target, whole=True, request_id=new_request_id())
    try:
        yield Call("ForkThread", request)
    except ThreadNotFound:
        return


def keep_latest(ref: ThreadRef, serde: Serializer) -> Operation[None]:
    """Removes all versions but the newest one of each branch, and those that its delta channels are made from."""
    listed = yield from list_all(ref)
    kept, branches = set[int](), set[str]()
    for message in listed:  # newest first
        if message.branch not in branches:
            branches.add(message.branch)
            kept.add(message.version)
            kept |= yield from _needed(replace(ref, branch=message.branch), serde, message, listed)
    yield from _prune(ref, [message.version for message in listed if message.version not in kept])


def _needed(
    ref: ThreadRef,
    serde: Serializer,
    newest: checkpoint_pb2.Checkpoint,
    listed: Sequence[checkpoint_pb2.Checkpoint],
) -> Operation[set[int]]:
    """The ancestors from which the delta channels of a version are made: back to one that has their value."""
    metadata, parent_id = about(serde, newest)
    channels = set(metadata.get(DELTA_COUNTERS) or ())
    by_id = {message.checkpoint_id: message for message in listed if message.branch == newest.branch}
    needed, message = set[int](), newest
    while channels:
        found = yield from get(ref, serde, message.checkpoint_id)
        if found is not None:
            channels -= found.channels.keys()
        if not channels or parent_id not in by_id:
            break
        message = by_id[parent_id]
        parent_id = about(serde, message)[1]
        needed.add(message.version)
    return needed


def _prune(ref: ThreadRef, versions: Sequence[int], *, move_heads: bool = False) -> Operation[None]:
    if versions:
        wanted = threads.VersionList(versions=versions)
        request = ref.about(threads.PruneThreadRequest, versions=wanted, move_heads=move_heads)
        request.request_id = new_request_id()
        yield Call("PruneThread", request)


def delete_run(everywhere: ThreadRef, run_id: str) -> Operation[list[ThreadRef]]:
    """Removes all versions of a run, in all threads. Returns the branches that they were on."""
    places, gone = set[ThreadRef](), dict[str, set[int]]()
    for message in (yield from list_all(everywhere, {RUN_LABEL: run_id})):
        places.add(replace(everywhere, thread=message.thread, branch=message.branch))
        gone.setdefault(message.thread, set()).add(message.version)
    for thread, versions in gone.items():
        yield from _delete_versions(replace(everywhere, thread=thread, branch=MAIN), versions)
    return list(places)


def _delete_versions(ref: ThreadRef, gone: set[int]) -> Operation[None]:
    """Removes these versions. A thread of which nothing is left is removed, too.

    main cannot be without a version. If only other branches are left, main gets an empty state, which is no checkpoint.
    """
    while True:
        listed = yield from list_all(ref)
        left = {message.branch for message in listed if message.version not in gone}
        head = next((message.version for message in listed if message.branch == MAIN), 0)
        try:
            if not left:
                all_of_it = ref.about(threads.DeleteThreadRequest, expected_version=head, allow_missing=True)
                yield Call("DeleteThread", all_of_it)
                return
            if head and MAIN not in left:
                empty = state_pb2.State()
                request = ref.on_branch(checkpoints.SaveRequest, state=empty, expected_version=head)
                request.request_id = new_request_id()
                yield Call("Save", request)
            break
        except VersionMismatch:
            continue  # a checkpoint of another run came
    yield from _prune(ref, sorted(gone & {message.version for message in listed}), move_heads=True)
