"""Calls of a blocking client on the local wire. `aio.local` is the pair of this file.

There is no thread and no event loop: a call takes a free connection, or opens one, and waits for its answer itself.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

from google.protobuf.message import Message

from stateward._io.channel import Settings, upload_deadline_s
from stateward._io.local import (
    END_OF_MESSAGES,
    ERROR,
    HEAD_BYTES,
    LATE_S,
    MESSAGE,
    NoFrames,
    Socket,
    broken,
    check_listener,
    check_second,
    check_size,
    frame,
    hello,
    late,
    meet_failure,
    note_frames,
    read_answer,
    read_greeting,
    read_head,
    request_frame,
    shape_of,
)
from stateward._io.token import call_metadata
from stateward._operations.streams import END
from stateward.blobs import Content
from stateward.errors import ServerUnavailable, StatewardError

FREE_MAX = 16
"""The most connections that are kept for later calls."""
_READ_BYTES = 64 << 10
_LATE = (BlockingIOError, TimeoutError)


class _Wire(Socket):
    """A blocking connection. Its waits end after a time that the kernel keeps, which takes no system call more."""

    limit_s = -1.0

    def limit(self, seconds: float | None) -> None:
        """Sets how long a wait may take; None = for ever. It then raises one of _LATE."""
        seconds = 0.0 if seconds is None else max(seconds, 1e-3)
        if seconds != self.limit_s:
            whole = int(min(seconds, 1e9))
            given = struct.pack("ll", whole, int((seconds - whole) * 1e6) if seconds < 1e9 else 0)
            self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, given)
            self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, given)
            self.limit_s = seconds

    def receive(self) -> tuple[int, bytes | bytearray]:
        """Returns kind and body of the next frame, behind which nothing has come. Raises OSError."""
        data = self.recv(_READ_BYTES)
        while len(data) < HEAD_BYTES:
            data += self._more(HEAD_BYTES - len(data))
        length, _, kind = read_head(data)
        if len(data) >= HEAD_BYTES + length:
            return kind, data[HEAD_BYTES:]
        return kind, self._whole(data[HEAD_BYTES:], length)

    def receive_one(self) -> tuple[int, bytes | bytearray]:
        """Returns kind and body of the next frame, and takes nothing of those behind it. Raises OSError."""
        length, _, kind = read_head(self._whole(b"", HEAD_BYTES))
        return kind, self._whole(b"", length) if length else b""

    def _whole(self, begin: bytes, length: int) -> bytes | bytearray:
        whole, got = bytearray(length), len(begin)
        whole[:got] = begin
        view = memoryview(whole)
        while got < length:
            if not (count := self.recv_into(view[got:])):
                raise ConnectionResetError("the daemon closed the connection")
            got += count
        return whole  # a large one is not copied once more

    def _more(self, count: int) -> bytes:
        if not (more := self.recv(count)):
            raise ConnectionResetError("the daemon closed the connection")
        return more


class LocalWire:
    """The connections of a client. Any thread may call."""

    def __init__(self, path: str, settings: Settings) -> None:
        self._path, self._settings = path, settings
        self._free: list[_Wire] = []
        self._is_open = True

    def call(self, method: str, request: Message, timeout_s: float) -> Any:
        """Makes one attempt of a unary call. Raises NoFrames if gRPC has to make it."""
        shape, until_s = shape_of(method), monotonic() + timeout_s
        wire = self._take(timeout_s)
        is_whole = False
        try:
            number = wire.greeting.number_of(shape)
            sent = request_frame(number, 1, shape, request, timeout_s, call_metadata(self._settings))
            kind, body = _ask(wire, sent, until_s)
            is_whole = True
        except _LATE:
            raise late() from None
        except OSError:
            raise broken() from None
        finally:
            if is_whole and self._is_open and len(self._free) < FREE_MAX:
                self._free.append(wire)
            else:
                wire.close()
        return read_answer(shape, kind, body)

    def open(self, method: str, request: Message | None, timeout_s: float | None = None) -> LocalStream:
        """Starts a streaming call, on a connection of its own. Does not wait. `request`: None = they are written."""
        return LocalStream(self._path, self._settings, method, request, timeout_s)

    def upload(self, begin: Message, content: Content) -> Any:
        """Makes one attempt to upload a content. An error of the source of the bytes is raised unchanged."""
        stream = self.open(content.method, None, upload_deadline_s(self._settings, content))
        try:
            stream.begin()
            stream.write(content.begin(begin))
            for piece in content.pieces():  # type: ignore[union-attr]
                for message in content.parts(piece):
                    if not stream.is_quiet():  # it is answered or refused: nobody wants the rest
                        return stream.answer()
                    stream.write(message)
            stream.done_writing()
            return stream.answer()
        finally:
            stream.cancel()

    def _take(self, timeout_s: float) -> _Wire:
        """Returns a free connection whose daemon still lives, or a new one."""
        while self._free:
            try:
                wire = self._free.pop()
            except IndexError:  # another thread took it
                break
            if wire.is_quiet():
                return wire
            wire.close()
        if (ahead := _taken_over(self._settings, timeout_s)) is not None:
            return ahead
        wire = _Wire.made()
        _greet(wire, self._path, self._settings, timeout_s)
        return wire

    def close(self) -> None:
        """Ends the free connections. Those of calls under way end with their calls."""
        self._is_open = False
        with suppress(IndexError):
            while True:
                self._free.pop().close()


def _taken_over(settings: Settings, timeout_s: float) -> _Wire | None:
    """Returns the connection that `open` has made; None = there is none, or its daemon has gone since."""
    ahead = None if settings.keeper is None else settings.keeper.ahead()
    if ahead is None or (number := ahead.detach()) < 0:  # a forked child has closed its copy
        return None
    wire = _Wire(number)
    try:
        wire.limit(timeout_s + LATE_S)
        wire.greeting = read_greeting(*wire.receive())
        if wire.is_quiet():
            note_frames(settings)
            return wire
    except _LATE:
        wire.close()
        raise late() from None
    except (OSError, NoFrames):
        pass
    wire.close()
    return None


def _greet(wire: _Wire, path: str, settings: Settings, timeout_s: float) -> None:
    """Connects and greets the daemon. Raises NoFrames, and the error of a daemon that is away."""
    try:
        check_second(path)
        wire.limit(timeout_s + LATE_S)
        wire.connect(path)
        check_listener(wire, settings)
        wire.sendall(hello())
        wire.greeting = read_greeting(*wire.receive())
        note_frames(settings)
    except _LATE:
        wire.close()
        raise late() from None
    except OSError as failure:
        wire.close()
        raise meet_failure(failure, settings) from None
    except BaseException:
        wire.close()
        raise


def _ask(wire: _Wire, sent: bytes, until_s: float) -> tuple[int, bytes | bytearray]:
    """Sends a request and returns the answer, also if the daemon gives it without taking all of the request."""
    wire.limit(until_s - monotonic() + LATE_S)
    try:
        wire.sendall(sent)
    except (BrokenPipeError, ConnectionResetError):
        return wire.receive()
    return wire.receive()


class LocalStream:
    """A streaming call. One thread uses it, and any thread may cancel it. It begins with its first read or write."""

    def __init__(
        self, path: str, settings: Settings, method: str, request: Message | None, timeout_s: float | None
    ) -> None:
        self._wire = _Wire.made()
        self._path, self._settings, self._shape = path, settings, shape_of(method)
        self._request, self._timeout_s = request, timeout_s
        self._has_begun = self._is_cancelled = self._is_broken = False
        self._failed: Exception | None = None

    def begin(self) -> None:
        """Connects and asks. Raises NoFrames if gRPC has to make the call, and the error of a daemon that is away."""
        if self._has_begun:
            return
        settings, shape = self._settings, self._shape
        try:
            if self._failed is not None:
                raise self._failed
            _greet(self._wire, self._path, settings, settings.call_timeout_s)
            number, metadata = self._wire.greeting.number_of(shape), call_metadata(settings)
            asked = request_frame(number, 1, shape, self._request, self._timeout_s, metadata)
        except (StatewardError, NoFrames) as failed:
            self._failed = failed  # of a `write`, whose message is lost
            if self._is_cancelled:
                raise _ended_here() from None
            raise
        self._has_begun = True
        self._send(asked)

    def read(self, seconds: float | None = None) -> Any:
        """Returns the next message, or END. `seconds`: how long it may take; None = as long as the call."""
        self.begin()
        with self._told(seconds):
            self._wire.limit(self._timeout_s if seconds is None else seconds)
            kind, body = self._wire.receive_one()
        if kind == MESSAGE:
            return read_answer(self._shape, kind, body)
        self._is_broken = True
        if kind != ERROR and self._shape.has_many_answers:
            return END
        return read_answer(self._shape, kind, body)

    def answer(self) -> Any:
        """Returns the only answer. Raises the daemon's error."""
        return self.read()

    def write(self, message: Message) -> None:
        """Sends a message. The next `read` raises the error of a stream that broke."""
        body = message.SerializeToString()
        check_size(len(body))
        self.begin()
        self._send(frame(MESSAGE, 1, body))

    def done_writing(self) -> None:
        """Sends no more messages."""
        self._send(frame(END_OF_MESSAGES, 1))

    def is_quiet(self) -> bool:
        """Whether the daemon has neither answered nor gone away."""
        return self._wire.is_quiet()

    def _send(self, sent: bytes) -> None:
        if self._is_broken:
            return
        self._is_broken = True  # half a frame may be sent if a signal comes now
        try:
            self._wire.limit(self._settings.call_timeout_s)
            self._wire.sendall(sent)
        except _LATE:
            self.cancel()
        except OSError:
            return
        self._is_broken = False

    @contextmanager
    def _told(self, seconds: float | None) -> Iterator[None]:
        """Says what ended a stream that did not end by itself."""
        try:
            yield
        except _LATE:
            self.cancel()
            if seconds is not None:  # of one answer: the stream may be opened again
                raise ServerUnavailable("the daemon did not answer in time", code="DEADLINE_EXCEEDED") from None
            raise late() from None
        except OSError:
            was_cancelled, self._is_broken = self._is_cancelled, True
            if was_cancelled:
                raise _ended_here() from None
            raise ServerUnavailable("the stream to the daemon broke", code="UNAVAILABLE") from None
        except BaseException:  # a signal: half a frame may have been read
            self.cancel()
            raise

    def cancel(self) -> None:
        """Ends the call. Whoever waits for it wakes."""
        self._is_cancelled = True
        with suppress(OSError):
            self._wire.shutdown(socket.SHUT_RDWR)


def _ended_here() -> ServerUnavailable:
    return ServerUnavailable("the stream was ended here", code="CANCELLED")


class Upload:
    """A call whose messages are sent one by one, as fast as the daemon takes them."""

    def __init__(self, stream: LocalStream) -> None:
        self._stream = stream

    def send(self, message: Message) -> None:
        """Sends a message. Raises the daemon's error if it has refused the call meanwhile."""
        if self._stream.is_quiet():
            self._stream.write(message)
        else:
            self._stream.answer()

    def finish(self) -> Any:
        """Ends the stream and returns the answer."""
        self._stream.done_writing()
        return self._stream.answer()

    def cancel(self) -> None:
        """Cancels the call. Does nothing after the answer."""
        self._stream.cancel()
