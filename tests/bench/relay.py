"""A socket between a client and its server that counts what passes: the bytes on the wire, with all framing."""

from __future__ import annotations

import socket
import threading
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


def _accept(door: socket.socket, server: Address, counter: Counter) -> None:
    """Opens a pair of sockets for each that connects, and closes all of them when the door is shut."""
    with ExitStack() as stack, suppress(OSError):
        while True:
            near = stack.enter_context(door.accept()[0])
            family = socket.AF_UNIX if isinstance(server, str) else socket.AF_INET
            far = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            far.connect(server)
            stack.callback(_shut, near)
            stack.callback(_shut, far)
            for source, sink, name in ((near, far, "sent_bytes"), (far, near, "received_bytes")):
                threading.Thread(target=_pass_on, args=(source, sink, counter, name), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket, counter: Counter, name: str) -> None:
    with suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            setattr(counter, name, getattr(counter, name) + len(data))  # one connection at a time, one thread a way
            sink.sendall(data)
    _shut(sink)


def _shut(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
