"""Operations that read a thread's head, change it and save it, even if others write in the meantime."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from stateward._operations.migration_lease import Patience
from stateward._operations.reading import hydrate
from stateward._operations.retry import race_backoff
from stateward._operations.saving import SaveOptions, repeatable, save
from stateward._operations.steps import Await, Operation, Pause, ThreadRef
from stateward.arguments import function, instance
from stateward.errors import LeaseHeld, VersionMismatch
from stateward.models import Checkpoint, Status
from stateward.state import State


def update(ref: ThreadRef, fn: Callable[[State], Any], attempts: int, options: SaveOptions) -> Operation[Checkpoint]:
    """Hydrates, changes and saves; starts again if somebody saved in between, or if the thread is being migrated."""
    function(fn, "fn")
    if instance(attempts, "attempts", int, "a whole number") < 1:
        raise ValueError(f"attempts must be at least 1, not {attempts}")
    attempt, patience, backoff, options = 1, Patience(), race_backoff(), repeatable(options)
    state: State | None = None
    while True:
        state = yield from hydrate(ref, since=state)
        state._is_answer_read = False  # a migration step may have read it
        result = fn(state)
        if inspect.isawaitable(result):
            yield Await(result)
        try:
            return (yield from save(ref, state, _said(ref, state, options)))
        except LeaseHeld as error:
            yield from patience.wait(error)
        except VersionMismatch:
            if attempt == attempts:
                raise
            attempt += 1
            yield Pause(backoff.next_s() or 0)


def _said(ref: ThreadRef, state: State, options: SaveOptions) -> SaveOptions:
    """Returns the options of an update. They leave an open question open unless the caller seems to be its agent.

    Anybody may update a waiting thread. If that ended the question, its answer would be lost: either nobody could
    answer any more, or the save would acknowledge an answer that nobody has read.
    """
    given: Any = {name: value for name, value in options.items() if value is not None}
    goes_on = any(given.get(name) for name in ("status", "wait_id", "question", "ack"))
    reads = state._is_answer_read and state._waiting_answer is not None
    if goes_on or reads or ref.branch != "main":
        return options
    return {**open_question(state), **given}


def open_question(state: State) -> SaveOptions:
    """Returns the options that leave the question of a state open; none if its version does not wait."""
    head = state.checkpoint
    if head is None or head.status != Status.WAITING or not head.wait_id:
        return {}
    asks: SaveOptions = {"status": Status.WAITING, "status_detail": head.status_detail, "wait_id": head.wait_id}
    return {**asks, "question": head.question} if head.question is not None else asks
