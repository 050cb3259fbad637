"""Operations that read a thread's head, change it and save it, however many others write meanwhile."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from stateward._operations.migration_lease import Patience
from stateward._operations.reading import hydrate
from stateward._operations.retry import race_backoff
from stateward._operations.saving import SaveOptions, repeatable, save
from stateward._operations.steps import Await, Operation, Pause, ThreadRef
from stateward.errors import LeaseHeld, VersionMismatch
from stateward.models import Checkpoint, Status
from stateward.state import State


def update(ref: ThreadRef, fn: Callable[[State], Any], attempts: int, options: SaveOptions) -> Operation[Checkpoint]:
    """Hydrate, change, save; again from the start as long as somebody else saves in between, or migrates the thread."""
    if attempts < 1:
        raise ValueError("attempts is below 1")
    attempt, patience, backoff, options = 1, Patience(), race_backoff(), repeatable(options)
    while True:
        state = yield from hydrate(ref)
        state._is_answer_read = False  # a migration step may have read it
        result = fn(state)
        if inspect.isawaitable(result):
            yield Await(result)
        try:
            return (yield from save(ref, state, _said(ref, state, options)))
        except LeaseHeld as error:
            yield from patience.wait(error)
            continue
        except VersionMismatch:
            if attempt == attempts:
                raise
        yield Pause(backoff.next_s() or 0)
        attempt += 1


def _said(ref: ThreadRef, state: State, options: SaveOptions) -> SaveOptions:
    """The options of an update, which leave an open question open unless the caller seems to be the agent that asked.

    Everybody may update a thread that waits. If that ended the question, the answer would be lost: either nobody could
    answer any more, or the save would acknowledge an answer that nobody has read.
    """
    given: Any = {name: value for name, value in options.items() if value is not None}
    goes_on = any(given.get(name) for name in ("status", "wait_id", "question", "ack"))
    reads = state._is_answer_read and state._waiting_answer is not None
    if goes_on or reads or ref.branch != "main":
        return options
    return {**open_question(state), **given}


def open_question(state: State) -> SaveOptions:
    """What a save says to leave the question of its state open; nothing if the thread does not wait."""
    head = state.checkpoint
    if head is None or head.status != Status.WAITING or not head.wait_id:
        return {}
    asks: SaveOptions = {"status": Status.WAITING, "status_detail": head.status_detail, "wait_id": head.wait_id}
    return {**asks, "question": head.question} if head.question is not None else asks
