"""A connection of the local wire on an event loop, for asyncio clients.

What comes is taken apart into frames. What does not go at once goes later. Nobody has to close it: with its last
reference it leaves the event loop.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Self, cast

from stateward._io.channel import Settings
from stateward._io.local import (
    HEAD_BYTES,
    LARGE_BYTES,
    NoFrames,
    Shape,
    Socket,
    check_listener,
    check_second,
    hello,
    late,
    meet_failure,
    note_frames,
    read_greeting,
    read_head,
)
from stateward.errors import WrongTarget

_BUSY_S = 0.005
"""How long a daemon is left alone that has many connections to take."""


class Pipe:
    """A connection of an event loop. What comes is taken apart into frames; what does not go at once goes later."""

    def __init__(self, wire: Socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._wire = wire
        self._greeted: asyncio.Future[tuple[int, bytes]] | None = None
        self._buffer = bytearray(LARGE_BYTES)
        self._view, self._used = memoryview(self._buffer), 0
        self._unsent = bytearray()
        self._sent: asyncio.Future[None] | None = None
        self._is_reading = False
        self.is_open = True

    def _take(self, call: int, kind: int, body: bytes) -> None:
        """Takes a frame."""
        raise NotImplementedError

    def _lose(self) -> None:
        """The daemon has ended the connection."""
        raise NotImplementedError

    @classmethod
    async def dial(cls, path: str, settings: Settings, timeout_s: float) -> Self:
        """Opens a connection and greets the daemon. Raises NoFrames, and the error of a daemon that is away."""
        until_s = monotonic() + timeout_s
        if (ahead := await cls._taken_over(settings, until_s)) is not None:
            return ahead
        wire = Socket.made()
        wire.setblocking(False)
        try:
            check_second(path)
            while True:
                try:
                    wire.connect(path)
                    break
                except BlockingIOError:  # too many connections wait for the daemon
                    if monotonic() > until_s:
                        raise late() from None
                    await asyncio.sleep(_BUSY_S)
            check_listener(wire, settings)
            pipe = cls(wire)
            await pipe._greet(until_s, hello())
            note_frames(settings)
        except OSError as failure:
            wire.close()
            raise meet_failure(failure, settings) from None
        except WrongTarget:
            wire.close()
            raise
        return pipe

    @classmethod
    async def _taken_over(cls, settings: Settings, until_s: float) -> Self | None:
        """Returns the connection that `open` has made; None = there is none, or its daemon has gone since."""
        wire = cast("Socket | None", None if settings.keeper is None else settings.keeper.ahead())
        if wire is None or wire.fileno() < 0:  # a forked child has closed its copy
            return None
        wire.setblocking(False)
        pipe = cls(wire)
        with suppress(OSError, NoFrames):
            await pipe._greet(until_s, b"")
            if wire.is_quiet():
                note_frames(settings)
                return pipe
        pipe.close()
        return None

    async def _greet(self, until_s: float, said: bytes) -> None:
        """Waits for the greeting. `said`: what is said first; empty = the HELLO was sent."""
        self._greeted = self._loop.create_future()
        self.read_on()
        if said:
            self.write(said)
        try:
            async with asyncio.timeout(max(until_s - monotonic(), 0.0)):
                self._wire.greeting = read_greeting(*await self._greeted)
        except BaseException as failure:
            self.close()
            if isinstance(failure, TimeoutError):
                raise late() from None
            raise
        finally:
            self._greeted = None

    def number_of(self, shape: Shape) -> int:
        """Returns the number of a method. Raises FeatureUnavailable."""
        return self._wire.greeting.number_of(shape)

    def read_on(self, on: bool = True) -> None:
        """Reads, or stops reading."""
        if on is not self._is_reading and self.is_open:
            self._is_reading = on
            if on:
                self._loop.add_reader(self._wire.fileno(), _call, weakref.WeakMethod(self._readable))
            else:
                self._loop.remove_reader(self._wire.fileno())

    def write(self, data: bytes) -> None:
        """Sends bytes, now or as soon as the daemon takes them."""
        if not self.is_open:
            return
        if not self._unsent:
            try:
                sent = self._wire.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the reader is told
            if sent == len(data):
                return
            data = data[sent:]
            self._loop.add_writer(self._wire.fileno(), _call, weakref.WeakMethod(self._writable))
        self._unsent += data

    async def drain(self) -> None:
        """Waits until everything is sent, or nobody takes it."""
        while self._unsent and self.is_open:
            self._sent = self._sent or self._loop.create_future()
            await asyncio.shield(self._sent)

    def _writable(self) -> None:
        try:
            del self._unsent[: self._wire.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()
        if not self._unsent:
            self._loop.remove_writer(self._wire.fileno())
            self._tell_sent()

    def _tell_sent(self) -> None:
        sent, self._sent = self._sent, None
        if sent is not None and not sent.done():
            sent.set_result(None)

    def _readable(self) -> None:
        try:
            count = self._wire.recv_into(self._view[self._used :])
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self.close()
            if self._greeted is None:
                self._lose()
            elif not self._greeted.done():
                self._greeted.set_exception(ConnectionResetError("the daemon closed the connection"))
            return
        self._used += count
        place = self._take_frames()
        left = self._used - place
        need = HEAD_BYTES + read_head(self._view, place)[0] if left >= HEAD_BYTES else 0
        if need > len(self._buffer) or need <= LARGE_BYTES < len(self._buffer):
            buffer = bytearray(max(need, LARGE_BYTES))
            buffer[:left] = self._view[place : self._used]
            self._buffer, self._view = buffer, memoryview(buffer)
        elif left and place:
            self._view[:left] = bytes(self._view[place : self._used])
        self._used = left

    def _take_frames(self) -> int:
        """Hands over what has come whole. Returns where the rest begins."""
        place = 0
        while self._used - place >= HEAD_BYTES:
            length, call, kind = read_head(self._view, place)
            end = place + HEAD_BYTES + length
            if end > self._used:
                break
            body = bytes(self._view[place + HEAD_BYTES : end])
            if self._greeted is None:
                self._take(call, kind, body)
            elif not self._greeted.done():
                self._greeted.set_result((kind, body))
            place = end
        return place

    def close(self) -> None:
        """Ends the connection. Any thread may do so once the event loop is closed."""
        if not self.is_open:
            return
        self.is_open = False
        number = self._wire.fileno()
        if number >= 0 and not self._loop.is_closed():  # a forked child has closed its copy
            self._loop.remove_reader(number)
            self._loop.remove_writer(number)
            self._tell_sent()
        self._wire.close()

    def __del__(self) -> None:
        self.close()


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    """Calls a method of an object that nobody else has to keep."""
    found = method()
    if found is not None:
        found()
