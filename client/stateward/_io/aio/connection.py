"""The asyncio client's connection to the daemon: over frames, else gRPC. `blocking.connection` is the pair of this."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncGenerator
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from stateward._io import forks
from stateward._io.aio.local import CLOSE_S, LocalWire
from stateward._io.aio.localstream import LocalStream
from stateward._io.channel import Settings
from stateward._io.local import NoFrames, frames_path, when_to_look_again
from stateward._io.target import check_owner
from stateward._io.tls import Renewal
from stateward.blobs import Content
from stateward.errors import DeadlineExceeded, ServerUnavailable, WrongTarget

if TYPE_CHECKING:
    from stateward._io.aio.grpcwire import GrpcStream, GrpcWire


class Connection:
    """The connection of one process and one event loop: frames if the daemon speaks them, else gRPC."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        forks.use_loop(self._loop)
        self.streams: weakref.WeakSet[Any] = weakref.WeakSet()
        """The open streams. `close` ends them."""
        path = frames_path(settings)
        self._local = LocalWire(path, settings) if path else None
        # While this time has not come, the daemon is taken for one that speaks no frames.
        self._look_s = 0.0
        self._grpc: GrpcWire | None = None
        self._renewal = Renewal(settings.tls) if settings.tls is not None else None
        self._wires: list[Any] = [] if self._local is None else [self._local]
        # An event loop that ends, as in `asyncio.run`, closes the asynchronous generators that were started on it. If
        # another such generator makes a connection after that, the channel ends with this object.
        self._lifetime: Any = _lifetime(self._wires, self.streams)
        if not getattr(self._loop, "_asyncgens_shutdown_called", False):
            with suppress(StopIteration):
                self._lifetime.__anext__().send(None)

    @property
    def is_open(self) -> bool:
        """Whether calls can be made: neither `close` nor the end of the event loop has started to close it."""
        return not (self._lifetime.ag_running or self._lifetime.ag_frame is None or self._loop.is_closed())

    async def pause(self, seconds: float) -> None:
        """Waits."""
        await asyncio.sleep(seconds)

    async def call(self, method: str, request: Message, deadline_s: float | None) -> Any:
        """Makes one attempt of a unary call. A call without a deadline has the client's."""
        timeout_s = self._settings.call_timeout_s if deadline_s is None else deadline_s
        if (local := self._frames()) is not None:
            try:
                return await local.call(method, request, timeout_s)
            except NoFrames as none:
                self.note_no_frames(none)
        return await self.over_grpc().call(method, request, timeout_s)

    async def upload(self, begin: Message, content: Content) -> Any:
        """Makes one attempt to upload a content. An error of the source of the bytes is raised unchanged."""
        if (local := self._frames()) is not None:
            try:
                return await local.upload(begin, content)
            except NoFrames as none:
                self.note_no_frames(none)
        return await self.over_grpc().upload(begin, content)

    def open(self, method: str, request: Message | None) -> StartedStream | GrpcStream:
        """Starts a streaming call. Does not wait. `request`: None = the requests are written."""
        if (local := self._frames()) is not None:
            return StartedStream(self, local.open(method, request), method, request)
        return self.over_grpc().open(method, request)

    async def close(self) -> None:
        """Ends the streams and the connection. Any event loop may call it."""
        if self._loop.is_running() and self._loop is not asyncio.get_running_loop():
            closing = asyncio.run_coroutine_threadsafe(self._lifetime.aclose(), self._loop)
            with suppress(TimeoutError, asyncio.CancelledError):  # that loop is ending and closes the connection itself
                await asyncio.wait_for(asyncio.wrap_future(closing), 2 * CLOSE_S)
        elif not self._loop.is_closed():  # else the channel ends with this object
            await self._lifetime.aclose()

    def _frames(self) -> LocalWire | None:
        """Returns the local wire, unless the daemon was seen a moment ago to have none."""
        if self._local is None or (self._look_s and monotonic() < self._look_s):
            return None
        return self._local

    def note_no_frames(self, none: NoFrames) -> None:
        """Notes that the daemon speaks no frames at present. Raises FeatureUnavailable if only they are allowed."""
        # The task that raised it would else keep this connection until the next garbage collection.
        none.__traceback__ = none.__context__ = None
        self._look_s = when_to_look_again(self._settings)

    def over_grpc(self) -> GrpcWire:
        """Returns gRPC's half, and loads gRPC if it is needed for the first time. Raises WrongTarget if somebody else's
        socket is at the target: gRPC connects by itself, so each call looks."""
        check_owner(self._settings.target)
        if self._grpc is None:
            from stateward._io.aio.grpcwire import GrpcWire  # noqa: PLC0415

            self._grpc = GrpcWire(self._settings, self.streams)
            self._wires.append(self._grpc)
        elif self._renewal is not None and self._renewal.is_due():
            with suppress(WrongTarget):  # a file is half written: the next look finds it whole
                self._renew(self._grpc, self._renewal)
        return self._grpc

    def _renew(self, old: GrpcWire, renewal: Renewal) -> None:
        """Opens a channel with the files of TLS as they are now. Calls under way go on: they refer to the old one,
        which ends with the last of them."""
        renewed = type(old)(self._settings, self.streams)
        renewal.note()
        self._grpc = renewed
        self._wires[self._wires.index(old)] = renewed


async def _lifetime(wires: list[Any], streams: weakref.WeakSet[Any]) -> AsyncGenerator[None, None]:
    """Closes a connection when the generator is closed. Has no reference to the Connection, which refers to it."""
    pid, loop = os.getpid(), asyncio.get_running_loop()
    try:
        yield
    finally:
        if pid == os.getpid():  # a forked child never closes the parent's connections
            for stream in list(streams):
                await stream.close()
            for wire in wires:
                await wire.close(CLOSE_S if loop is asyncio.get_running_loop() else None)


class StartedStream:
    """A streaming call that begins over frames, and over gRPC if the daemon speaks none."""

    def __init__(self, connection: Connection, stream: LocalStream, method: str, request: Message | None) -> None:
        self._connection, self._asked = connection, (method, request)
        self._stream: Any = stream
        self._has_begun = self._is_cancelled = False

    async def _begun(self) -> Any:
        if not self._has_begun:
            try:
                await self._stream.begin()
            except NoFrames as none:
                if not self._has_begun:  # another task may have seen it, too
                    self._connection.note_no_frames(none)
                    self._stream = self._connection.over_grpc().open(*self._asked)
                    if self._is_cancelled:
                        self._stream.cancel()
            self._has_begun = True
        return self._stream

    async def read(self) -> Any:
        """Returns the next message, or END. A wait may be cancelled and repeated: no message is lost."""
        return await (await self._begun()).read()

    async def write(self, message: Message) -> None:
        """Sends a message. The next `read` raises the error of a stream that broke."""
        with suppress(ServerUnavailable, DeadlineExceeded):
            await (await self._begun()).write(message)

    async def done_writing(self) -> None:
        """Sends no more messages."""
        with suppress(ServerUnavailable, DeadlineExceeded):
            await (await self._begun()).done_writing()

    def cancel(self) -> None:
        """Ends the call."""
        self._is_cancelled = True
        self._stream.cancel()
