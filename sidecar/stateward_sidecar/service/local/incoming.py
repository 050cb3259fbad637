"""Puts frames together from the bytes of one connection. No socket, no clock: what comes in is all it knows.

Each head is judged before a byte of its body is kept. Connections share one buffer, so an idle one costs no memory:
what is left of it after a read is a part of one frame. Only a body larger than that buffer is read into a buffer of its
own.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from stateward_sidecar.service.local.frame import HEAD_BYTES, Head, unpack_head

LARGE_BYTES = 64 << 10
"""Larger bodies have a buffer of their own. The shared buffer has this size."""
TURN_FRAMES = 64
"""The most frames of one read that are taken in one turn of the event loop: a read may have four thousand."""


class Verdict(Enum):
    """What becomes of a frame, by its head."""

    TAKE = "its body is kept"
    SKIP = "its body is thrown away"
    WAIT = "nothing more is read until `resume`"
    CLOSE = "nothing more is read"


class Judge(Protocol):
    """Who gets the frames."""

    def judge(self, head: Head) -> Verdict:
        """Decides on a frame before its body is kept. WAIT only for bodies of more than LARGE_BYTES."""

    def take(self, head: Head, body: bytes | bytearray) -> bool:
        """Takes a whole frame. Returns False if nothing more is to be read."""

    def may_go_on(self) -> bool:
        """Whether the next frame may be taken at once. Asked only if more of a read is there."""


class Incoming:
    """The frames of a connection."""

    __slots__ = ("_body", "_head", "_is_over", "_judge", "_part", "_rest", "_shared", "_skip", "_used")

    def __init__(self, judge: Judge, shared: memoryview) -> None:
        """``shared``: the buffer that all connections read into, of LARGE_BYTES."""
        self._judge, self._shared = judge, shared
        self._head: Head | None = None
        # Of a head, or of a body that fits into the shared buffer.
        self._part = bytearray()
        # A larger one, and how much of it has come.
        self._body: bytearray | None = None
        self._used = 0
        # What a read had behind the last frame that could be taken.
        self._rest = b""
        # Bytes of a body that are still to be thrown away.
        self._skip = 0
        self._is_over = False

    @property
    def kept_bytes(self) -> int:
        """How much memory a part of a frame has, or the rest of a read."""
        return len(self._part) + len(self._rest) + (0 if self._body is None else len(self._body))

    @property
    def has_rest(self) -> bool:
        """Whether a read was not taken to its end. Nothing more may be read before `go_on` has taken it."""
        return bool(self._rest)

    def buffer(self) -> memoryview:
        """Returns where the next bytes are to be read into. Never empty."""
        return self._shared if self._body is None else memoryview(self._body)[self._used :]

    def filled(self, count: int) -> None:
        """Takes the bytes that were read into the buffer."""
        if self._body is None:
            self._feed(self._shared[:count])
            return
        self._used += count
        if self._used == len(self._body):
            body, self._body, self._used = self._body, None, 0
            self._give(body)

    def go_on(self) -> None:
        """Takes more of a read that was not taken to its end."""
        rest, self._rest = self._rest, b""
        self._feed(memoryview(rest))

    def resume(self) -> None:
        """Takes the body that a verdict has let wait."""
        assert self._head is not None
        self._body = bytearray(self._head.length)
        self._used = len(self._part)
        self._body[: self._used] = self._part
        self._part = bytearray()

    def skip(self) -> None:
        """Throws the body away that is waited for, or of which a part has come."""
        assert self._head is not None
        self._skip = self._head.length - (len(self._part) if self._body is None else self._used)
        self._drop()

    def end(self) -> None:
        """Drops what has come of a frame. Nothing more is taken."""
        self._is_over = True
        self._rest = b""
        self._drop()

    def _drop(self) -> None:
        self._head, self._body, self._part, self._used = None, None, bytearray(), 0

    def _feed(self, data: memoryview) -> None:
        at, end, frames = 0, len(data), 0
        while at < end and not self._is_over:
            if self._skip:
                count = min(self._skip, end - at)
                self._skip -= count
            elif self._head is None:
                count = self._take_head(data, at)
            else:
                count = self._take_body(data, at)
            at += count
            if at < end and self._head is None and not self._skip and not self._is_over:  # behind a frame
                frames += 1
                if frames >= TURN_FRAMES or not self._judge.may_go_on():
                    self._rest = bytes(data[at:])
                    return

    def _take_head(self, data: memoryview, at: int) -> int:
        """Takes bytes of a head. Returns their number."""
        if not self._part and len(data) - at >= HEAD_BYTES:
            self._begin(unpack_head(data, at))
            return HEAD_BYTES
        count = min(HEAD_BYTES - len(self._part), len(data) - at)
        self._part += data[at : at + count]
        if len(self._part) == HEAD_BYTES:
            head, self._part = unpack_head(self._part, 0), bytearray()
            self._begin(head)
        return count

    def _begin(self, head: Head) -> None:
        verdict = self._judge.judge(head)
        if verdict is Verdict.CLOSE:
            self.end()
        elif verdict is Verdict.SKIP:
            self._skip = head.length
        else:
            self._head = head
            if verdict is Verdict.TAKE and head.length > LARGE_BYTES:
                self.resume()
            elif not head.length:
                self._give(b"")

    def _take_body(self, data: memoryview, at: int) -> int:
        """Takes bytes of a body. Returns their number."""
        assert self._head is not None
        if self._body is not None:  # a large one, whose head came in this read
            count = min(len(self._body) - self._used, len(data) - at)
            self._body[self._used : self._used + count] = data[at : at + count]
            self._used += count
            return count
        length = self._head.length
        if not self._part and len(data) - at >= length:
            self._give(bytes(data[at : at + length]))
            return length
        count = min(length - len(self._part), len(data) - at)
        self._part += data[at : at + count]  # also of a large one that waits: less than the shared buffer
        if len(self._part) == length:
            body, self._part = bytes(self._part), bytearray()
            self._give(body)
        return count

    def _give(self, body: bytes | bytearray) -> None:
        head, self._head = self._head, None
        assert head is not None
        if not self._judge.take(head, body):
            self.end()
