# Generated from stateward/_io/aio/session.py by client/generate.py. Do not edit.
"""The blocking client's session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from stateward._io.blocking.background import IS_ASYNC, awaited, running_loop
from stateward._io.blocking.connection import Connection
from stateward._io.blocking.driving import drive
from stateward._io.blocking.stream import Stream, watching
from stateward._io.session import Place, SessionBase
from stateward._operations.steps import Await, Call, Download, Operation, Pause, ThreadRef, Upload
from stateward._operations.streams import BlobReader, Reader
from stateward._operations.uploads import read_request

T = TypeVar("T")


class Session(SessionBase[Connection]):
    """How the parts of a blocking client reach the daemon."""

    def run(self, operation: Operation[T]) -> T:
        """Carries out an operation with retries."""
        return drive(self.with_retries(operation), self.perform)

    def perform(self, step: Call | Pause | Await) -> Any:
        """Carries out one step of an operation without retries."""
        match step:
            case Upload():
                answer = self.connected().upload(step.request, step.content)  # type: ignore[arg-type]
                self.has_met_daemon = True
                return answer
            case Download():
                return b"".join([piece for piece in self.open(BlobReader(step.request))])  # type: ignore[arg-type]
            case Call():
                answer = self.connected().call(step.method, step.request, step.deadline_s)
                self.has_met_daemon = True
                return answer
            case Pause():
                self.connected().pause(step.seconds)
            case Await():
                return awaited(step.awaitable)
        return None

    def open(self, reader: Reader[T], until: float | None = None) -> Stream[T]:
        """Returns a stream that opens when it is first read."""
        return Stream(self, self.reading(reader), until)

    def watch(self, reader: Reader[T]) -> Stream[T]:
        """Returns a stream of the events from now on."""
        return watching(self.open(reader))

    def read_list(self, read: Callable[[Any], Operation[list[T]]], request: Any) -> Iterator[T]:
        """Yields the items of a list, page by page. `read` takes the request and sets its next page token."""
        while True:
            for item in self.run(read(request)):
                yield item
            if not request.page_token:
                return

    def close(self) -> None:
        """Ends the open streams and the connections. Closing again does nothing."""
        for connection in self._disconnected():
            connection.close()

    def _place(self) -> Place:
        return Place(os.getpid(), running_loop())

    def _connect(self) -> Connection:
        return Connection(self.settings)

    def _blobs_of(self, name: str) -> ThreadBlobs:
        return ThreadBlobs(self, name)


class ThreadBlobs:
    """Reads the blobs of a thread, for states that refer to them."""

    is_async = IS_ASYNC

    def __init__(self, session: Session, thread: str) -> None:
        self._session = session
        self._ref = ThreadRef(session.namespace, thread, "")
        self.policy = session.blob_policy

    def read(self, digest: bytes, offset: int, length: int | None) -> bytes:
        return b"".join([piece for piece in self.chunks(digest, offset, length)])

    def chunks(self, digest: bytes, offset: int, length: int | None) -> Stream[bytes]:
        return self._session.open(BlobReader(read_request(self._ref, digest, offset, length)))
