"""The blocking client's channel to the daemon. `aio.connection` is the pair of this file."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from google.protobuf.message import Message

from stateward._io.channel import Settings, bind_methods, explain, grpc, open_channel, upload_deadline_s
from stateward._io.forks import Calling
from stateward._io.token import call_metadata
from stateward.blobs import Content, slices
from stateward.v1.admin_service_pb2 import GetServerInfoRequest
from stateward.v1.blob_service_pb2 import BlobBegin, WriteBlobRequest


class Connection:
    """A channel of one process. gRPC connects with the first call."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.is_open = True
        self.streams: weakref.WeakSet[Any] = weakref.WeakSet()
        """The open streams. `close` ends them."""
        self._channel = open_channel(grpc, settings)
        self._methods = bind_methods(self._channel)
        self._is_brittle = False

    def call(self, method: str, request: Message, deadline_s: float | None) -> Any:
        """Makes one attempt of a unary call. A call without a deadline has the client's."""
        timeout = self._settings.call_timeout_s if deadline_s is None else deadline_s
        try:
            with Calling():
                return self._methods[method](request, timeout=timeout, metadata=call_metadata(self._settings.token))
        except grpc.RpcError as failure:
            raise explain(failure, self._settings) from None

    def upload(self, begin: BlobBegin, content: Content) -> Any:
        """Makes one attempt to write a blob. An error of the source of the bytes is raised unchanged."""
        failures: list[BaseException] = []
        is_open = threading.Event()

        def messages() -> Iterator[WriteBlobRequest]:  # runs on a thread of gRPC
            yield WriteBlobRequest(begin=begin)
            is_open.wait()
            try:
                for piece in content.pieces():  # type: ignore[union-attr]
                    yield from map(_data, slices(piece))
            except Exception as failure:  # noqa: BLE001  raised below
                failures.append(failure)
                call.cancel()

        write: Any = self._methods["WriteBlob"]
        timeout = upload_deadline_s(self._settings, content)
        metadata = call_metadata(self._settings.token)
        call = _begin(lambda: write.future(messages(), timeout=timeout, metadata=metadata))
        is_open.set()
        try:
            return call.result()
        except grpc.RpcError as failure:
            self._is_brittle |= failure.code() is grpc.StatusCode.UNAVAILABLE
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
        self._is_brittle |= failure.code() is grpc.StatusCode.UNAVAILABLE

    def pause(self, seconds: float, wait: Callable[[float], Any] = time.sleep) -> None:
        """Waits while gRPC goes on connecting.

        gRPC connects only while a call waits. With sleep alone, the backoff before its next attempt passes during calls
        that fail at once: a daemon that was back after 0.4 s was found after 5 s. (A connectivity watch would do, too,
        but its thread prints a traceback when the channel is closed.)
        """
        end = time.monotonic() + seconds
        with suppress(grpc.RpcError, ValueError):  # ValueError: another thread closed the channel
            metadata = call_metadata(self._settings.token)
            with Calling():
                self._methods["GetServerInfo"](
                    GetServerInfoRequest(), timeout=seconds, wait_for_ready=True, metadata=metadata
                )
        wait(max(end - time.monotonic(), 0))

    def open(self, method: str, request: Message) -> Any:
        """Starts a streaming call. Does not wait."""
        metadata = call_metadata(self._settings.token)
        return _begin(lambda: self._methods[method](request, metadata=metadata))

    def close(self) -> None:
        """Ends the streams and the connection, except for a channel on which the daemon died during an upload.

        gRPC 1.76 crashes the process about once in two hundred times when such a channel is closed.
        """
        self.is_open = False
        for stream in list(self.streams):
            stream.close()
        if self._is_brittle:
            _brittle_channels.append(self._channel)
        else:
            self._channel.close()


class Upload:
    """A call whose messages are sent one by one, as fast as the daemon takes them."""

    MESSAGES_MAX = 4
    LOOK_S = 0.1

    def __init__(self, connection: Connection, method: Any, settings: Settings) -> None:
        self._connection, self._settings = connection, settings
        self._messages: queue.Queue[Message | None] = queue.Queue(self.MESSAGES_MAX)
        metadata = call_metadata(settings.token)
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
            self._connection.note(failure)
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


def _data(piece: bytes) -> WriteBlobRequest:
    return WriteBlobRequest(data=piece)


_brittle_channels: list[Any] = []  # kept until the process ends
