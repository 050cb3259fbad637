"""A client without a token that means harm: HTTP/2 by hand on a unix socket, in a process of its own.

    stranger.py resets SOCKET CALLS          begins calls, and cancels each one before it begins the next
    stranger.py watches SOCKET CONNECTIONS   watches the health, 600 times on each connection

It ends as soon as the daemon has taken or refused everything.
"""

from __future__ import annotations

import select
import socket
import struct
import sys

DATA, HEADERS, RST_STREAM, SETTINGS, PING = 0, 1, 3, 4, 6
END_STREAM = ACK = 1
END_HEADERS = 4
CANCEL = struct.pack(">I", 8)
EMPTY_MESSAGE = bytes(5)
WATCHES_EACH = 600  # the daemon grants each connection more open calls than this
RESETS_AT_ONCE = 50


class Connection:
    """A connection that counts the calls that the daemon has answered or refused."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._pending = b""
        self.is_open, self.is_pinged, self.answered = True, False, set[int]()
        self.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(SETTINGS))

    def send(self, data: bytes) -> None:
        """Sends, or notices that the daemon has hung up."""
        try:
            self._socket.sendall(data)
        except OSError:
            self.is_open = False

    def receive(self, *, wait: bool) -> None:
        """Takes what has come; with `wait`, waits for the next bytes."""
        if not wait and not select.select([self._socket], [], [], 0)[0]:
            return
        try:
            got = self._socket.recv(1 << 16)
        except OSError:
            got = b""
        self.is_open = self.is_open and bool(got)
        self._pending += got
        while len(self._pending) >= 9 and len(self._pending) >= 9 + (size := int.from_bytes(self._pending[:3])):
            kind, flags, stream = struct.unpack(">BBI", self._pending[3:9])
            payload, self._pending = self._pending[9 : 9 + size], self._pending[9 + size :]
            if kind in (HEADERS, RST_STREAM):
                self.answered.add(stream)
            elif kind == PING and flags & ACK:
                self.is_pinged = True
            elif kind in (SETTINGS, PING) and not flags & ACK:
                self.send(_frame(kind, ACK, payload=payload if kind == PING else b""))


def reset_calls(path: str, calls: int) -> None:
    """Never has more than one open call, so no limit of open calls holds it back."""
    block, batches = _headers("/stateward.v1.ThreadService/ListThreads"), []
    for first in range(1, 2 * calls, 2 * RESETS_AT_ONCE):
        streams = range(first, first + 2 * RESETS_AT_ONCE, 2)
        pairs = (_frame(HEADERS, END_HEADERS, block, each) + _frame(RST_STREAM, 0, CANCEL, each) for each in streams)
        batches.append(b"".join(pairs))
    connection = Connection(path)  # all is made before, so that the stranger is quicker than the daemon
    for batch in batches:
        connection.send(batch)
        connection.receive(wait=False)
        if not connection.is_open:
            return
    connection.send(_frame(PING, payload=b"have all"))
    while connection.is_open and not connection.is_pinged:
        connection.receive(wait=True)


def watch_health(path: str, connections: int) -> None:
    """Watches stay open, and probes have no token."""
    block, streams, held = _headers("/grpc.health.v1.Health/Watch"), range(1, 2 * WATCHES_EACH, 2), []
    for _ in range(connections):
        connection = Connection(path)
        held.append(connection)
        pairs = (
            _frame(HEADERS, END_HEADERS, block, each) + _frame(DATA, END_STREAM, EMPTY_MESSAGE, each)
            for each in streams
        )
        connection.send(b"".join(pairs))
        while connection.is_open and len(connection.answered) < len(streams):
            connection.receive(wait=True)


def _frame(kind: int, flags: int = 0, payload: bytes = b"", stream: int = 0) -> bytes:
    return len(payload).to_bytes(3) + struct.pack(">BBI", kind, flags, stream) + payload


def _headers(method: str) -> bytes:
    fields = {
        ":method": "POST", ":scheme": "http", ":path": method, ":authority": "localhost", "te": "trailers",
        "content-type": "application/grpc",
    }  # fmt: skip
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())


def _text(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


if __name__ == "__main__":
    {"resets": reset_calls, "watches": watch_health}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
