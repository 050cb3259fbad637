"""The HTTP listener of the metrics. It answers one scrape after another, on a thread of its own."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.registry import Collector

from stateward_sidecar.errors import StartError

# A client that connects and sends nothing holds the listener for so long.
TIMEOUT_S = 2.0
# How soon it notices that it is to end.
POLL_S = 0.1
PATHS = ("/", "/metrics")
_NOT_FOUND = b"metrics are at /metrics\n"
Answer = Iterable[bytes]


class _Server(WSGIServer):
    def server_bind(self) -> None:
        # Without WSGIServer's look-up of the host's name, which may wait for a name server.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = TIMEOUT_S

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
        self._server.set_app(_only_metrics(make_wsgi_app(registry)))
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), name="metrics", daemon=True)

    def start(self) -> None:
        """Answers scrapes."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread. Waits for a scrape under way, so call it before the store is closed."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _only_metrics(app: Callable[..., Answer]) -> Callable[..., Answer]:
    def answer(environment: dict[str, Any], start: Callable[..., object]) -> Answer:
        if environment["PATH_INFO"] not in PATHS:
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [_NOT_FOUND]
        if environment["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start("405 Method Not Allowed", [("Allow", "GET, HEAD")])
            return []
        return app(environment, start)

    return answer
