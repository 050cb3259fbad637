"""An operation that has only so long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stateward._operations import Call, Operation, T
from stateward.errors import StatewardError


def limited(operation: Operation[T], left_s: Callable[[], float]) -> Operation[T]:
    """The same operation; each of its calls may take, and be tried again for, at most so many seconds."""
    try:
        step = next(operation)
        while True:
            if isinstance(step, Call):
                most_s = left_s()
                step = replace(step, deadline_s=most_s if step.deadline_s is None else min(step.deadline_s, most_s))
            try:
                answer = yield step
            except StatewardError as error:
                step = operation.throw(error)
            else:
                step = operation.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        operation.close()
