"""A proxy in front of an S3 server that does to single requests what networks do.

It takes a request whole, then does the next fault that waits for its method: ``before`` the server sees the request, or
``after`` the server answered and the client has not heard of it.
"""

from __future__ import annotations

import http.client
import http.server
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

KINDS = ("reset", "503", "hang", "truncate", "flip", "slow")
SLOW_PIECES = 10
SLOW_PAUSE_S = 0.02
_OWN_HEADERS = {"connection", "transfer-encoding", "content-length", "date", "server"}


@dataclass
class Proxy:
    """Where it listens, the faults that wait per method, replies that never ask the server, and the requests seen."""

    url: str = ""
    faults: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    replies: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def plan(self, method: str, *faults: tuple[str, str]) -> None:
        """Lets the next requests of a method meet these faults: (kind, before or after)."""
        self.faults[method] = list(faults)

    def next_fault(self, method: str) -> tuple[str, str]:
        waiting = self.faults.get(method)
        return waiting.pop(0) if waiting else ("", "")


class _Handler(http.server.BaseHTTPRequestHandler):
    """One request, one connection."""

    proxy: Proxy
    upstream: str
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base class names it)
        """Says nothing."""

    def handle_one_request(self) -> None:
        with suppress(ConnectionError):  # the client gave up: that is what the tests are about
            super().handle_one_request()

    def do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.proxy.seen.append(self.command)
        self.close_connection = True
        if self.command in self.proxy.replies:
            self.answer(*self.proxy.replies[self.command])
            return
        kind, when = self.proxy.next_fault(self.command)
        if when == "before":
            if kind == "flip":
                body = flip(body)
            elif kind == "slow":
                self.proxy.stopped.wait(SLOW_PIECES * SLOW_PAUSE_S)
            else:
                self.spoil(kind, 503, {}, b"")
                return
        status, headers, data = self.forward(body)
        if when == "after":
            self.spoil(kind, status, headers, data)
        else:
            self.answer(status, headers, data)

    do_GET = do_PUT = do_DELETE = do_HEAD = do_POST = do  # noqa: N815  (the base class looks for these names)

    def forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.upstream, timeout=30)
        try:
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            headers = {name: value for name, value in answer.getheaders() if name.lower() not in _OWN_HEADERS}
            return answer.status, headers, answer.read()
        finally:
            connection.close()

    def spoil(self, kind: str, status: int, headers: dict[str, str], data: bytes) -> None:
        if kind == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        elif kind == "503":
            self.answer(503, {}, b"<Error><Code>SlowDown</Code></Error>")
        elif kind == "hang":
            self.proxy.stopped.wait(5)
        elif kind == "truncate":
            self.answer(status, headers, data, cut=True)
        elif kind == "flip":
            self.answer(status, headers, flip(data))
        elif kind == "slow":
            self.answer(status, headers, data, slow=True)

    def answer(self, status: int, headers: dict[str, str], data: bytes, cut: bool = False, slow: bool = False) -> None:
        lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers.items())]
        if status not in (204, 304):
            lines.append(f"Content-Length: {len(data)}")
        whole = "\r\n".join([*lines, "Connection: close", "", ""]).encode() + data
        if cut:
            whole = whole[: len(whole) - max(1, len(data) // 2)] if data else whole[: len(whole) // 2]
        size = -(-len(whole) // SLOW_PIECES) if slow else len(whole)
        for start in range(0, len(whole), size):
            self.connection.sendall(whole[start : start + size])
            if slow:
                self.proxy.stopped.wait(SLOW_PAUSE_S)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that was reset on purpose is no news."""


def flip(data: bytes) -> bytes:
    """One bit in the middle is another."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :] if data else data


@contextmanager
def running_proxy(upstream: str) -> Iterator[Proxy]:
    """Runs a proxy in front of this URL until the block is left."""
    proxy = Proxy()
    handler = type("Handler", (_Handler,), {"proxy": proxy, "upstream": urlsplit(upstream).netloc})
    with _Server(("127.0.0.1", 0), handler) as server:
        proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.stopped.set()
            server.shutdown()
            thread.join()
