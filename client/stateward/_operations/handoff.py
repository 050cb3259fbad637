"""Operations that hand a thread over from one agent to another. Exactly one agent takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from stateward._operations import leases, threads
from stateward._operations.merging import ANY, set_slot
from stateward._operations.reading import hydrate_stored
from stateward._operations.retry import Backoff
from stateward._operations.saving import SaveOptions, require_state, save
from stateward._operations.steps import Operation, Pause, ThreadRef, at_once, new_request_id, read_pages, thread_error
from stateward.arguments import several
from stateward.durations import Duration, seconds
from stateward.errors import (
    HandoffTaken,
    LeaseHeld,
    NoArchive,
    NoHandoff,
    NotArchivedYet,
    NotOwner,
    StatewardError,
    ThreadNotFound,
    UidMismatch,
    VersionMismatch,
    VersionNotFound,
)
from stateward.handoff import SLOT, Handoff, is_for, new_id
from stateward.models import Checkpoint, Durability, Status, ThreadInfo, choice_number
from stateward.state import State
from stateward.v1 import thread_service_pb2 as pb

# How long to wait by default while the sender still holds the thread after its last save.
WAIT_S = 5.0
FIRST_POLL_S, MAX_POLL_S = 0.05, 0.5
# A thread that others save this often, each time between the taker's read and its write, is in use.
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
    """Saves the handoff, with the changes of `state` if it is given, then gives the lease back."""
    if ref.branch != "main":
        raise ValueError("only the branch main can be handed over: lists of threads show no other branch")
    if given := {"status", "wait_id", "question"} & options.keys():
        raise TypeError(f"hand_over sets {', '.join(sorted(given))} itself")
    if state is not None:
        require_state(state, "hand_over")
    handoff = Handoff(
        thread=ref.thread,
        id=new_id(new_request_id(), to),
        to=to,
        sender=sender,
        summary=summary,
        pending_steps=tuple(several(pending_steps, "pending_steps", "steps")),
        dependencies=tuple(several(dependencies, "dependencies", "dependencies")),
        data=data,
        time=datetime.now(UTC),
    )
    options = {**options, "status": Status.WAITING, "wait_id": handoff.id}
    late: NotArchivedYet | None = None
    try:
        if state is None:
            checkpoint = yield from set_slot(ref, SLOT, handoff.to_slot(), ANY, options, what="hand_over")
        else:
            state.slots[SLOT] = handoff.to_slot()
            checkpoint = yield from save(ref, state, options)
    except NotArchivedYet as error:
        late = error
    if token := ref.held.token:
        released = yield from leases.release(ref, token, ref.held.lease_uid)
        ref.held.give_back(token)
        if released and late is None and checkpoint.durability == Durability.ARCHIVED:
            yield from _archive_release(ref, checkpoint)
    if late is not None:
        raise late
    return handoff


def _archive_release(ref: ThreadRef, checkpoint: Checkpoint) -> Operation[None]:
    """Waits until the release of the lease is archived. The sidecar gave the thread up with the save, and took it again
    for the release: no other machine can take the thread before that is archived, too."""
    try:
        info = yield from threads.get_thread(ref)
        yield from threads.wait_archived(ref, info.sequence, None)
    except NotArchivedYet:
        raise NotArchivedYet(ref.thread, info.sequence, checkpoint, [checkpoint]) from None
    except (NotOwner, ThreadNotFound, UidMismatch):
        pass  # another agent has taken or deleted it already


@dataclass(frozen=True)
class Taking:
    """Who takes handoffs, and how."""

    taker: str
    wait_s: float = WAIT_S
    durability: int | None = None
    """The level that the taking must reach; None = the highest level of the daemon."""

    @classmethod
    def of(cls, taker: str, wait: Duration, durability: Durability | str | None) -> Taking:
        return cls(taker, seconds(wait, "wait"), choice_number(Durability, durability))


def take(ref: ThreadRef, taking: Taking) -> Operation[Handoff]:
    """Marks the handoff of a thread as taken. Returns a handoff that the same taker took earlier again."""
    taker, backoff = taking.taker, Backoff(FIRST_POLL_S, MAX_POLL_S, taking.wait_s)
    for _ in range(ATTEMPTS_MAX):
        state, checkpoint, found = yield from _read(ref)
        if found.taken_by:
            if found.taken_by == taker:
                yield from _settle(ref, checkpoint, taking)
                return found
            what = f"{found.taken_by!r} took the handoff of thread {ref.thread!r} at {found.taken_time}"
            raise thread_error(HandoffTaken, ref.thread, what, taken_by=found.taken_by)
        if not found.is_open(checkpoint):
            what = f"thread {ref.thread!r} was handed to {found.to!r}, but its sender has continued it since then"
            raise thread_error(NoHandoff, ref.thread, what)
        taken = replace(found, taken_by=taker, taken_time=datetime.now(UTC))
        state.slots[SLOT] = taken.to_slot()
        # Keeps the wait_id until the taker's next save: if the taker dies before that, `to` still finds the thread.
        options: SaveOptions = {
            "status": Status.RUNNING,
            "wait_id": found.id,
            "step": checkpoint.step,
            "metrics": checkpoint.metrics,
        }
        while True:
            try:
                yield from at_once(_save_taken(ref, state, options, taking))
            except VersionMismatch:
                break
            except (LeaseHeld, NotOwner):
                if (pause_s := backoff.next_s()) is None:
                    raise
                yield Pause(pause_s)
            except NotArchivedYet as late:
                yield from _give_back(ref, found, state, options, late)
                raise
            else:
                return taken
    what = f"others saved thread {ref.thread!r} during each of {ATTEMPTS_MAX} attempts to take it"
    raise thread_error(HandoffTaken, ref.thread, what)


def _read(ref: ThreadRef) -> Operation[tuple[State, Checkpoint, Handoff]]:
    """Reads the handoff at the thread's head. Raises NoHandoff if there is none."""
    with suppress(VersionNotFound):
        state = yield from hydrate_stored(ref, slots=[SLOT], must_exist=True)
        found = Handoff.from_slot(ref.thread, state.slots.get(SLOT))
        if found is not None and state.checkpoint is not None:
            return state, state.checkpoint, found
    raise thread_error(NoHandoff, ref.thread, f"thread {ref.thread!r} is not handed to anybody")


