"""Whole threads: copying and removing them, and removing versions, without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stateward._naming import is_orphans, name_for
from stateward._operations.steps import Call, Operation, ThreadRef, new_request_id, thread_error
from stateward._operations.threads import NO_UID, spans_of
from stateward.errors import ThreadNotFound, UidMismatch, VersionMismatch
from stateward.langgraph._channels import Serializer
from stateward.langgraph._lists import list_all
from stateward.langgraph._names import MAIN, channel_name
from stateward.langgraph._operations import DELTA_COUNTERS, RUN_LABEL, about, get
from stateward.v1 import checkpoint_pb2, state_pb2
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1 import thread_service_pb2 as threads

ROUNDS_MAX = 20
"""How often versions are listed anew, because a checkpoint or a deletion came before they were removed."""


def delete_thread(ref: ThreadRef) -> Operation[None]:
    """Removes a thread with all its namespaces, and not the next thread of its name if the call is repeated.

    A save that makes the thread may be on its way to the disk. If no thread is seen, the daemon is therefore asked to
    delete none, which it does after such a save, and the thread is looked for once more.
    """
    for _ in range(2):
        try:
            found: threads.GetThreadResponse = yield Call("GetThread", ref.about(threads.GetThreadRequest))
            uid = found.thread.uid
        except ThreadNotFound:
            uid = ""
        expected = uid or NO_UID
        yield Call("DeleteThread", ref.about(threads.DeleteThreadRequest, expected_uid=expected, allow_missing=True))
        if uid:
            return


def copy_thread(ref: ThreadRef, target: str) -> Operation[None]:
    """Copies a thread whole. A source that does not exist is copied as nothing."""
    request = ref.about(threads.ForkThreadRequest, new_thread=target, all_versions=True, request_id=new_request_id())
    try:
        yield Call("ForkThread", request)
    except ThreadNotFound:
        return


def keep_latest(ref: ThreadRef, serde: Serializer) -> Operation[None]:
    """Removes all versions but the newest one of each branch, and those that its delta channels are made from."""
    for _ in range(ROUNDS_MAX):
        listed = yield from list_all(ref)
        kept, branches = set[int](), set[str]()
        for message in listed:  # newest first
            if message.branch not in branches:
                branches.add(message.branch)
                kept.add(message.version)
                kept |= yield from _needed(replace(ref, branch=message.branch), serde, message, listed)
        gone = [message.version for message in listed if message.version not in kept]
        if (yield from _prune(ref, listed, gone)):
            return
    raise _changing(ref)


def _needed(
    ref: ThreadRef,
    serde: Serializer,
    newest: checkpoint_pb2.Checkpoint,
    listed: Sequence[checkpoint_pb2.Checkpoint],
) -> Operation[set[int]]:
    """The ancestors from which the delta channels of a version are made: back to one that has their value."""
    metadata, parent_id = about(serde, newest)
    channels = set(map(channel_name, metadata.get(DELTA_COUNTERS) or ()))
    by_id = {message.checkpoint_id: message for message in listed if message.branch == newest.branch}
    needed, message = set[int](), newest
    while channels:
        exactly = checkpoint_pb2.VersionRef(version=message.version, digest=message.digest)
        found = yield from get(ref, serde, exactly)
        if found is not None:
            channels -= found.channels.keys()
        if not channels or name_for(parent_id) not in by_id:
            break
        message = by_id[name_for(parent_id)]
        parent_id = about(serde, message)[1]
        needed.add(message.version)
    return needed


def _prune(
    ref: ThreadRef, listed: Sequence[checkpoint_pb2.Checkpoint], versions: Sequence[int], *, move_heads: bool = False
) -> Operation[bool]:
    """Removes versions of the thread as it was listed. False = it has gone on since, or was deleted, so the numbers may
    be others'."""
    if not versions:
        return True
    request = ref.about(threads.PruneThreadRequest, versions=spans_of(versions))
    request.move_heads, options = move_heads, request.options
    options.request_id, options.expected_uid = new_request_id(), listed[0].uid
    options.expected_version, options.expected_digest = _head(listed)
    try:
        yield Call("PruneThread", request)
    except (VersionMismatch, ThreadNotFound, UidMismatch):
        return False
    return True


def _head(listed: Sequence[checkpoint_pb2.Checkpoint]) -> tuple[int, bytes]:
    """Version and digest of the head of main; 0 and nothing = there is none."""
    return next(((message.version, message.digest) for message in listed if message.branch == MAIN), (0, b""))


def _changing(ref: ThreadRef) -> VersionMismatch:
    message = f"thread {ref.thread!r} got a new checkpoint at each of {ROUNDS_MAX} attempts to remove old ones"
    return thread_error(VersionMismatch, ref.thread, message, reason="VERSION_MISMATCH")


def delete_run(everywhere: ThreadRef, run_id: str) -> Operation[list[ThreadRef]]:
    """Removes all versions of a run, in all threads but orphans, which nobody can change. Returns the branches that
    they were on."""
    places, gone = set[ThreadRef](), dict[str, set[tuple[str, int]]]()
    label = name_for(run_id.replace("\0", ""))  # as LangGraph writes the metadata of a checkpoint
    for message in (yield from list_all(everywhere, {RUN_LABEL: label})):
        if is_orphans(message.thread):
            continue
        places.add(replace(everywhere, thread=message.thread, branch=message.branch))
        gone.setdefault(message.thread, set()).add((message.uid, message.version))
    for thread, versions in gone.items():
        yield from _delete_versions(replace(everywhere, thread=thread, branch=MAIN), versions)
    return list(places)


def _delete_versions(ref: ThreadRef, gone: set[tuple[str, int]]) -> Operation[None]:
    """Removes these versions, which are named by uid and number. A thread of which nothing is left is removed, too.

    main cannot be without a version. If only other branches are left, main gets an empty state, which is no checkpoint.
    """
    for _ in range(ROUNDS_MAX):
        listed = yield from list_all(ref)
        versions = {message.version for message in listed if (message.uid, message.version) in gone}
        if not versions:
            return
        left = {message.branch for message in listed if message.version not in versions}
        head, digest = _head(listed)
        about: dict[str, Any] = {"expected_uid": listed[0].uid, "expected_version": head, "expected_digest": digest}
        try:
            if not left:
                yield Call("DeleteThread", ref.about(threads.DeleteThreadRequest, allow_missing=True, **about))
                return
            if head and MAIN not in left:
                request = ref.on_branch(checkpoints.SaveRequest, state=state_pb2.State(), **about)
                request.options.request_id = new_request_id()
                yield Call("Save", request)
                listed = yield from list_all(ref)
        except (VersionMismatch, ThreadNotFound, UidMismatch):
            continue  # a checkpoint of another run came, or somebody deleted the thread
        if (yield from _prune(ref, listed, sorted(versions), move_heads=True)):
            return
    raise _changing(ref)
