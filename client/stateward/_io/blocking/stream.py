"""The blocking client's streams. `aio.stream` is the pair of this file."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from typing import Any, Generic, Protocol, Self, TypeVar

from stateward._frames import ends_at_the_caller
from stateward._io.blocking.connection import Connection
from stateward._io.blocking.driving import drive
from stateward._io.channel import Reaching
from stateward._operations.steps import Pause
from stateward._operations.streams import Open, Read, Reading
from stateward.errors import StatewardError
from stateward.v1.thread_service_pb2 import WatchRequest

T = TypeVar("T")


@ends_at_the_caller
class Stream(Generic[T]):
    """An iterator over the items of a stream. It ends with `close`, which any thread may call.

    The stream ends by itself at `until`, a time of `time.monotonic()`.
    """

    def __init__(self, session: Reaching[Connection], reading: Reading[T], until: float | None = None) -> None:
        self._session = session
        self._until = until
        self._ending: threading.Timer | None = None
        self._reading = reading
        self._call: Any = None
        self._asked: Any = None
        self._pid = os.getpid()
        self._closed = threading.Event()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while not self._reading.ready:
            if not self._pump():
                raise StopIteration
        return self._reading.ready.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def is_ours(self) -> bool:
        """Whether this process made the stream. A forked child neither reads nor ends its parent's stream."""
        return self._pid == os.getpid()

    def close(self) -> None:
        """Ends the stream. Closing again does nothing."""
        if self._ending is not None:
            self._ending.cancel()
        self._reading.ended = True
        if not self.is_ours:
            return
        self._closed.set()
        if self._call is not None:
            self._call.cancel()

    def begin(self) -> bool:
        """Opens the stream and reads its first message. False if there is none."""
        return self._pump()

    def _pump(self) -> bool:
        if not self.is_ours:
            raise RuntimeError("this stream is the parent process's; open one of your own")
        if self._until is not None and self._ending is None:
            self._ending = threading.Timer(max(self._until - time.monotonic(), 0), self.close)
            self._ending.daemon = True
            self._ending.start()
        return drive(self._reading.next_message(), self._perform)

    def _perform(self, step: Open | Read | Pause) -> Any:
        match step:
            case Open():
                self._open(step)
            case Read():
                return self._read()
            case Pause():
                if self._until is not None:  # `close` ends a read early, but no pause
                    step = Pause(min(step.seconds, max(self._until - time.monotonic(), 0.0)))
                connection = self._session.connection
                if connection is None:  # the client is being closed
                    self._closed.wait(step.seconds)
                else:
                    connection.pause(step.seconds, self._closed.wait)
        return None

    def _open(self, step: Open) -> None:
        again, self._asked = self._call is not None, step.request
        if self._call is not None:
            self._call.cancel()
        if hasattr(self._asked, "thread"):
            self._session.look(step.method, self._asked.namespace, self._asked.thread, again=again)
        connection = self._session.connected()
        self._call = connection.open(step.method, step.request)
        connection.streams.add(self)
        close_at_exit(self)
        if self._closed.is_set():  # another thread closed it meanwhile
            self._call.cancel()

    def _read(self) -> Any:
        try:
            message = self._call.read()
        except StatewardError as error:
            self._session.has_met_daemon |= bool(error.reason)
            raise
        self._session.has_met_daemon = True
        if isinstance(self._asked, WatchRequest):
            self._session.hear(self._asked.namespace, self._asked.thread, message)
        return message


def watching(stream: Stream[T]) -> Stream[T]:
    """Opens the stream and returns it."""
    stream.begin()
    return stream


class Closes(Protocol):
    """A stream that can be closed from another thread."""

    def close(self) -> None: ...


_open_streams: weakref.WeakSet[Closes] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_streams.clear)  # they belong to the parent


def close_at_exit(stream: Closes) -> None:
    """Sees to it that the stream is closed when the interpreter exits. gRPC would wait for an open one for ever."""
    _open_streams.add(stream)


@atexit.register
def _close_open_streams() -> None:
    for stream in list(_open_streams):
        stream.close()
