"""The stream of a blocking writer. `aio.call` is the pair of this file."""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from typing import Any

from stateward._io.blocking.connection import Connection
from stateward._io.blocking.stream import close_at_exit
from stateward._io.channel import Reaching, explain, grpc
from stateward._operations.frames import END
from stateward.errors import ServerUnavailable

# The interval at which late answers are looked for.
WATCH_S = 1.0


class WriterCall:
    """The stream of a writer. Messages go through a queue to the thread on which gRPC reads them."""

    def __init__(self, session: Reaching[Connection]) -> None:
        self._session = session
        self._connection = session.connected()
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.late_at = 0.0
        self._is_late = self._is_closed = False
        self._stream = self._connection.open("Write", iter(self._messages.get, None))  # type: ignore[arg-type]
        self._connection.streams.add(self)
        close_at_exit(self)
        _watch(self)

    def put(self, message: Any) -> None:
        """Sends a message; None = there are no more."""
        self._messages.put(message)

    def take(self, seconds: float | None) -> Any:
        """Returns the next message, or END. Raises ServerUnavailable if none comes within this many seconds."""
        self.late_at = time.monotonic() + seconds if seconds is not None else 0.0
        try:
            message = next(self._stream, END)
        except grpc.RpcError as failure:
            # As with uploads: the process may crash when a channel is closed whose peer died during a stream.
            self._connection._is_brittle |= failure.code() is grpc.StatusCode.UNAVAILABLE
            if self._is_late:
                raise ServerUnavailable("the daemon did not answer in time", code="DEADLINE_EXCEEDED") from None
            error = explain(failure, self._session.settings)
            self._session.has_met_daemon |= bool(error.reason)
            raise error from None
        finally:
            self.late_at = 0.0
        self._session.has_met_daemon = True
        return message

    def close(self) -> None:
        """Ends the stream without waiting. The lease lasts until its term ends or the daemon notices the end."""
        if not self._is_closed:
            self._is_closed = True
            self._messages.put(None)
            self._stream.cancel()

    def look(self, now: float) -> None:
        """Ends the stream if its answer is late."""
        if 0.0 < self.late_at < now:
            self._is_late = True
            self._stream.cancel()


_calls: weakref.WeakSet[WriterCall] = weakref.WeakSet()
_watchers: list[threading.Thread] = []  # at most one thread


def _watch(call: WriterCall) -> None:
    """Has late reads ended. gRPC's blocking read has no time limit, so one thread looks at all calls."""
    _calls.add(call)
    if not _watchers:
        _watchers.append(threading.Thread(target=_look, name="stateward-writers", daemon=True))
        _watchers[0].start()


def _look() -> None:
    while True:
        time.sleep(WATCH_S)
        now = time.monotonic()
        for call in list(_calls):
            call.look(now)


def _forget() -> None:
    _calls.clear()
    _watchers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)  # they belong to the parent
