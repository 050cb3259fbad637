"""A channel as gRPC's, over frames: what docs/protocol.md says of the local wire, without any code of the client.

Each call has a connection of its own, so the tests of calls need not know which wire they are on.
"""

from __future__ import annotations

import json
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Self

import grpc
from google.rpc.status_pb2 import Status

HEAD = struct.Struct("<IIBBHI")
HELLO, REQUEST, ANSWER, ERROR, CANCEL, MESSAGE, END = range(7)
METADATA, LAST = 1, 2
GREETING = {"versions": [1], "client": "tests"}
CODES = {code.value[0]: code for code in grpc.StatusCode}


class FramesGone(Exception):
    """The daemon closed the connection."""


class FramesRefused(Exception):
    """The daemon has no place for one more connection."""


class FramedConnection:
    """A connection that has greeted the daemon."""

    def __init__(self, path: str, timeout_s: float | None = 20.0, greeting: Any = GREETING) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout_s)
        try:
            self.socket.connect(path)
            with suppress(BrokenPipeError):  # it is refused already
                self.send(HELLO, body=json.dumps(greeting).encode())
            kind, _, body = self.receive()
            if kind != HELLO:
                raise FramesRefused(Status.FromString(body).message)
        except BaseException:
            self.socket.close()
            raise
        self.told = json.loads(body)
        self.numbers = {name: number for number, (name, _) in enumerate(self.told["methods"])}

    def send(
        self, kind: int, call: int = 0, body: bytes = b"", method: int = 0, flags: int = 0, timeout_ms: int = 0
    ) -> None:
        self.socket.sendall(HEAD.pack(len(body), call, kind, flags, method, timeout_ms) + body)

    def ask(self, name: str, body: bytes, call: int = 1, **fields: int) -> None:
        """Sends a request. ``name``: of the method, with package and service."""
        self.send(REQUEST, call, body, self.numbers[name], **fields)

    def receive(self) -> tuple[int, int, bytes]:
        """Kind, call and body of the next frame."""
        length, call, kind, *_ = HEAD.unpack(self._exactly(HEAD.size))
        return kind, call, self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise FramesGone
            data += more
        return bytes(data)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class FramedError(grpc.RpcError):
    """A call that failed, as gRPC's errors are read."""

    def __init__(self, code: grpc.StatusCode, details: str, body: bytes = b"") -> None:
        super().__init__(f"{code}: {details}")
        self._code, self._details, self._body = code, details, body

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return (("grpc-status-details-bin", self._body),) if self._body else ()


