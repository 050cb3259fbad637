"""Reading streams, without I/O: what to ask for next, and what to make of a message.

A reader survives the daemon's restart: `request` always says where to go on, so that the shells only reopen it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from stateward import _operations as ops
from stateward.errors import ThreadNotFound
from stateward.models import Checkpoint, Event, HistoryEntry, VerifyProgress, changes_from_proto
from stateward.state import State
from stateward.v1 import admin_service_pb2 as admin
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1 import thread_service_pb2 as threads

T = TypeVar("T")


class Reader(Generic[T]):
    """One stream that is read."""

    method: str

    def start(self) -> ops.Operation[None]:
        """What is to be asked before the stream is opened for the first time."""
        return
        yield

    def request(self) -> Message:
        """What to ask for, from where the reader is."""
        raise NotImplementedError

    def take(self, message: Any) -> list[T]:
        """What a message brings."""
        raise NotImplementedError

    def can_resume(self) -> bool:
        """Whether reopening the stream goes on without gap and duplicate."""
        raise NotImplementedError


class WatchReader(Reader[Event]):
    """Events of one thread, or of a namespace (thread "-")."""

    method = "Watch"

    def __init__(
        self,
        ref: ops.ThreadRef,
        *,
        after_sequence: int | None,
        after_cursor: str,
        include_diff: bool,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._ref = ref
        self._request = threads.WatchRequest(
            namespace=ref.namespace,
            thread=ref.thread,
            after_sequence=after_sequence,
            after_cursor=after_cursor,
            include_diff=include_diff,
            labels=dict(labels or {}),
        )

    def start(self) -> ops.Operation[None]:
        """Turns "from now on" into a place in the journal: else events between a break and the reconnect were lost."""
        if self._ref.thread == "-" or self.can_resume():
            return
        try:
            self._request.after_sequence = (yield from ops.get_thread(self._ref)).sequence
        except ThreadNotFound:
            self._request.after_sequence = 0

    def request(self) -> Message:
        return self._request

    def take(self, message: threads.WatchResponse) -> list[Event]:
        if message.events:
            self._request.ClearField("after_sequence")
            self._request.after_cursor = message.events[-1].cursor
        return list(map(Event.from_proto, message.events))

    def can_resume(self) -> bool:
        """False for a namespace's watch from now on, before its first event: it has no place to go on from."""
        return bool(self._request.after_cursor) or self._request.HasField("after_sequence")


class HistoryReader(Reader[HistoryEntry]):
    """A line of versions."""

    method = "ReadHistory"

    def __init__(
        self,
        ref: ops.ThreadRef,
        *,
        from_version: int,
        version: int | None,
        newest_first: bool,
        projection: checkpoints.Projection | None,
    ) -> None:
        direction = checkpoints.DIRECTION_NEWEST_FIRST if newest_first else checkpoints.DIRECTION_OLDEST_FIRST
        self._request = checkpoints.ReadHistoryRequest(
            namespace=ref.namespace,
            thread=ref.thread,
            branch=ref.branch,
            version=ops.version_ref(version),
            from_version=from_version,
            direction=direction,
            projection=projection,
        )
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

    def can_resume(self) -> bool:
        return True

    def _state(self, message: checkpoints.ReadHistoryResponse) -> State | None:
        if not message.HasField("state"):
            return None
        found, asked = message.state, self._request.projection
        return ops.read_state(
            message.checkpoint, found.slots, found.logs, asked=asked, partial=found.partial, pinned=True
        )


class VerifyReader(Reader[VerifyProgress]):
    """The progress of a verification. It is not taken up again after a break: its counts would start anew."""

    method = "Verify"

    def __init__(self, namespace: str, thread: str) -> None:
        self._request = admin.VerifyRequest(namespace=namespace, thread=thread)

    def request(self) -> Message:
        return self._request

    def take(self, message: admin.VerifyResponse) -> list[VerifyProgress]:
        return [VerifyProgress.from_proto(message)]

    def can_resume(self) -> bool:
        return False
