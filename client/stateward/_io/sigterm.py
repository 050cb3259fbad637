"""SIGTERM in an agent: the handler notes the signal, and the agent's next safe point acts upon it.

The handler saves nothing. Python runs it between two instructions of the main thread, when the state may be half
changed and the client's own locks may be held. The agent's next safe point makes the final save and passes the signal
on to the former handler, so that the process ends as it would have ended. A second SIGTERM is passed on at once.

An event loop does not call its handler from Python's signal handler: a file descriptor wakes the loop, and the loop
would call its handler at once, in addition to this one. So this module takes the handler from the loop, and gives it
back at the end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Any


class Sigterm:
    """Notes SIGTERM between `install` and `restore`."""

    def __init__(self) -> None:
        self.is_pending = False
        """Whether the signal came and was not passed on yet."""
        self._is_installed = False
        self._former: Any = None

    def install(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Replaces the handler of the process or of the loop. Raises ValueError outside of the main thread, where
        Python allows no handler, and RuntimeError for a loop whose handler cannot be read."""
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("on_sigterm works in the main thread only; elsewhere call step() and close() yourself")
        of_loop = None if loop is None else LoopHandler.take(loop)
        former = signal.signal(signal.SIGTERM, self._handle)
        self._former, self._is_installed = of_loop or former, True

    def restore(self) -> None:
        """Sets the former handler again. Restoring again does nothing."""
        is_ours = self._is_installed and signal.getsignal(signal.SIGTERM) == self._handle
        self._is_installed = self.is_pending = False
        if is_ours and isinstance(self._former, LoopHandler):
            self._former.give_back()
        elif is_ours and self._former is not None:
            signal.signal(signal.SIGTERM, self._former)

    def hand_over(self) -> None:
        """Passes the signal on to the former handler, which usually ends the process. May be called on any thread."""
        if not self.is_pending:
            return
        if threading.current_thread() is threading.main_thread():
            self._deliver(None)
        else:
            os.kill(os.getpid(), signal.SIGTERM)  # `_handle` passes it on, because it is the second one

    def _handle(self, _number: int, frame: FrameType | None) -> None:
        # Another handler may have kept this one as its former handler, and still call it after `restore`.
        if self.is_pending or not self._is_installed:
            self._deliver(frame)
        self.is_pending = self._is_installed

    def _deliver(self, frame: FrameType | None) -> None:
        self.restore()
        if callable(self._former):
            self._former(signal.SIGTERM, frame)
        elif self._former == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)


class LoopHandler:
    """The handler that a program gave an event loop for SIGTERM."""

    def __init__(self, loop: asyncio.AbstractEventLoop, handle: Any) -> None:
        self._loop = loop
        self._callback, self._args, self._context = handle._callback, handle._args, handle._context

    @classmethod
    def take(cls, loop: asyncio.AbstractEventLoop) -> LoopHandler | None:
        """Takes the handler from the loop; None = the loop has none.

        asyncio has public methods to set and to remove a handler but none to read it: it is in this private dict.
        Raises RuntimeError, before anything is changed, for a loop that keeps it elsewhere, as uvloop does.
        """
        handle = getattr(loop, "_signal_handlers", {}).get(signal.SIGTERM)
        if handle is not None:
            taken = cls(loop, handle)
            loop.remove_signal_handler(signal.SIGTERM)
            return taken
        if getattr(signal.getsignal(signal.SIGTERM), "__self__", None) is loop:
            raise RuntimeError(
                f"on_sigterm cannot replace the handler that add_signal_handler set on this event loop "
                f"({type(loop).__module__}): set it with signal.signal, or omit on_sigterm and call close() in it"
            )
        return None

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._callback, *self._args, context=self._context)

    def give_back(self) -> None:
        """Sets it again, unless the loop is closed."""
        with suppress(RuntimeError):
            self._loop.add_signal_handler(signal.SIGTERM, self._callback, *self._args)
