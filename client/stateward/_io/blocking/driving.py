# Generated from stateward/_io/aio/driving.py by client/generate.py. Do not edit.
"""How the blocking client carries out operations, and keeps up what must be renewed."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from stateward._io.blocking.background import Alarm
from stateward.errors import StatewardError

E = TypeVar("E", bound=StatewardError)
S = TypeVar("S")
T = TypeVar("T")


def drive(steps: Generator[S, Any, T], perform: Callable[[S], Any]) -> T:
    """Carries steps out until they return."""
    try:
        step = next(steps)
        while True:
            try:
                answer = perform(step)
            except StatewardError as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()  # of a task that was cancelled


def keep_up(ended: Alarm, interval_s: float, renew: Callable[[], Any], lost: type[E]) -> E | None:
    """Renews something until the alarm is set, or the error says that it is lost: returns that error. A renewal that
    fails otherwise is followed by the next one, so it outlives a daemon that is away for a moment."""
    while not ended.wait(interval_s):
        try:
            renew()
        except lost as error:
            return error
        except StatewardError:
            continue
        except (RuntimeError, ValueError):  # the client was closed
            break
    return None
