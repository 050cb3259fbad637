"""Calls of a blocking client over gRPC. `aio.grpcwire` is the pair of this file."""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from typing import Any

import grpc
from google.protobuf.message import Message

from stateward._io.channel import Settings, upload_deadline_s
from stateward._io.forks import Calling
from stateward._io.stubs import bind_methods, explain, open_channel
from stateward._io.token import call_metadata
from stateward._operations.streams import END
from stateward.blobs import Content
from stateward.errors import ServerUnavailable
from stateward.v1.admin_service_pb2 import GetServerInfoRequest

WATCH_S = 1.0
"""The interval at which late answers are looked for."""


class Channel:
    """A channel of gRPC, and its end."""

    def __init__(self, settings: Settings) -> None:
        self.opened = open_channel(grpc, settings)
        self.is_brittle = False

    def close(self) -> None:
        """Ends the channel, unless the daemon died during an upload on it.

        gRPC 1.76 crashes the process about once in two hundred times when such a channel is closed.
        """
        if self.is_brittle:
            _brittle_channels.append(self.opened)
        else:
            self.opened.close()


class GrpcWire:
    """A channel. gRPC connects with the first call."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.channel = Channel(settings)
        self._methods = bind_methods(self.channel.opened)

    def call(self, method: str, request: Message, timeout_s: float) -> Any:
        """Makes one attempt of a unary call."""
        try:
            with Calling():
                return self._methods[method](request, timeout=timeout_s, metadata=call_metadata(self._settings))
        except grpc.RpcError as failure:
            raise explain(failure, self._settings) from None

    def upload(self, begin: Message, content: Content) -> Any:
        """Makes one attempt to upload a content. An error of the source of the bytes is raised unchanged."""
        failures: list[BaseException] = []
        is_open = threading.Event()

        def messages() -> Iterator[Message]:  # runs on a thread of gRPC
            yield content.begin(begin)
            is_open.wait()
            try:
                for piece in content.pieces():  # type: ignore[union-attr]
                    yield from content.parts(piece)
            except Exception as failure:  # noqa: BLE001  raised below
                failures.append(failure)
                call.cancel()

        write: Any = self._methods[content.method]
        timeout = upload_deadline_s(self._settings, content)
        metadata = call_metadata(self._settings)
        call = _begin(lambda: write.future(messages(), timeout=timeout, metadata=metadata))
        is_open.set()
        try:
            return call.result()
        except grpc.RpcError as failure:
            self.note(failure)
            if failures:
                raise failures[0] from None
            raise explain(failure, self._settings) from None
        except grpc.FutureCancelledError:
            raise failures[0] from None
        finally:
            call.cancel()

    def upload_parts(self, method: str) -> Upload:
        """Starts a call whose messages are sent one by one. Does not wait."""
        return Upload(self, self._methods[method], self._settings)

    def note(self, failure: grpc.RpcError) -> None:
        """Notes whether the daemon died in the middle of an upload."""
        self.channel.is_brittle |= failure.code() is grpc.StatusCode.UNAVAILABLE

    def pause(self, seconds: float, wait: Callable[[float], Any] = time.sleep) -> None:
        """Waits while gRPC goes on connecting.

        gRPC connects only while a call waits. With sleep alone, the backoff before its next attempt passes during calls
        that fail at once: a daemon that was back after 0.4 s was found after 5 s. (A connectivity watch would do, too,
        but its thread prints a traceback when the channel is closed.)
        """
        end = time.monotonic() + seconds
        with suppress(grpc.RpcError, ValueError):  # ValueError: another thread closed the channel
            metadata = call_metadata(self._settings)
            with Calling():
                self._methods["GetServerInfo"](
                    GetServerInfoRequest(), timeout=seconds, wait_for_ready=True, metadata=metadata
                )
        wait(max(end - time.monotonic(), 0))

    def open(self, method: str, request: Message | None) -> GrpcStream:
        """Starts a streaming call. Does not wait. `request`: None = the requests are written."""
        return GrpcStream(self, self._methods[method], request, self._settings)


class GrpcStream:
    """A streaming call. What is written goes through a queue to the thread on which gRPC reads it."""

    def __init__(self, wire: GrpcWire, method: Any, request: Message | None, settings: Settings) -> None:
        self._wire, self._settings, self._is_written = wire, settings, request is None
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        asked = iter(self._messages.get, None) if request is None else request
        self._is_late, self._late_at = False, 0.0
        metadata = call_metadata(settings)
        self._call = _begin(lambda: method(asked, metadata=metadata))
        if request is None:
            _watch(self)

    def read(self, seconds: float | None = None) -> Any:
        """Returns the next message, or END. `seconds`: of a stream that is written; None = no limit."""
        self._late_at = 0.0 if seconds is None else time.monotonic() + seconds
        try:
            return next(self._call, END)
        except grpc.RpcError as failure:
            if self._is_written:
                self._wire.note(failure)
            if self._is_late:
                raise ServerUnavailable("the daemon did not answer in time", code="DEADLINE_EXCEEDED") from None
            raise explain(failure, self._settings) from None
        finally:
            self._late_at = 0.0

    def write(self, message: Message) -> None:
        """Sends a message. The next `read` raises the error of a stream that broke."""
        self._messages.put(message)

    def done_writing(self) -> None:
        """Sends no more messages."""
        self._messages.put(None)

    def cancel(self) -> None:
        """Ends the call. Any thread may do so."""
        self._messages.put(None)
        self._call.cancel()

    def look(self, now: float) -> None:
        """Ends the stream if its answer is late."""
        if 0.0 < self._late_at < now:
            self._is_late = True
            self._call.cancel()


class Upload:
    """A call whose messages are sent one by one, as fast as the daemon takes them."""

    MESSAGES_MAX = 4
    LOOK_S = 0.1

    def __init__(self, wire: GrpcWire, method: Any, settings: Settings) -> None:
        self._wire, self._settings = wire, settings
        self._messages: queue.Queue[Message | None] = queue.Queue(self.MESSAGES_MAX)
        metadata = call_metadata(settings)
        self._call = _begin(lambda: method.future(iter(self._messages.get, None), metadata=metadata))

    def send(self, message: Message) -> None:
        """Sends a message. Raises the daemon's error if it has refused the call meanwhile."""
        while not self._call.done():
            with suppress(queue.Full):
                self._messages.put(message, timeout=self.LOOK_S)
                return
        self._result()

    def finish(self) -> Any:
        """Ends the stream and returns the answer."""
        self._put_end()
        return self._result()

    def cancel(self) -> None:
        """Cancels the call. Does nothing after the answer."""
        self._call.cancel()
        self._put_end()

    def _put_end(self) -> None:
        """Ends the messages, also for the thread of gRPC that waits for the next one."""
        while True:
            try:
                self._messages.put(None, timeout=self.LOOK_S)
            except queue.Full:
                if self._call.done():
                    self._messages.get_nowait()
            else:
                return

    def _result(self) -> Any:
        try:
            return self._call.result()
        except grpc.RpcError as failure:
            self._wire.note(failure)
            raise explain(failure, self._settings) from None


