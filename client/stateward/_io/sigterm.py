"""SIGTERM in an agent: heard at once, acted upon when the state is whole.

The handler saves nothing. Python runs it between two instructions of the main thread, where the state may be half
changed, and the client's own locks may be held; so it only passes the word on, through a queue that is made for that.
The agent's next safe point makes the final save and hands the signal over to whoever handled it before, so that the
process ends as it would have. After the grace time, or at a second SIGTERM, it is handed over in any case.

An event loop's own handler does not have its turn in Python's handler: the loop is woken through a file descriptor and
would call it at once, beside this one. So it is taken from the loop, and given back at the end.
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any


class Sigterm:
    """Hears SIGTERM from `install` to `restore`. `wake` is called on a thread of its own once it came, and there
    `give_up` when the grace time is over, before the signal is handed over."""

    def __init__(self, grace_s: float, wake: Callable[[], None], give_up: Callable[[], None]) -> None:
        self.is_pending = False
        self.is_over = False
        """It was handed over, or nobody listens any more."""
        self._grace_s = grace_s
        self._wake = wake
        self._give_up = give_up
        self._words: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._former: Any = None

    @property
    def ends_process(self) -> bool:
        """Whether nothing runs any more once it is handed over. A handler in Python may let the process go on."""
        return bool(self._former == signal.SIG_DFL)

    def install(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Takes the handler's place, or that of the loop's. ValueError outside of the main thread, where Python allows
        none; RuntimeError for a loop that does not give its handler out."""
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("on_sigterm works in the main thread only; elsewhere call step() and close() yourself")
        of_loop = None if loop is None else LoopHandler.take(loop)
        former = signal.signal(signal.SIGTERM, self._handle)
        self._former = of_loop or former
        threading.Thread(target=self._wait, name="stateward-sigterm", daemon=True).start()

    def restore(self) -> None:
        """Gives the former handler its place back."""
        if self.is_over:
            return
        self.is_over = True
        self._words.put("over")
        if self._former is None or signal.getsignal(signal.SIGTERM) != self._handle:
            return
        if isinstance(self._former, LoopHandler):
            self._former.give_back()
        else:
            signal.signal(signal.SIGTERM, self._former)

    def hand_over(self) -> None:
        """Lets the former handler have the signal, which usually ends the process. May be called on any thread."""
        if self.is_over:
            return
        if threading.current_thread() is threading.main_thread():
            self._deliver(None)
        else:
            os.kill(os.getpid(), signal.SIGTERM)  # the handler below sees that it is the second one

    def _handle(self, _number: int, frame: FrameType | None) -> None:
        if self.is_pending:
            self._deliver(frame)
            return
        self.is_pending = True
        self._words.put("came")

    def _deliver(self, frame: FrameType | None) -> None:
        self.restore()
        if callable(self._former):
            self._former(signal.SIGTERM, frame)
        elif self._former == signal.SIG_DFL:
            signal.raise_signal(signal.SIGTERM)

    def _wait(self) -> None:
        if self._words.get() == "over":
            return
        self._wake()
        try:
            self._words.get(timeout=self._grace_s)
        except queue.Empty:
            try:
                self._give_up()
            finally:
                self.hand_over()


class LoopHandler:
    """What an event loop was told to call at SIGTERM."""

    def __init__(self, loop: asyncio.AbstractEventLoop, handle: Any) -> None:
        self._loop = loop
        self._callback, self._args, self._context = handle._callback, handle._args, handle._context

    @classmethod
    def take(cls, loop: asyncio.AbstractEventLoop) -> LoopHandler | None:
        """Takes it from the loop; None = there is none.

        There are public means to remove and to set it, and none to see it: asyncio keeps it in this private dict.
        RuntimeError, before anything is changed, for a loop that keeps it elsewhere (uvloop's own, in C).
        """
        handle = getattr(loop, "_signal_handlers", {}).get(signal.SIGTERM)
        if handle is not None:
            taken = cls(loop, handle)
            loop.remove_signal_handler(signal.SIGTERM)
            return taken
        if getattr(signal.getsignal(signal.SIGTERM), "__self__", None) is loop:
            raise RuntimeError(
                f"on_sigterm cannot take over what add_signal_handler told this event loop ({type(loop).__module__}) "
                "to do: set that handler with signal.signal, or leave on_sigterm out and call close() in it"
            )
        return None

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits for it
            self._loop.call_soon_threadsafe(self._callback, *self._args, context=self._context)

    def give_back(self) -> None:
        """Sets it again, unless the loop is closed."""
        with suppress(RuntimeError):
            self._loop.add_signal_handler(signal.SIGTERM, self._callback, *self._args)
