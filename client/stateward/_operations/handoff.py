"""Operations that hand a thread from one agent to another: exactly one takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from stateward._operations import leases, threads
from stateward._operations.merging import ANY, set_slot
from stateward._operations.reading import hydrate_stored
from stateward._operations.retry import Backoff
from stateward._operations.saving import SaveOptions, save
from stateward._operations.steps import Operation, Pause, ThreadRef, at_once, new_request_id, read_pages
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
    VersionMismatch,
    VersionNotFound,
)
from stateward.handoff import SLOT, Handoff, is_for, new_id, now
from stateward.models import Checkpoint, Durability, Status, ThreadInfo, choice_number
from stateward.state import State
from stateward.v1 import thread_service_pb2 as pb

# For how long who handed over may still hold the thread after its last save.
WAIT_S = 5.0
FIRST_POLL_S, MAX_POLL_S = 0.05, 0.5
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
        raise TypeError(f"hand_over sets {', '.join(sorted(given))} itself")
    for what, steps in {"pending_steps": pending_steps, "dependencies": dependencies}.items():
        if isinstance(steps, (str, bytes)):
            raise TypeError(f"{what} takes a list, not one text: [{steps!r}]")
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
    late: NotArchivedYet | None = None
    try:
        checkpoint = yield from _save_handoff(ref, handoff, state, options)
    except NotArchivedYet as error:
        late = error
    token = ref.held.token
    if token:
        released = yield from leases.release(ref, token)
        ref.held.give_back(token)
        if released and late is None and checkpoint.durability == Durability.ARCHIVED:
            yield from _archive_release(ref, checkpoint)
    if late is not None:
        raise late
    return handoff


def _save_handoff(ref: ThreadRef, handoff: Handoff, state: State | None, options: SaveOptions) -> Operation[Checkpoint]:
    if state is not None:
        state.slots[SLOT] = handoff.to_slot()
        return (yield from save(ref, state, options))
    return (yield from set_slot(ref, SLOT, handoff.to_slot(), ANY, options, what="hand_over"))


def _archive_release(ref: ThreadRef, checkpoint: Checkpoint) -> Operation[None]:
    """To give a lease back takes the thread once more, which was given up as it began to wait: until that is archived
    too, no other machine can have it."""
    try:
        info = yield from threads.get_thread(ref)
        yield from threads.wait_archived(ref, info.sequence, None)
    except NotArchivedYet:
        raise NotArchivedYet(ref.thread, info.sequence, checkpoint, [checkpoint]) from None
    except (NotOwner, ThreadNotFound):
        pass  # somebody has it already


@dataclass(frozen=True)
class Taking:
    """How handoffs are taken."""

    taker: str
    wait_s: float = WAIT_S
    durability: int | None = None
    """None = the strongest there is."""

    @classmethod
    def of(cls, taker: str, wait: Duration, durability: Durability | str | None) -> Taking:
        """From what was given."""
        return cls(taker, seconds(wait, "wait"), choice_number(Durability, durability))


def take(ref: ThreadRef, taking: Taking) -> Operation[Handoff]:
    """Marks the handoff of a thread as taken. What this taker has already, it gets again."""
    taker, backoff = taking.taker, Backoff(FIRST_POLL_S, MAX_POLL_S, taking.wait_s)
    for _ in range(ATTEMPTS_MAX):
        state, checkpoint, found = yield from _read(ref)
        if found.taken_by:
            if found.taken_by == taker:
                yield from _settle(ref, checkpoint, taking)
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
                yield from at_once(_save_taken(ref, state, options, taking))
            except VersionMismatch:
                break
            except (LeaseHeld, NotOwner):
                pause_s = backoff.next_s()
                if pause_s is None:
                    raise
                yield Pause(pause_s)
            except NotArchivedYet as late:
                yield from _give_back(ref, found, state, options, late)
                raise
            else:
                return taken
    raise HandoffTaken(f"others write thread {ref.thread!r} all the time", metadata={"thread": ref.thread})


def _read(ref: ThreadRef) -> Operation[tuple[State, Checkpoint, Handoff]]:
    """What the thread's slot says, at its head."""
    try:
        state = yield from hydrate_stored(ref, slots=[SLOT], must_exist=True)
    except VersionNotFound:
        state = None
    found = None if state is None else Handoff.from_slot(ref.thread, state.slots.get(SLOT))
    if state is None or found is None or state.checkpoint is None:
        raise NoHandoff(f"thread {ref.thread!r} is not handed to anybody", metadata={"thread": ref.thread})
    return state, state.checkpoint, found