def _save_taken(ref: ThreadRef, state: State, options: SaveOptions, taking: Taking) -> Operation[None]:
    """Saves the taking, archived if there is an archive: then no other machine finds the handoff open if this machine
    is lost."""
    durability = taking.durability or Durability.ARCHIVED
    try:
        yield from save(ref, state, {**options, "durability": Durability(durability)})
    except NoArchive:
        if taking.durability:
            raise
        yield from save(ref, state, options)


def _settle(ref: ThreadRef, checkpoint: Checkpoint, taking: Taking) -> Operation[None]:
    """Makes an earlier taking as durable, since the process that took the handoff may have died before it was."""
    durability = taking.durability or Durability.ARCHIVED
    if durability == Durability.ARCHIVED and checkpoint.durability != Durability.ARCHIVED:
        try:
            yield from threads.wait_archived(ref, checkpoint, None)
        except NoArchive:
            if taking.durability:
                raise


def _give_back(
    ref: ThreadRef, found: Handoff, state: State, options: SaveOptions, late: NotArchivedYet
) -> Operation[None]:
    """Opens the handoff again if its taking was not archived in time: a taker without a name cannot return to it."""
    state.slots[SLOT] = found.to_slot()
    try:
        yield from save(ref, state, {**options, "status": Status.WAITING, "durability": Durability.COMMITTED})
        late.add_note("the handoff was given back and can be taken again, by any agent")
    except StatewardError as error:
        late.add_note(f"the handoff stays taken, since it could not be given back: {error}")


def take_any(
    refer: Callable[[str], ThreadRef], request: pb.ListThreadsRequest, to: str, taking: Taking
) -> Operation[Handoff | None]:
    """Takes the handoff to `to` that has waited longest; returns None if none is open. If all their threads are still
    held, it waits, and raises LeaseHeld or NotOwner if none is free in time."""
    unwaiting, backoff = replace(taking, wait_s=0), Backoff(FIRST_POLL_S, MAX_POLL_S, taking.wait_s)
    while True:
        infos = yield from read_pages(threads.read_threads, request)
        held: LeaseHeld | NotOwner | None = None
        # Threads that are taken but not continued come first: this taker may have died there.
        for info in sorted((each for each in infos if is_for(each.wait_id, to)), key=_waits_since):
            try:
                return (yield from take(refer(info.name), unwaiting))
            except (HandoffTaken, NoHandoff, ThreadNotFound, UidMismatch):
                continue
            except (LeaseHeld, NotOwner) as error:
                held = held or error
        if held is None:
            return None
        if (pause_s := backoff.next_s()) is None:
            raise held
        yield Pause(pause_s)


def _waits_since(info: ThreadInfo) -> tuple[bool, Any]:
    return info.status == Status.WAITING, info.update_time


def waiting(namespace: str, *, taken_too: bool = False) -> pb.ListThreadsRequest:
    """Returns the request for threads that wait; with `taken_too`, also for those that run."""
    statuses = [Status.WAITING, Status.RUNNING] if taken_too else [Status.WAITING]
    return threads.list_threads(namespace, statuses=statuses, page_size=PAGE_MAX)


def read_open(
    refer: Callable[[str], ThreadRef], to: str | None, request: pb.ListThreadsRequest
) -> Operation[list[Handoff]]:
    """Returns the open handoffs of the next page of threads."""
    found: list[Handoff] = []
    for info in (yield from threads.read_threads(request)):
        if is_for(info.wait_id, to):
            with suppress(ThreadNotFound, NoHandoff):  # deleted, or saved without a handoff, in the meantime
                _, checkpoint, handoff = yield from _read(refer(info.name))
                if handoff.is_open(checkpoint):
                    found.append(handoff)
    return found
