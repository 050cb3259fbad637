"""The blocking client's connection to the daemon: over frames, else gRPC. `aio.connection` is the pair of this."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from stateward._io.blocking.local import LocalStream, LocalWire, Upload
from stateward._io.channel import Settings
from stateward._io.local import NoFrames, frames_path, when_to_look_again
from stateward._io.target import check_owner
from stateward._io.tls import Renewal
from stateward.blobs import Content
from stateward.errors import DeadlineExceeded, ServerUnavailable, WrongTarget

if TYPE_CHECKING:
    from stateward._io.blocking.grpcwire import Channel, GrpcStream, GrpcWire


class Connection:
    """The connection of one process: frames if the daemon speaks them, else gRPC."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.is_open = True
        self.streams: weakref.WeakSet[Any] = weakref.WeakSet()
        """The open streams. `close` ends them."""
        path = frames_path(settings)
        self._local = LocalWire(path, settings) if path else None
        # While this time has not come, the daemon is taken for one that speaks no frames.
        self._look_s = 0.0
        self._grpc: GrpcWire | None = None
        self._renewal = Renewal(settings.tls) if settings.tls is not None else None
        # Of older files: who uses each channel yet, and what ends it.
        self._older: list[tuple[weakref.ref[GrpcWire], Channel]] = []
        self._opening = threading.Lock()

    def call(self, method: str, request: Message, deadline_s: float | None) -> Any:
        """Makes one attempt of a unary call. A call without a deadline has the client's."""
        timeout_s = self._settings.call_timeout_s if deadline_s is None else deadline_s
        if (local := self._frames()) is not None:
            try:
                return local.call(method, request, timeout_s)
            except NoFrames:
                self.note_no_frames()
        return self.over_grpc().call(method, request, timeout_s)

    def upload(self, begin: Message, content: Content) -> Any:
        """Makes one attempt to upload a content. An error of the source of the bytes is raised unchanged."""
        if (local := self._frames()) is not None:
            try:
                return local.upload(begin, content)
            except NoFrames:
                self.note_no_frames()
        return self.over_grpc().upload(begin, content)

    def upload_parts(self, method: str) -> Any:
        """Starts a call whose messages are sent one by one."""
        if (local := self._frames()) is not None:
            try:
                stream = local.open(method, None)
                stream.begin()
                return Upload(stream)
            except NoFrames:
                self.note_no_frames()
        return self.over_grpc().upload_parts(method)

    def open(self, method: str, request: Message | None) -> StartedStream | GrpcStream:
        """Starts a streaming call. Does not wait. `request`: None = the requests are written."""
        if (local := self._frames()) is not None:
            return StartedStream(self, local.open(method, request), method, request)
        return self.over_grpc().open(method, request)

    def pause(self, seconds: float, wait: Callable[[float], Any] = time.sleep) -> None:
        """Waits. gRPC goes on connecting meanwhile, if it is in use."""
        if self._grpc is None:
            wait(seconds)
        else:
            self._grpc.pause(seconds, wait)

    def close(self) -> None:
        """Ends the streams and the connection."""
        self.is_open = False
        for stream in list(self.streams):
            stream.close()
        if self._local is not None:
            self._local.close()
        if self._grpc is not None:
            self._grpc.channel.close()
        for _, channel in self._older:
            channel.close()

    def _frames(self) -> LocalWire | None:
        """Returns the local wire, unless the daemon was seen a moment ago to have none."""
        if self._local is None or (self._look_s and monotonic() < self._look_s):
            return None
        return self._local

    def note_no_frames(self) -> None:
        """Notes that the daemon speaks no frames at present. Raises FeatureUnavailable if only they are allowed."""
        self._look_s = when_to_look_again(self._settings)

    def over_grpc(self) -> GrpcWire:
        """Returns gRPC's half, and loads gRPC if it is needed for the first time. Raises WrongTarget if somebody else's
        socket is at the target: gRPC connects by itself, so each call looks."""
        check_owner(self._settings.target)
        if self._grpc is None:
            from stateward._io.blocking.grpcwire import GrpcWire  # noqa: PLC0415  loads gRPC

            with self._opening:
                if self._grpc is None:
                    self._grpc = GrpcWire(self._settings)
        elif self._renewal is not None and self._renewal.is_due():
            with suppress(WrongTarget):  # a file is half written: the next look finds it whole
                self._renew(self._grpc, self._renewal)
        return self._grpc

    def _renew(self, old: GrpcWire, renewal: Renewal) -> None:
        """Opens a channel with the files of TLS as they are now. Calls under way go on, and refer to the old one, which
        is closed later."""
        with self._opening:
            if self._grpc is old:
                self._grpc = type(old)(self._settings)
                renewal.note()
                self._older.append((weakref.ref(old), old.channel))
            used = [each for each in self._older if each[0]() is not None]
            unused = [channel for wire, channel in self._older if wire() is None]
            self._older = used
        for channel in unused:
            channel.close()


class StartedStream:
    """A streaming call that begins over frames, and over gRPC if the daemon speaks none."""

    def __init__(self, connection: Connection, stream: LocalStream, method: str, request: Message | None) -> None:
        self._connection, self._asked = connection, (method, request)
        self._stream: Any = stream
        self._has_begun = self._is_cancelled = False

    def _begun(self) -> Any:
        if not self._has_begun:
            try:
                self._stream.begin()
            except NoFrames:
                self._connection.note_no_frames()
                self._stream = self._connection.over_grpc().open(*self._asked)
                if self._is_cancelled:
                    self._stream.cancel()
            self._has_begun = True
        return self._stream

    def read(self, seconds: float | None = None) -> Any:
        """Returns the next message, or END. `seconds`: how long it may take; None = as long as the call."""
        return self._begun().read(seconds)

    def write(self, message: Message) -> None:
        """Sends a message. The next `read` raises the error of a stream that broke."""
        with suppress(ServerUnavailable, DeadlineExceeded):
            self._begun().write(message)

    def done_writing(self) -> None:
        """Sends no more messages."""
        with suppress(ServerUnavailable, DeadlineExceeded):
            self._begun().done_writing()

    def cancel(self) -> None:
        """Ends the call. Any thread may do so."""
        self._is_cancelled = True
        self._stream.cancel()
