"""Reading streams, without I/O: the request that opens a stream, the items of a message, and when to open it again.

A `Reader` survives a restart of the daemon: `request` always continues where the reader is. `Reading` drives a reader
as a generator of steps, as an operation does; `Stream` and `AsyncStream` carry the steps out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from stateward._operations.reading import parts_of, read_state
from stateward._operations.retry import Retry, never
from stateward._operations.steps import Pause, ThreadRef, thread_error, version_ref
from stateward.admin import VerifyProgress
from stateward.arguments import message
from stateward.changes import changes_from_proto
from stateward.effects import RecordedEffect
from stateward.errors import InvalidField, StatewardError, UidMismatch, VersionMismatch, VersionPruned
from stateward.events import Event, HistoryEntry
from stateward.models import At, Checkpoint
from stateward.state import State
from stateward.v1 import admin_service_pb2 as admin
from stateward.v1 import backup_service_pb2 as backup
from stateward.v1 import blob_service_pb2 as blobs
from stateward.v1 import checkpoint_pb2
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1 import thread_service_pb2 as threads

T = TypeVar("T")


class Recovery(Enum):
    """How a reader goes on after an error."""

    NONE = "the error stands"
    OPEN = "open the stream again, with another request"
    END = "there is nothing more"


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

    def is_done(self) -> bool:
        """Whether a stream that is opened again would have nothing more."""
        return False

    def recover(self, error: StatewardError) -> Recovery:
        """Returns how to go on after an error that trying again does not help against."""
        del error
        return Recovery.NONE


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
            labels=dict(labels) if isinstance(labels, Mapping) else labels,
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
    """The versions of a branch.

    A stream that is opened again continues at the version that was returned last, and checks that it does: another
    thread of that name, or a line without that version, is an error. If that version was pruned meanwhile, nothing is
    left that leads from it to the next one. The next entry then shows its whole state.
    """

    def __init__(
        self,
        ref: ThreadRef,
        *,
        oldest: At | None,
        at: At | None,
        newest_first: bool,
        projection: checkpoints.Projection | None,
        effects: bool,
    ) -> None:
        order = checkpoints.READ_ORDER_NEWEST_FIRST if newest_first else checkpoints.READ_ORDER_OLDEST_FIRST
        request = ref.on_branch(
            checkpoints.ReadHistoryRequest,
            version=version_ref(at),
            oldest=version_ref(oldest, called="oldest"),
            order=order,
            projection=projection,
            include_effects=effects,
        )
        super().__init__("ReadHistory", request)
        self._ref = ref
        self._newest_first = newest_first
        self._is_bounded = oldest is not None
        self._oldest = oldest.version if isinstance(oldest, Checkpoint) else oldest if isinstance(oldest, int) else 0
        self._last: checkpoint_pb2.Checkpoint | None = None  # the version that was returned last
        self._is_whole = True  # the line up to the last version is still there, as far as is known
        self._is_first = True  # the next message is the first of its stream

    def request(self) -> Any:
        self._is_first = True
        last = self._last
        if last is not None and self._newest_first:
            self._request.version.CopyFrom(checkpoint_pb2.VersionRef(version=last.parent_version))
        elif last is not None:
            self._request.ClearField("oldest")
            if self._is_whole:
                self._request.oldest.version = last.version
        return super().request()

    def is_done(self) -> bool:
        last = self._last
        return last is not None and self._newest_first and last.parent_version < max(self._oldest, 1)

    def recover(self, error: StatewardError) -> Recovery:
        last = self._last
        is_left = isinstance(error, InvalidField) and error.field == "oldest"
        if last is None or self._is_bounded or not (is_left or isinstance(error, VersionPruned)):
            return Recovery.NONE
        if self._newest_first:  # a line ends before the nearest ancestor that was pruned
            return Recovery.END if self._is_first else Recovery.NONE
        if self._is_first and not self._is_whole:
            return Recovery.NONE
        self._is_whole = False
        return Recovery.OPEN

    def take(self, message: checkpoints.ReadHistoryResponse) -> list[HistoryEntry]:
        is_first, self._is_first = self._is_first, False
        found, last = message.checkpoint, self._last
        begins = last is None
        if last is not None:
            if found.uid != last.uid:
                what = f"thread {last.thread!r} was deleted while its history was read, and another one has its name"
                facts = {"uid": found.uid, "expected_uid": last.uid}
                raise thread_error(UidMismatch, last.thread, what, reason="UID_MISMATCH", **facts)
            if not self._newest_first and found.version <= last.version:
                if found.version == last.version and found.digest != last.digest:
                    raise self._left(last)
                return []
            begins = is_first and not self._newest_first
            child, parent = (last, found) if self._newest_first else (found, last)
            if not begins and child.parent_version != parent.version:
                raise self._left(last)
        self._last, self._is_whole = found, True
        checkpoint, changes = Checkpoint.from_proto(found), changes_from_proto(message.diff)
        entry = HistoryEntry(checkpoint, self._state(message) if begins else None, changes)
        entry.begins = begins
        entry.effects = None if message.effects_omitted else tuple(map(RecordedEffect.from_proto, message.effects))
        return [entry]

    def _left(self, last: checkpoint_pb2.Checkpoint) -> VersionMismatch:
        return VersionMismatch(
            f"branch {self._ref.branch!r} of thread {last.thread!r} no longer comes from version {last.version}: "
            "its head was moved while its history was read; read it again"
        )

    def _state(self, message: checkpoints.ReadHistoryResponse) -> State | None:
        if not message.HasField("state"):
            return None
        found, asked = message.state, self._request.projection
        state = read_state(
            message.checkpoint, found.slots, parts_of(found.logs), found.retired_logs, asked=asked,
            partial=found.partial, pinned=True,
        )  # fmt: skip
        state._read_blobs_through(self._ref.blobs)
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


def verify(namespace: str, thread: str, *, deleted_keys: bool) -> ProgressReader[VerifyProgress]:
    """Returns a reader of the progress of a verification."""
    request = message(
        admin.VerifyRequest, {"namespace": namespace, "thread": thread, "deleted_keys": deleted_keys}
    )
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

    def __init__(
        self, reader: Reader[T], patience_s: Callable[[], float], renew: Callable[[], bool] = never
    ) -> None:
        self.ready: deque[T] = deque()
        self.ended = False
        self._reader = reader
        self._retry = Retry(patience_s, renew)
        self._is_open = False

    def next_message(self) -> Steps:
        """Adds the items of the next message to `ready`; opens the stream first if it is not open. Returns False at the
        end of the stream."""
        while not self.ended:
            try:
                if not self._is_open:
                    if self._reader.is_done():
                        break
                    yield Open(self._reader.method, self._reader.request())
                    self._is_open = True
                message = yield Read()
            except StatewardError as error:
                self._is_open = False
                if self.ended:  # closed in the meantime
                    break
                pause = self._after(error)
                if pause is None:
                    break
                yield pause
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
                self._take(message)
                return True
        self.ended = True
        return False

    def _take(self, message: Any) -> None:
        try:
            self.ready.extend(self._reader.take(message))
        except StatewardError:
            self.ended = True
            raise

    def _after(self, error: StatewardError) -> Pause | None:
        """Returns the pause before the stream is opened again, or None if it has ended. Raises the error if it
        stands."""
        recovery = self._reader.recover(error)
        if recovery is Recovery.END:
            return None
        if recovery is Recovery.OPEN:
            return Pause(0.0)
        delay_s = self._retry.delay_after(error) if self._reader.can_resume() else None
        if delay_s is None:
            self.ended = True
            raise error
        return Pause(delay_s)
