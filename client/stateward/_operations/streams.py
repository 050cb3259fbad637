"""Reading streams, without I/O: the request that opens a stream, the items of a message, and when to open it again.

A `Reader` survives a restart of the daemon: `request` always continues where the reader is. `Reading` drives a reader
as a generator of steps, as an operation does; `Stream` and `AsyncStream` carry the steps out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from stateward._operations.reading import parts_of, read_state
from stateward._operations.retry import Retry
from stateward._operations.steps import Pause, ThreadRef, version_ref
from stateward.admin import VerifyProgress
from stateward.changes import changes_from_proto
from stateward.effects import RecordedEffect
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
    """What one stream reads. Readers that can be resumed change their request with every message."""

    def __init__(self, method: str, request: Any) -> None:
        self.method = method
        self._request = request

    def request(self) -> Any:
        """Returns the request that opens the stream where the reader is."""
        return self._request

    def take(self, message: Any) -> list[T]:
        """Returns the items of a message."""
        raise NotImplementedError

    def can_resume(self) -> bool:
        """Whether the stream can be opened again without a gap or a duplicate."""
        return True


class ProgressReader(Reader[T]):
    """The progress of long work. It is not resumed after the first message: the work would start from the beginning."""

    def __init__(self, method: str, request: Message, read: Callable[[Any], T]) -> None:
        super().__init__(method, request)
        self._read = read
        self._begun = False

    def take(self, message: Any) -> list[T]:
        self._begun = True
        return [self._read(message)]

    def can_resume(self) -> bool:
        return not self._begun


class WatchReader(Reader[Event]):
    """Events of one thread, or of all threads of a namespace (thread "-")."""

    def __init__(
        self,
        ref: ThreadRef,
        *,
        after_sequence: int | None = None,
        after_cursor: str = "",
        include_diff: bool = False,
        labels: Mapping[str, str] | None = None,
        slots: Iterable[str] = (),
        logs: Iterable[str] = (),
        records: bool = False,
    ) -> None:
        if isinstance(slots, str) or isinstance(logs, str):
            raise TypeError("slots and logs take a list of names, not one name")
        request = ref.about(
            threads.WatchRequest,
            after_sequence=after_sequence,
            after_cursor=after_cursor,
            include_diff=include_diff,
            labels=dict(labels or {}),
            slots=slots,
            logs=logs,
            include_records=records,
        )
        super().__init__("Watch", request)

    def take(self, message: threads.WatchResponse) -> list[Event]:
        self._request.ClearField("after_sequence")
        self._request.after_cursor = message.cursor
        return list(map(Event.from_proto, message.events))


class HistoryReader(Reader[HistoryEntry]):
    """The versions of a branch."""

    def __init__(
        self,
        ref: ThreadRef,
        *,
        from_version: int,
        version: int | None,
        newest_first: bool,
        projection: checkpoints.Projection | None,
        effects: bool,
    ) -> None:
        direction = checkpoints.DIRECTION_NEWEST_FIRST if newest_first else checkpoints.DIRECTION_OLDEST_FIRST
        request = ref.on_branch(
            checkpoints.ReadHistoryRequest,
            version=version_ref(version),
            from_version=from_version,
            direction=direction,
            projection=projection,
            include_effects=effects,
        )
        super().__init__("ReadHistory", request)
        self._ref = ref
        self._newest_first = newest_first
        self._last = 0  # the version that was returned last
        self._skipping = False

    def request(self) -> Any:
        self._skipping = self._last > 0
        return super().request()

    def take(self, message: checkpoints.ReadHistoryResponse) -> list[HistoryEntry]:
        version = message.checkpoint.version
        if self._skipping:
            self._skipping = version != self._last
            return []
        if self._newest_first and not self._last:
            self._request.version.version = version  # the head may have moved by the time the stream is opened again
        self._last = version
        checkpoint, changes = Checkpoint.from_proto(message.checkpoint), changes_from_proto(message.diff)
        entry = HistoryEntry(checkpoint, self._state(message), changes)
        entry.effects = None if message.effects_omitted else tuple(map(RecordedEffect.from_proto, message.effects))
        return [entry]

    def _state(self, message: checkpoints.ReadHistoryResponse) -> State | None:
        if not message.HasField("state"):
            return None
        found, asked = message.state, self._request.projection
        logs = parts_of(found.logs)
        state = read_state(message.checkpoint, found.slots, logs, asked=asked, partial=found.partial, pinned=True)
        state.read_blobs_through(self._ref.blobs)
        return state


class BlobReader(Reader[bytes]):
    """The bytes of a blob, or of a range of it."""

    def __init__(self, request: blobs.ReadBlobRequest) -> None:
        own = blobs.ReadBlobRequest()  # the caller's request stays as it is
        own.CopyFrom(request)
        super().__init__("ReadBlob", own)

    def take(self, message: blobs.ReadBlobResponse) -> list[bytes]:
        if not message.data:
            return []
        self._request.offset = message.offset + len(message.data)
        if self._request.HasField("length"):
            self._request.length -= len(message.data)
        return [message.data]


def verify(namespace: str, thread: str) -> ProgressReader[VerifyProgress]:
    """Returns a reader of the progress of a verification."""
    request = admin.VerifyRequest(namespace=namespace, thread=thread)
    return ProgressReader("Verify", request, VerifyProgress.from_proto)


def export(namespace: str, thread: str) -> ProgressReader[backup.ExportThreadResponse]:
    """Returns a reader of the parts of a thread; each message has some of them."""
    request = backup.ExportThreadRequest(namespace=namespace, thread=thread)
    return ProgressReader("ExportThread", request, lambda message: message)


@dataclass(frozen=True, slots=True)
class Open:
    """Opens the stream."""

    method: str
    request: Message


@dataclass(frozen=True, slots=True)
class Read:
    """Reads the open stream. The answer is its next message, or END."""


END: Final = object()
Steps = Generator[Open | Read | Pause, Any, bool]


class Reading(Generic[T]):
    """A stream that is being read: `ready` holds the items that came and were not taken yet."""

    def __init__(self, reader: Reader[T], patience_s: Callable[[], float]) -> None:
        self.ready: deque[T] = deque()
        self.ended = False
        self._reader = reader
        self._retry = Retry(patience_s)
        self._is_open = False

    def next_message(self) -> Steps:
        """Adds the items of the next message to `ready`; opens the stream first if it is not open. Returns False at the
        end of the stream."""
        while not self.ended:
            try:
                if not self._is_open:
                    yield Open(self._reader.method, self._reader.request())
                    self._is_open = True
                message = yield Read()
            except StatewardError as error:
                self._is_open = False
                if self.ended:  # closed in the meantime
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
