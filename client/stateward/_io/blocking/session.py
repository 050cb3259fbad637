"""The blocking client's session. `aio.session` is the pair of this file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from stateward._io.blocking.connection import Connection, drive
from stateward._io.blocking.stream import Stream
from stateward._io.session import Place, SessionBase
from stateward._operations.steps import Await, Call, Download, Operation, Pause, ThreadRef, Upload
from stateward._operations.streams import BlobReader, Reader
from stateward._operations.uploads import read_request

T = TypeVar("T")


class Session(SessionBase[Connection]):
    """What the parts of a blocking client need to reach the daemon."""

    def run(self, operation: Operation[T]) -> T:
        """Carries out an operation, with retries."""
        return drive(self.with_retries(operation), self.perform)

    def perform(self, step: Call | Pause | Await) -> Any:
        """Carries out one step of an operation, without retries."""
        match step:
            case Upload():
                answer = self.connected().upload(step.request, step.content)  # type: ignore[arg-type]
                self.has_met_daemon = True
                return answer
            case Download():
                return b"".join(self.open(BlobReader(step.request)))  # type: ignore[arg-type]
            case Call():
                answer = self.connected().call(step.method, step.request, step.deadline_s)
                self.has_met_daemon = True
                return answer
            case Pause():
                self.connected().pause(time.sleep, step.seconds)
            case Await():
                if isinstance(step.awaitable, Coroutine):
                    step.awaitable.close()  # else Python warns that nobody awaited it
                raise TypeError("a coroutine function was given: use AsyncClient, or a plain function")
        return None

    def open(self, reader: Reader[T], until: float | None = None) -> Stream[T]:
        """A stream that is opened when it is first read."""
        return Stream(self, self.reading(reader), until)

    def watch(self, reader: Reader[T]) -> Stream[T]:
        """A stream that is open when this returns."""
        stream = self.open(reader)
        stream.begin()
        return stream

    def read_list(self, read: Callable[[Any], Operation[list[T]]], request: Any) -> Iterator[T]:
        """Reads a list page by page: `read` takes the request, and moves its page token on."""
        while True:
            yield from self.run(read(request))
            if not request.page_token:
                return

    def close(self) -> None:
        """Ends the open streams and the connection. Closing again does nothing."""
        for connection in self._disconnected():
            connection.close()

    def _place(self) -> Place:
        return Place(os.getpid())

    def _connect(self) -> Connection:
        return Connection(self.settings)

    def _blobs_of(self, name: str) -> ThreadBlobs:
        return ThreadBlobs(self, name)


class ThreadBlobs:
    """Reads the blobs of a thread, for the states that name them."""

    is_async = False

    def __init__(self, session: Session, thread: str) -> None:
        self._session = session
        self._ref = ThreadRef(session.namespace, thread, "")
        self.policy = session.blob_policy

    def read(self, digest: bytes, offset: int, length: int | None) -> bytes:
        return b"".join(self.chunks(digest, offset, length))

    def chunks(self, digest: bytes, offset: int, length: int | None) -> Stream[bytes]:
        return self._session.open(BlobReader(read_request(self._ref, digest, offset, length)))
