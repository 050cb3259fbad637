"""A task that begins at once, and not with the next turn of the event loop.

So what comes in one read is parsed and checked together, and a read of a hot thread is answered before the next one is
looked at. Python's own eager tasks came with 3.12. To whatever a handler calls this is the current task.
"""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task  # documented for other implementations of tasks
from collections.abc import Coroutine
from contextvars import copy_context
from typing import Any


class Eager:
    """Runs a coroutine that returns nothing and raises only CancelledError. Not to be made within another task."""

    __slots__ = ("_context", "_coroutine", "_loop", "_must_cancel", "_requests", "_waits_for", "is_done")

    def __init__(self, coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
        self._coroutine, self._loop, self._context = coroutine, loop, copy_context()
        self._waits_for: asyncio.Future[Any] | None = None
        self._must_cancel, self._requests = False, 0
        self.is_done = False
        self._context.run(self._step)

    def _step(self, error: BaseException | None = None) -> None:
        """Runs the coroutine until it waits again. Called within its context."""
        self._waits_for = None
        if self._must_cancel:
            self._must_cancel, error = False, asyncio.CancelledError()
        _enter_task(self._loop, self)  # type: ignore[arg-type]
        try:
            coroutine = self._coroutine
            waited_for = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration:
            self.is_done = True
        except asyncio.CancelledError:
            self.is_done = True
        else:
            self._wait(waited_for)
        finally:
            _leave_task(self._loop, self)  # type: ignore[arg-type]

    def _wait(self, waited_for: Any) -> None:
        if waited_for is None:  # `asyncio.sleep(0)`
            self._loop.call_soon(self._step, context=self._context)
            return
        waited_for._asyncio_future_blocking = False
        waited_for.add_done_callback(self._wake, context=self._context)
        self._waits_for = waited_for
        if self._must_cancel and waited_for.cancel():
            self._must_cancel = False

    def _wake(self, future: asyncio.Future[Any]) -> None:
        try:
            future.result()
        except BaseException as error:  # noqa: BLE001  the coroutine gets it
            self._step(error)
        else:
            self._step()

    # What `asyncio.timeout` and others ask of the current task.

    def cancel(self, msg: object = None) -> bool:
        """Raises CancelledError where the coroutine waits."""
        if self.is_done:
            return False
        self._requests += 1
        if self._waits_for is None or not self._waits_for.cancel():
            self._must_cancel = True
        return True

    def done(self) -> bool:
        """Whether it has ended."""
        return self.is_done

    def cancelling(self) -> int:
        """How often it was cancelled, less how often that was taken back."""
        return self._requests

    def uncancel(self) -> int:
        """Takes a cancellation back that was meant for somebody within the coroutine."""
        self._requests = max(self._requests - 1, 0)
        if not self._requests:
            self._must_cancel = False
        return self._requests