def _save_taken(ref: ThreadRef, state: State, options: SaveOptions, taking: Taking) -> Operation[None]:
    """Archived, where there is an archive: so that no other machine finds it open when this one is lost."""
    durability = taking.durability or Durability.ARCHIVED
    try:
        yield from save(ref, state, {**options, "durability": Durability(durability)})
    except NoArchive:
        if taking.durability:
            raise
        yield from save(ref, state, options)


def _settle(ref: ThreadRef, checkpoint: Checkpoint, taking: Taking) -> Operation[None]:
    """The same for what was taken before, by a process that may have died meanwhile."""
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
    """What could not be archived in time is open again: a taker without a name could never come back for it."""
    state.slots[SLOT] = found.to_slot()
    try:
        yield from save(ref, state, {**options, "status": Status.WAITING, "durability": Durability.COMMITTED})
        late.add_note("the handoff was given back: it can be taken again, by anybody")
    except StatewardError as error:
        late.add_note(f"the handoff stays taken, as it could not be given back: {error}")


def take_any(
    refer: Callable[[str], ThreadRef], request: pb.ListThreadsRequest, to: str, taking: Taking
) -> Operation[Handoff | None]:
    """The handoff to `to` that has waited longest; None where none is open. What somebody still holds is passed over
    for the others; where there are none, this waits for it."""
    unwaiting, backoff = replace(taking, wait_s=0), Backoff(FIRST_POLL_S, MAX_POLL_S, taking.wait_s)
    while True:
        infos = yield from read_pages(threads.read_threads, request)
        held: LeaseHeld | NotOwner | None = None
        # What was taken and not begun comes first: this taker may have died there.
        for info in sorted((each for each in infos if is_for(each.wait_id, to)), key=_waits_since):
            try:
                return (yield from take(refer(info.name), unwaiting))
            except (HandoffTaken, NoHandoff, ThreadNotFound):
                continue
            except (LeaseHeld, NotOwner) as error:
                held = held or error
        if held is None:
            return None
        pause_s = backoff.next_s()
        if pause_s is None:
            raise held
        yield Pause(pause_s)


def _waits_since(info: ThreadInfo) -> tuple[bool, Any]:
    return info.status == Status.WAITING, info.update_time


def waiting(namespace: str, *, taken_too: bool = False) -> pb.ListThreadsRequest:
    """The request for threads that wait; with `taken_too` also for those that run."""
    statuses = [Status.WAITING, Status.RUNNING] if taken_too else [Status.WAITING]
    return threads.list_threads(namespace, statuses=statuses, page_size=PAGE_MAX)


def read_open(
    refer: Callable[[str], ThreadRef], to: str | None, request: pb.ListThreadsRequest
) -> Operation[list[Handoff]]:
    """Those of the next page of threads."""
    found: list[Handoff] = []
    for info in (yield from threads.read_threads(request)):
        if is_for(info.wait_id, to):
            try:
                state = yield from hydrate_stored(refer(info.name), slots=[SLOT], must_exist=True)
            except (ThreadNotFound, VersionNotFound):
                continue  # deleted meanwhile
            handoff = Handoff.from_slot(info.name, state.slots.get(SLOT))
            if handoff is not None and state.checkpoint is not None and handoff.is_open(state.checkpoint):
                found.append(handoff)
    return found
