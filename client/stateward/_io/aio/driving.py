"""How the asyncio client carries out operations, and renews leases and claims."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from stateward._io.aio.background import Alarm
from stateward.errors import StatewardError

E = TypeVar("E", bound=StatewardError)
S = TypeVar("S")
T = TypeVar("T")


async def drive(steps: Generator[S, Any, T], perform: Callable[[S], Awaitable[Any]]) -> T:
    """Carries out the steps of a generator, and returns its result."""
    try:
        step = next(steps)
        while True:
            try:
                answer = await perform(step)
            except StatewardError as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()  # a task that was cancelled left it open


async def keep_up(ended: Alarm, interval_s: float, renew: Callable[[], Awaitable[Any]], lost: type[E]) -> E | None:
    """Renews a lease or a claim until the alarm is set. Returns the error of type `lost` that ended it, or None.

    After any other failure it renews again at the next interval: the daemon may be away for a moment only.
    """
    while not await ended.wait(interval_s):
        try:
            await renew()
        except lost as error:
            return error
        except StatewardError:
            continue
        except (RuntimeError, ValueError):  # the client was closed
            break
    return None
