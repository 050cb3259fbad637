"""SIGTERM in an agent: heard at once, acted upon when the state is whole.

The handler saves nothing. Python runs it between two instructions of the main thread, where the state may be half
changed, and the client's own locks may be held; so it only passes the word on, through a queue that is made for that.
The agent's next safe point makes the final save and hands the signal over to whoever handled it before, so that the
process ends as it would have. After the grace time, or at a second SIGTERM, it is handed over in any case.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Sigterm:
    """Hears SIGTERM from `install` to `restore`. `wake` is called on a thread of its own once it came."""

    def __init__(self, grace_s: float, wake: Callable[[], None]) -> None:
        self.is_pending = False
        self.is_over = False
        """It was handed over, or nobody listens any more."""
        self._grace_s = grace_s
        self._wake = wake
        self._words: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._former: Any = None

    def install(self) -> None:
        """Takes the handler's place. ValueError outside of the main thread, where Python allows none."""
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("on_sigterm works in the main thread only; elsewhere call step() and close() yourself")
        self._former = signal.signal(signal.SIGTERM, self._handle)
        threading.Thread(target=self._wait, name="stateward-sigterm", daemon=True).start()

    def restore(self) -> None:
        """Gives the former handler its place back."""
        if self.is_over:
            return
        self.is_over = True
        self._words.put("over")
        if self._former is not None and signal.getsignal(signal.SIGTERM) == self._handle:
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
            self.hand_over()
