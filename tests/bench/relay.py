"""A socket between a client and its server: one counts the bytes on the wire, one makes the way longer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 1 << 18
Address = str | tuple[str, int]


@dataclass
class Counter:
    """Bytes in both directions."""

    sent_bytes: int = 0
    received_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.sent_bytes + self.received_bytes


@contextmanager
def count_bytes(listen: Path, server: Address) -> Iterator[Counter]:
    """Passes everything from a unix socket to the server and back, until the block ends."""
    counter = Counter()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(str(listen))
        door.listen()
        thread = threading.Thread(target=_accept, args=(door, server, counter), daemon=True)
        thread.start()
        try:
            yield counter
        finally:
            _shut(door)
            thread.join(timeout=1)  # not every system wakes an accept on shutdown


@contextmanager
def longer_way(server: tuple[str, int], delay_s: float) -> Iterator[tuple[str, int]]:
    """The address of a server that is further away: what begins a request gets there so much later."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=_accept, args=(door, server, Counter(), delay_s), daemon=True)
        thread.start()
        try:
            yield door.getsockname()[:2]
        finally:
            _shut(door)
            thread.join(timeout=1)


def _accept(door: socket.socket, server: Address, counter: Counter, delay_s: float = 0) -> None:
    """Opens a pair of sockets for each that connects, and closes all of them when the door is shut."""
    with ExitStack() as stack, suppress(OSError):
        while True:
            near = stack.enter_context(door.accept()[0])
            family = socket.AF_UNIX if isinstance(server, str) else socket.AF_INET
            far = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            far.connect(server)
            stack.callback(_shut, near)
            stack.callback(_shut, far)
            for source, sink, name, delay in ((near, far, "sent_bytes", delay_s), (far, near, "received_bytes", 0)):
                threading.Thread(target=_pass_on, args=(source, sink, counter, name, delay), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket, counter: Counter, name: str, delay_s: float) -> None:
    passed = 0.0
    with suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            if delay_s and time.monotonic() - passed > delay_s / 2:  # not once more for the rest of a request
                time.sleep(delay_s)
            passed = time.monotonic()
            setattr(counter, name, getattr(counter, name) + len(data))  # one connection at a time, one thread a way
            sink.sendall(data)
    _shut(sink)


def _shut(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
