"""Operations that hand a thread from one agent to another: exactly one takes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from stateward import _leases, _threads, values
from stateward._operations import Operation, Pause, ThreadRef, new_request_id
from stateward._reading import hydrate_stored
from stateward._saving import SaveOptions, begin_merge, merge, save, store_values
from stateward.errors import (
    HandoffTaken,
    LeaseHeld,
    NoHandoff,
    ThreadNotFound,
    VersionMismatch,
    VersionNotFound,
)
from stateward.handoff import SLOT, Handoff, is_for, new_id, now
from stateward.models import Status, ThreadInfo
from stateward.state import State
from stateward.v1 import thread_service_pb2 as threads

# For how long the lease of who hands over may still be held after its last save.
WAIT_S = 5.0
POLL_S = 0.05
# Somebody saves between our read and our write so often that it is no handoff.
ATTEMPTS_MAX = 20
PAGE_MAX = 1000


def hand_over(
    ref: ThreadRef,
    to: str,
    summary: str,
    pending_steps: Iterable[Any],
    dependencies: Iterable[Any],
    data: Any,
    sender: str,
    state: State | None,
    options: SaveOptions,
) -> Operation[Handoff]:
    """Saves the handoff, with what changed in `state`, then gives the lease back."""
    if ref.branch != "main":
        raise ValueError("only the branch main is handed over: lists of threads show no other")
    given = {"status", "wait_id", "question"} & options.keys()
    if given:
        raise TypeError(f"handoff sets {', '.join(sorted(given))} itself")
    handoff = Handoff(
        thread=ref.thread,
        id=new_id(new_request_id(), to),
        to=to,
        sender=sender,
        summary=summary,
        pending_steps=tuple(pending_steps),
        dependencies=tuple(dependencies),
        data=data,
        time=now(),
    )
    options = {**options, "status": Status.WAITING, "wait_id": handoff.id}
    if state is not None:
        state.slots[SLOT] = handoff.to_slot()
        yield from save(ref, state, options)
    else:
        request = yield from begin_merge("handoff", ref, options)
        edit = request.diff.edits.add().set_slot
        edit.slot = SLOT
        stored = yield from store_values(ref, [values.encode(handoff.to_slot(), f"slots.{SLOT}")], options)
        edit.value.CopyFrom(stored[0])
        yield from merge(ref, request)
    if ref.held.token:
        yield from _leases.release(ref, ref.held.token)
        ref.held.token = 0
    return handoff


def take(ref: ThreadRef, taker: str, wait_s: float) -> Operation[Handoff]:
    """Marks the handoff of a thread as taken. What this taker has already, it gets again."""
    end = time.monotonic() + wait_s
    for _ in range(ATTEMPTS_MAX):
        try:
            state = yield from hydrate_stored(ref, slots=[SLOT], must_exist=True)
        except VersionNotFound:
            state = None
        checkpoint = None if state is None else state.checkpoint
        found = None if state is None else Handoff.from_slot(ref.thread, state.slots.get(SLOT))
        if state is None or found is None or checkpoint is None:
            raise NoHandoff(f"thread {ref.thread!r} is not handed to anybody", metadata={"thread": ref.thread})
        if found.taken_by:
            if found.taken_by == taker:
                return found
            raise HandoffTaken(
                f"{found.taken_by!r} took the handoff of thread {ref.thread!r} at {found.taken_time}",
                metadata={"thread": ref.thread, "taken_by": found.taken_by},
            )
        if not found.is_open(checkpoint):
            raise NoHandoff(
                f"thread {ref.thread!r} was handed to {found.to!r}, and its agent went on with it since",
                metadata={"thread": ref.thread},
            )
        taken = replace(found, taken_by=taker, taken_time=now())
        state.slots[SLOT] = taken.to_slot()
        # Keeps the wait_id until the taker's next save: so it is found by `to` when the taker dies before that.
        options: SaveOptions = {
            "status": Status.RUNNING,
            "wait_id": found.id,
            "step": checkpoint.step,
            "metrics": checkpoint.metrics,
        }
        while True:
            try:
                yield from save(ref, state, options)
            except VersionMismatch:
                break
            except LeaseHeld:
                if time.monotonic() >= end:
                    raise
                yield Pause(POLL_S)
            else:
                return taken
    raise HandoffTaken(f"others write thread {ref.thread!r} all the time", metadata={"thread": ref.thread})


def take_any(
    refer: Callable[[str], ThreadRef], request: threads.ListThreadsRequest, to: str, taker: str, wait_s: float
) -> Operation[Handoff | None]:
    """The handoff to `to` that has waited longest; None where none is open."""
    infos: list[ThreadInfo] = []
    while True:
        infos += yield from _threads.read_threads(request)
        if not request.page_token:
            break
    # What was taken and not begun comes first: this taker may have died there.
    for info in sorted((each for each in infos if is_for(each.wait_id, to)), key=_waits_since):
        try:
            return (yield from take(refer(info.name), taker, wait_s))
        except (HandoffTaken, NoHandoff, ThreadNotFound):
            continue
    return None


def _waits_since(info: ThreadInfo) -> tuple[bool, Any]:
    return info.status == Status.WAITING, info.update_time


def waiting(namespace: str, *, taken_too: bool = False) -> threads.ListThreadsRequest:
    """The request for threads that wait; with `taken_too` also for those that run."""
    statuses = [Status.WAITING, Status.RUNNING] if taken_too else [Status.WAITING]
    return _threads.list_threads(namespace, statuses=statuses, page_size=PAGE_MAX)


def read_open(
    refer: Callable[[str], ThreadRef], to: str | None, request: threads.ListThreadsRequest
) -> Operation[list[Handoff]]:
    """Those of the next page of threads."""
    found: list[Handoff] = []
    for info in (yield from _threads.read_threads(request)):
        if is_for(info.wait_id, to):
            try:
                state = yield from hydrate_stored(refer(info.name), slots=[SLOT], must_exist=True)
            except (ThreadNotFound, VersionNotFound):
                continue  # deleted meanwhile
            handoff = Handoff.from_slot(info.name, state.slots.get(SLOT))
            if handoff is not None and state.checkpoint is not None and handoff.is_open(state.checkpoint):
                found.append(handoff)
    return found
