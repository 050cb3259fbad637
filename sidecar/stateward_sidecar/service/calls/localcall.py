"""A call on the local wire: what handlers and verbs ask gRPC's context for.

Its messages come whole. The memory of a large one is counted before its first byte is kept, so it has a share already.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import NamedTuple, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import Message

from stateward_sidecar.service.admission.memory import Share


class Peer(NamedTuple):
    """The process at the other end, as the kernel names it. A process of another container has no number here."""

    pid: int = 0
    uid: int = -1
    """-1 = the kernel does not say."""
    gid: int = -1
    socket: Path | None = None
    """The socket of a principal, through which it has come; None = one of everybody."""


MESSAGE_BYTES = 200
"""What a message takes beside its bytes, so that empty ones are bounded, too."""
Metadata = tuple[tuple[str, str], ...]
Send = Callable[[Message], Awaitable[None]]
Arrived = tuple[bytes | bytearray, Share | None]
"""The bytes of a message, and the memory that a large one was given before it came."""


class LocalCall:
    """A call, and what has come of its messages. Used on the event loop only."""

    __slots__ = (
        "_code", "_is_ended", "_messages", "_metadata", "_more", "_on_taken", "_send", "_until_s", "handed_out",
        "has_turn", "is_committing", "on_committed", "peer", "status", "waiting_bytes",
    )  # fmt: skip

    def __init__(
        self,
        peer: Peer,
        timeout_s: float | None,
        metadata: Metadata = (),
        send: Send | None = None,
        on_taken: Callable[[], None] | None = None,
    ) -> None:
        """``send`` sends an answer of a stream. ``on_taken`` is called when a message was taken."""
        self.peer, self._metadata = peer, metadata
        self._until_s = None if timeout_s is None else monotonic() + timeout_s
        self._send, self._on_taken = send, on_taken
        self._messages: deque[Arrived] = deque()
        self._is_ended = False
        self._more: asyncio.Future[None] | None = None
        self._code: grpc.StatusCode | None = None
        self.waiting_bytes = 0
        """Of the messages that were not taken yet."""
        self.status = b""
        """The `google.rpc.Status` of a call that was refused."""
        self.has_turn = False
        """Whether its turn has come already (`local/passing.py`)."""
        self.is_committing = False
        """Whether it waits for its commit, and for nothing else."""
        self.on_committed: Callable[[], None] | None = None
        """Called when it no longer does."""
        self.handed_out: list[Callable[..., None]] = []
        """Called when the answer has been handed out, or nobody takes it."""

    @property
    def is_ended(self) -> bool:
        """Whether the caller sends no more messages."""
        return self._is_ended

    # What the connection says.

    def put(self, data: bytes | bytearray, share: Share | None = None) -> None:
        """A message has come."""
        self._messages.append((data, share))
        self.waiting_bytes += len(data) + MESSAGE_BYTES
        self._wake()

    def end(self) -> None:
        """There are no more messages."""
        self._is_ended = True
        self._wake()

    def drop(self) -> None:
        """Gives back the memory of messages that nobody takes."""
        while self._messages:
            if (share := self._messages.popleft()[1]) is not None:
                share.close()

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    # What handlers and verbs ask for.

    async def take(self) -> Arrived | None:
        """Returns the next message, whose share the caller closes; None after the last one."""
        while not self._messages:
            if self._is_ended:
                return None
            self._more = asyncio.get_running_loop().create_future()
            await self._more
        taken = self._messages.popleft()
        self.waiting_bytes -= len(taken[0]) + MESSAGE_BYTES
        if self._on_taken is not None:
            self._on_taken()
        return taken

    async def write(self, answer: Message) -> None:
        """Sends an answer of a stream. Returns when its memory is not needed any more."""
        assert self._send is not None
        await self._send(answer)

    def time_remaining(self) -> float | None:
        """Seconds until the deadline, at least 0; None = there is no deadline."""
        return None if self._until_s is None else max(self._until_s - monotonic(), 0.0)

    def invocation_metadata(self) -> Metadata:
        """What the caller sent beside the message: its token, and its span."""
        return self._metadata

    def __enter__(self) -> None:
        """Begins to wait for a commit."""
        self.is_committing = True

    def __exit__(self, *error: object) -> None:
        self.is_committing = False
        on_committed, self.on_committed = self.on_committed, None  # a verb may run again, and commit once more
        if on_committed is not None:
            on_committed()

    def add_done_callback(self, callback: Callable[..., None]) -> None:
        """Calls a function when the answer has been handed out."""
        self.handed_out.append(callback)

    def code(self) -> grpc.StatusCode | None:
        """The code of a call that was refused."""
        return self._code

    async def abort(
        self, code: grpc.StatusCode, message: str, trailing_metadata: tuple[tuple[str, str | bytes], ...] = ()
    ) -> NoReturn:
        """Refuses the call. The first trailer has the whole status."""
        self._code, status = code, trailing_metadata[0][1]
        assert isinstance(status, bytes)
        self.status = status
        raise grpc.aio.AbortError(message)
