"""Which sidecar may write a thread: attach, detach, and take over the threads of a dead machine."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from google.protobuf.message import Message

from stateward._operations.steps import Call, Operation, Step, T, ThreadRef, Upload, through
from stateward.errors import NotOwner, StatewardError
from stateward.models import ThreadInfo
from stateward.v1 import thread_service_pb2 as threads

# Time that the daemon may need in addition to the requested wait.
ATTACH_MARGIN_S = 60.0
_WRITES = frozenset(
    {"Save", "BatchSave", "PruneThread", "DeleteThread", "UpdateThread", "SetTag", "DeleteTag", "WriteBlob"}
    | {"AcquireLease", "MoveBranch", "DeleteBranch", "DeleteEffects"}
)


def attach(ref: ThreadRef, *, take_over: bool, read_only: bool, wait_s: float) -> Operation[ThreadInfo]:
    """Makes the daemon the thread's owner; with `read_only`, only lets it read the thread."""
    if sum(map(bool, (take_over, read_only, wait_s))) > 1:
        raise TypeError("attach takes only one of take_over, read_only and wait: the first two never wait")
    mode = threads.ATTACH_MODE_IF_FREE
    if take_over or read_only:
        mode = threads.ATTACH_MODE_TAKE_OVER if take_over else threads.ATTACH_MODE_READ_ONLY
    request = ref.about(threads.AttachRequest, mode=mode, wait=timedelta(seconds=wait_s) if wait_s else None)
    deadline_s = wait_s + ATTACH_MARGIN_S if wait_s else None
    return ThreadInfo.from_proto((yield Call("Attach", request, deadline_s, waits_for_owner=False)).thread)


def detach(ref: ThreadRef) -> Operation[ThreadInfo]:
    """Archives the committed versions and releases the thread."""
    request = ref.about(threads.DetachRequest)
    return ThreadInfo.from_proto((yield Call("Detach", request)).thread)


def with_take_over(operation: Operation[T]) -> Operation[T]:
    """Wraps an operation: if a write fails because another sidecar owns the thread, takes the thread over and repeats
    the write."""
    return through(operation, _perform)


def _perform(step: Step) -> Operation[object]:
    if isinstance(step, Upload) and not step.content.is_repeatable:
        yield from _take_first(step)
        return (yield step)
    taken: set[tuple[str, str]] = set()
    while True:
        try:
            return (yield step)
        except NotOwner as error:
            held = _held_thread(step, error)
            # Taken over and lost again: the other sidecar is alive. Another attempt would make both fence each other.
            if held is None or held in taken:
                raise
        taken.add(held)
        yield _attach(*held, threads.ATTACH_MODE_TAKE_OVER)


def _take_first(upload: Upload) -> Operation[None]:
    """Takes the thread over, if another sidecar owns it, before bytes are read that cannot be read again: the first
    attempt would have some of them when it fails, and the second one would write the rest."""
    begin: Any = upload.request
    try:
        yield _attach(begin.namespace, begin.thread, threads.ATTACH_MODE_IF_FREE)
    except NotOwner:
        yield _attach(begin.namespace, begin.thread, threads.ATTACH_MODE_TAKE_OVER)
    except StatewardError:
        pass  # there is no archive or no thread yet, or the upload tells what is wrong


def _attach(namespace: str, thread: str, mode: threads.AttachMode) -> Call:
    return Call("Attach", threads.AttachRequest(namespace=namespace, thread=thread, mode=mode))


def _held_thread(step: Step, error: NotOwner) -> tuple[str, str] | None:
    """Returns namespace and name of the thread whose write failed; None if the call is not a write."""
    if not isinstance(step, Call) or step.method not in _WRITES:
        return None
    request: Message | None = step.request
    if isinstance(request, threads.DeleteThreadRequest) and request.local_only:
        return None
    if step.method == "BatchSave":
        item = re.fullmatch(r"saves\[(\d+)\]", error.metadata.get("item", ""))
        request = step.request.saves[int(item[1])] if item else None  # type: ignore[attr-defined]
    return (request.namespace, request.thread) if request is not None else None  # type: ignore[attr-defined]