class FramedCall(FramedError):
    """A call under way: an iterator over its answers, and a future of its only one."""

    def __init__(self, method: _Method, requests: Any, timeout: float | None, metadata: Any, *, waits: bool) -> None:
        Exception.__init__(self)
        self._method, self._requests, self._waits = method, requests, waits
        self._metadata = metadata
        self._until = None if timeout is None else time.monotonic() + timeout
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._failed: FramedError | None = None
        self._ended = threading.Event()
        self._connection: FramedConnection | None = None
        self._is_cancelled = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    # What a caller asks for.

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        found = self._answers.get()
        if isinstance(found, Exception):
            self._answers.put(found)
            raise found
        return found

    def result(self, timeout: float | None = None) -> Any:
        if not self._ended.wait(timeout):
            raise grpc.FutureTimeoutError
        if self._is_cancelled:
            raise grpc.FutureCancelledError
        if self._failed is not None:
            raise self._failed
        answer = self._answers.get()
        self._answers.put(answer)  # for whoever asks again
        return answer

    def exception(self, timeout: float | None = None) -> Any:
        if not self._ended.wait(timeout):
            raise grpc.FutureTimeoutError
        if self._is_cancelled:
            raise grpc.FutureCancelledError
        return self._failed

    def done(self) -> bool:
        return self._ended.is_set()

    def is_active(self) -> bool:
        return not self._ended.is_set()

    def cancel(self) -> bool:
        if self._ended.is_set():
            return False
        self._is_cancelled = True
        self._end(FramedError(grpc.StatusCode.CANCELLED, "Locally cancelled by application!"))
        if self._connection is not None:
            with suppress(OSError):  # it has ended meanwhile
                self._connection.socket.shutdown(socket.SHUT_RDWR)
        return True

    def code(self) -> Any:
        self._ended.wait()
        return grpc.StatusCode.OK if self._failed is None else self._failed.code()

    def details(self) -> Any:
        self._ended.wait()
        return "" if self._failed is None else self._failed.details()

    def trailing_metadata(self) -> Any:
        self._ended.wait()
        return () if self._failed is None else self._failed.trailing_metadata()

    def __str__(self) -> str:
        return str(self._failed)

    # What happens.

    def _end(self, failed: FramedError | None) -> None:
        if not self._ended.is_set():
            self._failed = failed
            if failed is not None or self._method.gives_stream:
                self._answers.put(StopIteration() if failed is None else failed)
            self._ended.set()

    def _run(self) -> None:
        try:
            self._connection = self._connected()
            if self._is_cancelled:
                return
            self._ask(self._connection)
            while self._take(*self._connection.receive()):
                pass
        except TimeoutError:
            self._end(FramedError(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))
        except FramedError as failed:
            self._end(failed)
        except (OSError, FramesGone, FramesRefused) as error:
            self._end(FramedError(grpc.StatusCode.UNAVAILABLE, f"the connection broke: {error!r}"))
        finally:
            if self._connection is not None:
                self._connection.close()

    def _left_s(self) -> float | None:
        return None if self._until is None else max(self._until - time.monotonic(), 0.001)

    def _connected(self) -> FramedConnection:
        while True:
            try:
                return FramedConnection(self._method.path, self._left_s())
            except (ConnectionError, FileNotFoundError, FramesGone, FramesRefused) as error:
                waits = self._waits or isinstance(error, FramesRefused)
                if not waits or (self._until is not None and time.monotonic() > self._until):
                    raise
                time.sleep(0.02)

    def _ask(self, connection: FramedConnection) -> None:
        method, flags, body = self._method, 0, b""
        if method.name not in connection.numbers:
            raise FramedError(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        if not method.takes_stream:
            body, flags = method.serialize(self._requests), LAST if method.gives_stream else 0
        if self._metadata:
            lines = "\n".join(f"{key}:{value}" for key, value in self._metadata).encode()
            body, flags = struct.pack("<H", len(lines)) + lines + body, flags | METADATA
        left_s = self._left_s()
        connection.socket.settimeout(None if left_s is None else left_s + 1.0)
        timeout_ms = 0 if left_s is None else max(int(left_s * 1e3), 1)
        try:
            connection.ask(method.name, body, flags=flags, timeout_ms=timeout_ms)
        except ConnectionError:
            return  # the answer says why
        if method.takes_stream:
            threading.Thread(target=self._send_all, args=(connection,), daemon=True).start()

    def _send_all(self, connection: FramedConnection) -> None:
        try:
            for request in self._requests:
                connection.send(MESSAGE, 1, self._method.serialize(request))
            connection.send(END, 1)
        except OSError:
            pass  # the answer says why
        except Exception as error:  # noqa: BLE001  as gRPC does
            self._end(FramedError(grpc.StatusCode.UNKNOWN, f"Exception iterating requests! {error!r}"))

    def _take(self, kind: int, call: int, body: bytes) -> bool:
        if kind == ERROR:
            status = Status.FromString(body)
            self._end(FramedError(CODES[status.code], status.message, body if status.details else b""))
            return False
        if kind == MESSAGE or not self._method.gives_stream:
            self._answers.put(self._method.deserialize(body))
        if kind == ANSWER:
            self._end(None)
        return kind != ANSWER


class _Method:
    """What a stub has of a method."""

    def __init__(
        self, channel: FramedChannel, path: str, serialize: Any, deserialize: Any, *, takes: bool, gives: bool
    ) -> None:
        self.path, self.name = channel.path, path.strip("/").replace("/", ".")
        self.serialize: Callable[[Any], bytes] = serialize or bytes
        self.deserialize: Callable[[bytes], Any] = deserialize or bytes
        self.takes_stream, self.gives_stream = takes, gives

    def future(
        self, requests: Any, timeout: float | None = None, metadata: Any = None, wait_for_ready: bool | None = None,
        **_: Any,
    ) -> FramedCall:
        return FramedCall(self, requests, timeout, metadata, waits=bool(wait_for_ready))

    def __call__(self, requests: Any | Iterable[Any], timeout: float | None = None, **options: Any) -> Any:
        call = self.future(requests, timeout, **options)
        if self.gives_stream:
            return call
        return call.result()

    def with_call(self, requests: Any, timeout: float | None = None, **options: Any) -> tuple[Any, FramedCall]:
        call = self.future(requests, timeout, **options)
        return call.result(), call


class FramedChannel:
    """Of `unix:///path`; its frames go to the socket beside."""

    def __init__(self, target: str) -> None:
        self.path = target.removeprefix("unix:").removeprefix("//") + "~"
        self._grpc = grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)])  # for health

    def _make(self, *, takes: bool, gives: bool) -> Callable[..., Any]:
        def make(path: str, request_serializer: Any = None, response_deserializer: Any = None, **rest: Any) -> Any:
            if path.startswith("/grpc."):
                kind = f"{'stream' if takes else 'unary'}_{'stream' if gives else 'unary'}"
                return getattr(self._grpc, kind)(path, request_serializer, response_deserializer, **rest)
            return _Method(self, path, request_serializer, response_deserializer, takes=takes, gives=gives)

        return make

    def __getattr__(self, name: str) -> Any:
        takes, _, gives = name.partition("_")
        if {takes, gives} <= {"unary", "stream"}:
            return self._make(takes=takes == "stream", gives=gives == "stream")
        raise AttributeError(name)

    def close(self) -> None:
        self._grpc.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