def _begin(call: Callable[[], Any]) -> Any:
    """Begins a streaming call. No signal can interrupt that: on the main thread another thread does it.

    gRPC registers a call, and then starts the thread that ends it. If the handler of a signal raised between the two,
    as for Ctrl-C, nobody would end the call, and closing the channel would wait for its end for ever.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()  # Python runs handlers of signals on the main thread only
    begun: Future[Any] = Future()

    def begin() -> None:
        try:
            begun.set_result(call())
        except BaseException as failure:  # noqa: BLE001  raised below
            begun.set_exception(failure)

    thread = threading.Thread(target=copy_context().run, args=(begin,), name="stateward-begin", daemon=True)
    try:
        thread.start()
        return begun.result()
    finally:
        if not begun.done():  # a handler raised
            begun.add_done_callback(_cancel)


def _cancel(begun: Future[Any]) -> None:
    """Cancels a call that nobody waits for any more."""
    if begun.exception() is None:
        begun.result().cancel()


_brittle_channels: list[Any] = []  # kept until the process ends


_written: weakref.WeakSet[GrpcStream] = weakref.WeakSet()
_watchers: list[threading.Thread] = []  # at most one thread


def _watch(stream: GrpcStream) -> None:
    """Has late reads ended. gRPC's blocking read has no time limit, so one thread looks at all of them."""
    _written.add(stream)
    if not _watchers:
        _watchers.append(threading.Thread(target=_look, name="stateward-writers", daemon=True))
        _watchers[0].start()


def _look() -> None:
    while True:
        time.sleep(WATCH_S)
        now = time.monotonic()
        for stream in list(_written):
            stream.look(now)


def _forget() -> None:
    _written.clear()
    _watchers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)  # they belong to the parent
