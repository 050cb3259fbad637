"""A client without a token that means harm: HTTP/2 by hand on a unix socket, in a process of its own.

    stranger.py resets SOCKET CALLS          begins calls, and cancels each one before it begins the next
    stranger.py watches SOCKET CONNECTIONS   watches the health, 600 times on each connection
    stranger.py bodies SOCKET CONNECTIONS    sends a message of 60 MB on each connection
    stranger.py frames SOCKET CONNECTIONS    the same in frames, on the socket of the local wire

It ends as soon as the daemon has taken or refused everything.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import time

DATA, HEADERS, RST_STREAM, SETTINGS, PING = 0, 1, 3, 4, 6
END_STREAM = ACK = 1
END_HEADERS = 4
CANCEL = struct.pack(">I", 8)
EMPTY_MESSAGE = bytes(5)
WATCHES_EACH = 600  # the daemon grants each connection more open calls than this
RESETS_AT_ONCE = 50
LARGE_BYTES = 60 << 20


class Connection:
    """A connection that counts the calls that the daemon has answered or refused."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._pending = b""
        self.is_open, self.is_pinged, self.answered = True, False, set[int]()
        self.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(SETTINGS))

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()

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


def send_bodies(path: str, connections: int) -> None:
    """Each message is as large as one may be. The daemon need not read it to know that it has no token."""
    import grpc

    body, save = bytes(LARGE_BYTES), "/stateward.v1.CheckpointService/Save"
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    channels = [grpc.insecure_channel(f"unix:{path}", options) for _ in range(connections)]
    for call in [channel.unary_unary(save).future(body, timeout=60) for channel in channels]:
        if call.code() not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.DEADLINE_EXCEEDED):
            raise RuntimeError(f"a call without a token ended with {call.code()}")


def send_frames(path: str, connections: int) -> None:
    """Begins all messages at once, and sends on where the daemon reads."""
    head = struct.Struct("<IIBBHI")
    hello = json.dumps({"versions": [1], "client": "stranger"}).encode()
    left = dict[socket.socket, int]()
    for _ in range(connections):
        made = socket.socket(socket.AF_UNIX)
        made.connect(path + "~")
        made.sendall(head.pack(len(hello), 0, 0, 0, 0, 0) + hello)
        length, *_ = head.unpack(made.recv(head.size, socket.MSG_WAITALL))
        names = [name for name, _ in json.loads(made.recv(length, socket.MSG_WAITALL))["methods"]]
        made.sendall(head.pack(LARGE_BYTES, 1, 1, 0, names.index("stateward.v1.CheckpointService.Save"), 0))
        made.setblocking(False)
        left[made] = LARGE_BYTES
    part, end = bytes(1 << 18), time.monotonic() + 60
    while left and time.monotonic() < end:
        for each in select.select([], list(left), [], 1)[1]:
            try:
                left[each] -= each.send(part[: left[each]])
            except OSError:  # refused
                left[each] = 0
            if not left[each]:
                del left[each]


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
    attacks = {"resets": reset_calls, "watches": watch_health, "bodies": send_bodies, "frames": send_frames}
    attacks[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
