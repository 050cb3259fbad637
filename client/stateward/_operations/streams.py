"""Reading streams, without I/O: what to ask for next, what to make of a message, and when to open a stream again.

A `Reader` survives the daemon's restart: `request` always says where to go on. `Reading` drives one, as a generator of
steps like an operation; `Stream` and `AsyncStream` carry the steps out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from stateward._operations.reading import read_state
from stateward._operations.retry import Retry
from stateward._operations.steps import Pause, ThreadRef, version_ref
from stateward.admin import VerifyProgress
from stateward.changes import changes_from_proto
from stateward.errors import StatewardError
from stateward.events import Event, HistoryEntry
from stateward.models import Checkpoint
from stateward.state import State
from stateward.v1 import admin_service_pb2 as admin
from stateward.v1 import backup_service_pb2 as backup
from stateward.v1 import blob_service_pb2 as blobs
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1 import thread_service_pb2 as threads

T = TypeVar("T")


class Reader(Generic[T]):
    """One stream that is read."""

    method: str

    def request(self) -> Message:
        """What to ask for, from where the reader is."""
        raise NotImplementedError

    def take(self, message: Any) -> list[T]:
        """What a message brings."""
        raise NotImplementedError

    def can_resume(self) -> bool:
        """Whether reopening the stream goes on without gap and duplicate."""
        return True


class ProgressReader(Reader[T]):
    """Long work that is told of bit by bit. Once begun it is not taken up again: it would start anew."""

    def __init__(self, method: str, request: Message, read: Callable[[Any], T]) -> None:
        self.method = method
        self._request = request
        self._read = read
        self._begun = False

    def request(self) -> Message:
        return self._request

    def take(self, message: Any) -> list[T]:
        self._begun = True
        return [self._read(message)]

    def can_resume(self) -> bool:
        return not self._begun


class WatchReader(Reader[Event]):
    """Events of one thread, or of a namespace (thread "-")."""

    method = "Watch"

    def __init__(
        self,
        ref: ThreadRef,
        *,
        after_sequence: int | None,
        after_cursor: str,
        include_diff: bool,
        labels: Mapping[str, str] | None = None,
        slots: Iterable[str] = (),
        logs: Iterable[str] = (),
    ) -> None:
        if isinstance(slots, str) or isinstance(logs, str):
            raise TypeError("slots and logs take a list of names, not one name")
        self._ref = ref
        self._request = ref.about(
            threads.WatchRequest,
            after_sequence=after_sequence,
            after_cursor=after_cursor,
            include_diff=include_diff,
            labels=dict(labels or {}),
            slots=slots,
            logs=logs,
        )

    def request(self) -> Message:
        return self._request

    def take(self, message: threads.WatchResponse) -> list[Event]:
        self._request.ClearField("after_sequence")
        self._request.after_cursor = message.cursor
        return list(map(Event.from_proto, message.events))


class HistoryReader(Reader[HistoryEntry]):
    """A line of versions."""

    method = "ReadHistory"

    def __init__(
        self,
        ref: ThreadRef,
        *,
        from_version: int,
        version: int | None,
        newest_first: bool,
        projection: checkpoints.Projection | None,
    ) -> None:
        direction = checkpoints.DIRECTION_NEWEST_FIRST if newest_first else checkpoints.DIRECTION_OLDEST_FIRST
        self._request = ref.on_branch(
            checkpoints.ReadHistoryRequest,
            version=version_ref(version),
            from_version=from_version,
            direction=direction,
            projection=projection,
        )
        self._ref = ref
        self._newest_first = newest_first
        self._last = 0  # the version that was given last
        self._skipping = False

    def request(self) -> Message:
        self._skipping = self._last > 0
        return self._request

    def take(self, message: checkpoints.ReadHistoryResponse) -> list[HistoryEntry]:
        version = message.checkpoint.version
        if self._skipping:
            self._skipping = version != self._last
            return []
        if self._newest_first and not self._last:
            self._request.version.version = version  # the head may have moved on when the stream is reopened
        self._last = version
        checkpoint, changes = Checkpoint.from_proto(message.checkpoint), changes_from_proto(message.diff)
        return [HistoryEntry(checkpoint, self._state(message), changes)]

    def _state(self, message: checkpoints.ReadHistoryResponse) -> State | None:
        if not message.HasField("state"):
            return None
        found, asked = message.state, self._request.projection
        state = read_state(message.checkpoint, found.slots, found.logs, asked=asked, partial=found.partial, pinned=True)
        state.read_blobs_through(self._ref.blobs)
        return state


class BlobReader(Reader[bytes]):
    """The bytes of a blob, or of a range of it."""

    method = "ReadBlob"

    def __init__(self, request: blobs.ReadBlobRequest) -> None:
        self._request = blobs.ReadBlobRequest()
        self._request.CopyFrom(request)

    def request(self) -> Message:
        return self._request

    def take(self, message: blobs.ReadBlobResponse) -> list[bytes]:
        if not message.data:
            return []
        self._request.offset = message.offset + len(message.data)
        if self._request.HasField("length"):
            self._request.length -= len(message.data)
        return [message.data]


def verify(namespace: str, thread: str) -> ProgressReader[VerifyProgress]:
    """The progress of a verification."""
    request = admin.VerifyRequest(namespace=namespace, thread=thread)
    return ProgressReader("Verify", request, VerifyProgress.from_proto)


def export(namespace: str, thread: str) -> ProgressReader[backup.ExportThreadResponse]:
    """The parts of a thread, some in each message."""
    request = backup.ExportThreadRequest(namespace=namespace, thread=thread)
    return ProgressReader("ExportThread", request, lambda message: message)


@dataclass(frozen=True, slots=True)
class Open:
    """Opens the stream."""

    method: str
    request: Message


@dataclass(frozen=True, slots=True)
class Read:
    """Reads the open stream. Answered with its next message, or END."""


END: Final = object()
Steps = Generator[Open | Read | Pause, Any, bool]


class Reading(Generic[T]):
    """A stream in the course of being read: what has come and was not taken yet, and how it goes on."""

    def __init__(self, reader: Reader[T], patience_s: Callable[[], float]) -> None:
        self.ready: deque[T] = deque()
        self.ended = False
        self._reader = reader
        self._retry = Retry(patience_s)
        self._is_open = False

    def next_message(self) -> Steps:
        """Takes in the next message, opening the stream (again) where that is needed. False at its end."""
        while not self.ended:
            try:
                if not self._is_open:
                    yield Open(self._reader.method, self._reader.request())
                    self._is_open = True
                message = yield Read()
            except StatewardError as error:
                self._is_open = False
                if self.ended:  # closed meanwhile
                    break
                delay_s = self._retry.delay_after(error) if self._reader.can_resume() else None
                if delay_s is None:
                    self.ended = True
                    raise
                yield Pause(delay_s)
            except GeneratorExit:
                # The wait was cancelled or interrupted, and gRPC may have ended the call with it.
                self._is_open = False
                if not self._reader.can_resume():
                    self.ended = True
                raise
            else:
                if message is END:
                    break
                self._retry.reset()
                self.ready.extend(self._reader.take(message))
                return True
        self.ended = True
        return False
