"""The metrics over HTTP: the listener, and its collector and census.

The HTTP listener of the metrics. It answers one scrape after another.

Each connection has a thread, which reads the request and writes the answer, so that a slow client holds up nobody. A
connection ends after ``CONNECTION_S``, whatever its client sends, and at once when the daemon stops.
"""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from math import inf
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.registry import Collector

from stateward_sidecar.errors import StartError
from stateward_sidecar.metrics.collector import DaemonCollector
from stateward_sidecar.metrics.sources import LatestCensus, Sources
from stateward_sidecar.store.clean.census import Census

# A client that sends nothing keeps its connection for IDLE_S, and any client for CONNECTION_S.
IDLE_S, CONNECTION_S = 2.0, 10.0
# The most connections at once. One more ends the oldest.
CONNECTIONS_MAX = 16
# How soon it notices that it is to end.
POLL_S = 0.1
PATHS = ("/", "/metrics")
_NOT_FOUND = b"metrics are at /metrics\n"
_FOREIGN = b"this address is for programs of this machine: ask it as 127.0.0.1 or localhost\n"
Answer = Iterable[bytes]


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads, block_on_close = True, False

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        # Each connection and when it ends; the oldest first.
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= CONNECTIONS_MAX:
                _end(next(iter(self._open)))
            self._open[request] = time.monotonic() + CONNECTION_S
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Ends connections whose time is over. Called every ``POLL_S``."""
        self.end_connections(time.monotonic())

    def end_connections(self, until_s: float) -> None:
        """Ends connections whose time is over then. Their threads notice, and close them."""
        with self._lock:
            for request, end_s in self._open.items():
                if end_s <= until_s:
                    _end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # the client has left
            super().handle_error(request, client_address)

    def server_bind(self) -> None:
        # Without WSGIServer's look-up of the host's name, which may wait for a name server.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = IDLE_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the name in the base class)
        """Nothing: scrapes are no events."""

    def address_string(self) -> str:
        return str(self.client_address[0])


class Listener:
    """Serves what a collector reads."""

    def __init__(self, host: str, port: int, collector: Collector) -> None:
        """Listens. Raises StartError."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        ProcessCollector(registry=registry)
        try:
            kind = _Server6 if ":" in host else _Server
            self._server = kind((host, port), _Handler)
        except OSError as error:
            raise StartError(f"--metrics {host}:{port}: cannot listen there: {error.strerror}") from None
        self._answering, self._is_closed = threading.Lock(), False
        app = _only_metrics(make_wsgi_app(registry), is_local=_is_local(host))
        self._server.set_app(self._one_by_one(app))
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), name="metrics", daemon=True)

    def start(self) -> None:
        """Answers scrapes."""
        self._thread.start()

    def close(self) -> None:
        """Ends the threads. Waits until nothing is collected, so call it before the store is closed."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        self._server.end_connections(inf)
        with self._answering:
            self._is_closed = True

    def _one_by_one(self, app: Callable[..., Answer]) -> Callable[..., Answer]:
        def answer(environment: dict[str, Any], start: Callable[..., object]) -> Answer:
            with self._answering:
                if self._is_closed:
                    start("503 Service Unavailable", [("Content-Type", "text/plain")])
                    return []
                return list(app(environment, start))

        return answer


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _is_local(host: str) -> bool:
    return host == "localhost" or _address(host).is_loopback


def _address(text: str) -> IPv4Address | IPv6Address:
    """Returns an IP address; 0.0.0.0 for a text that is none."""
    try:
        return ip_address(text)
    except ValueError:
        return IPv4Address(0)


def _is_own(host: str) -> bool:
    """Returns whether a request was sent to this machine's own name or address, as far as its Host header says.

    A page of the web can make a browser on this machine ask a name of its own that leads to 127.0.0.1, and read the
    answer (DNS rebinding). Its requests have that name.
    """
    name, _, port = host.rpartition(":")
    name = name if name and port.isdigit() else host
    return not host or _is_local(name.removeprefix("[").removesuffix("]"))


def _only_metrics(app: Callable[..., Answer], *, is_local: bool) -> Callable[..., Answer]:
    """Returns an app that answers reads of the metrics only. ``is_local``: of requests to this machine's own names."""

    def answer(environment: dict[str, Any], start: Callable[..., object]) -> Answer:
        if is_local and not _is_own(environment.get("HTTP_HOST", "").lower()):
            start("421 Misdirected Request", [("Content-Type", "text/plain")])
            return [_FOREIGN]
        if environment["PATH_INFO"] not in PATHS:
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [_NOT_FOUND]
        if environment["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start("405 Method Not Allowed", [("Allow", "GET, HEAD")])
            return []
        return app(environment, start)

    return answer


class Metrics:
    """The metrics of one daemon."""

    def __init__(self, address: tuple[str, int], sources: Sources) -> None:
        """Listens. Raises StartError."""
        host, port = address
        self._census = LatestCensus(Census(sources.store.context, sources.store.threads))
        self._listener = Listener(host, port, DaemonCollector(sources, self._census))
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self._listener.port}/metrics"

    def start(self) -> None:
        """Answers scrapes."""
        self._census.start()
        self._listener.start()

    def close(self) -> None:
        """Ends the threads. Call it before the store is closed: they read from it."""
        self._listener.close()
        self._census.close()
