"""The wire between a client and the scripted daemon: it hands on bytes, and can be cut in the middle of a message.

gRPC cannot break its own connection, as a killed daemon does. So clients connect to the relay, which connects to the
daemon. A cut resets the connection: the client gets the first half of the message, and no status.
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

POLL_S = 0.05
CUT_MAX_S = 2.0
PIECE_BYTES = 1 << 16
NEEDLE_BYTES_MAX = 8192
"""A longer message is known by its beginning: the rest may be in another HTTP/2 frame."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closing sends a reset and drops what was not sent."""


class Relay:
    """Listens for clients, and connects each of them to a port of this machine."""

    def __init__(self, listen: str) -> None:
        """Raises OSError if the address is in use, or is none."""
        try:
            self._listener, self.target = _listen(listen)
        except (OSError, ValueError, OverflowError):
            raise OSError(f"{listen}: the address is in use, or is none") from None
        self._listener.settimeout(POLL_S)
        self._port = 0
        self._wires: dict[str, _Wire] = {}  # by the peer as which the daemon sees the connection
        self._ended = threading.Event()

    def start(self, port: int) -> Self:
        """Begins to accept clients, for a daemon at this port."""
        self._port = port
        threading.Thread(target=self._accept, name="conformance-relay", daemon=True).start()
        return self

    def stop(self) -> None:
        """Accepts no more clients, and closes every connection."""
        self._ended.set()
        for wire in list(self._wires.values()):
            wire.cut(b"")
        self._listener.close()

    def cut(self, peer: str, message: bytes) -> None:
        """Resets the connection of a peer in the middle of the next message with these bytes. b"" = at once."""
        if wire := self._wires.get(peer):
            wire.cut(message[:NEEDLE_BYTES_MAX])

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            with suppress(OSError):
                daemon = socket.create_connection(("127.0.0.1", self._port))
                name = f"ipv4:127.0.0.1:{daemon.getsockname()[1]}"
                wire = self._wires[name] = _Wire(client, daemon)
                threading.Thread(target=wire.run, name=f"conformance-{name}", daemon=True).start()


class _Wire:
    """One connection."""

    def __init__(self, client: socket.socket, daemon: socket.socket) -> None:
        self._client, self._daemon = client, daemon
        for each in (client, daemon):
            each.setblocking(True)
        self._needle: bytes | None = None
        self._ended = threading.Event()
        self._held = b""  # the end of what the daemon sent, in which the needle may begin

    def cut(self, needle: bytes) -> None:
        self._needle = needle
        if not needle:
            self._ended.wait(CUT_MAX_S)

    def run(self) -> None:
        """Hands on bytes until a side closes, or until the cut."""
        self._hand_on()
        self._ended.set()

    def _hand_on(self) -> None:
        with selectors.DefaultSelector() as ready, self._client, self._daemon, suppress(OSError):
            for each in (self._client, self._daemon):
                ready.register(each, selectors.EVENT_READ)
            while self._needle != b"":
                for key, _ in ready.select(POLL_S):
                    source: socket.socket = key.fileobj  # type: ignore[assignment]
                    data = source.recv(PIECE_BYTES)
                    if not data:
                        return
                    if source is self._client:
                        self._daemon.sendall(data)
                    elif self._answer(data):
                        break
            if self._client.family != socket.AF_UNIX:
                self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def _answer(self, data: bytes) -> bool:
        """Hands on what the daemon sent. Returns True after the cut."""
        data, needle = self._held + data, self._needle
        at = data.find(needle) if needle else -1
        if needle and at >= 0:
            self._client.sendall(data[: at + len(needle) // 2])
            self._needle = b""
            return True
        kept = min(len(needle) - 1, len(data)) if needle else 0
        self._held = data[len(data) - kept :]
        self._client.sendall(data[: len(data) - kept])
        return False


def _listen(address: str) -> tuple[socket.socket, str]:
    """Returns a listening socket, and its address for clients."""
    if address.startswith("unix:"):
        path = Path(address.removeprefix("unix:").removeprefix("//"))
        with suppress(FileNotFoundError):  # as gRPC does: a socket that was left behind is replaced
            if path.is_socket():
                path.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen()
        return listener, address
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host.strip("[]"), int(port)), family=family)
    return listener, f"{host}:{listener.getsockname()[1]}"
