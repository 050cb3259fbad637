"""An operation that has only so long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stateward._operations.steps import Await, Call, Operation, Pause, T, through


def limited(operation: Operation[T], left_s: Callable[[], float]) -> Operation[T]:
    """The same operation; each of its calls may take, and be tried again for, at most so many seconds."""

    def perform(step: Call | Pause | Await) -> Operation[object]:
        if isinstance(step, Call):
            most_s = left_s()
            step = replace(step, deadline_s=most_s if step.deadline_s is None else min(step.deadline_s, most_s))
        return (yield step)

    return through(operation, perform)
