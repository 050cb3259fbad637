"""The danger: a scraper that sends its request byte by byte holds up all others, and the end of the daemon."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from prometheus_client.registry import Collector

from stateward_sidecar.metrics import listener as listener_module
from stateward_sidecar.metrics.listener import CONNECTIONS_MAX, Listener

TIMEOUT_S = 20


class Nothing(Collector):
    """Metrics of nothing."""

    def collect(self) -> Iterator[object]:  # type: ignore[override]
        return iter(())


@contextmanager
def trickling(port: int) -> Iterator[socket.socket]:
    """A scraper whose request has no end: a byte comes before each time-out."""
    over = threading.Event()
    with socket.create_connection(("127.0.0.1", port)) as scraper:
        scraper.sendall(b"GET /metrics HTTP/1.1\r\nX: ")

        def send() -> None:
            with suppress(OSError):
                while not over.wait(0.2):
                    scraper.sendall(b"x")

        sender = threading.Thread(target=send)
        sender.start()
        try:
            yield scraper
        finally:
            over.set()
            sender.join()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener("127.0.0.1", 0, Nothing())
    made.start()
    yield made
    made.close()


def scrape(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S) as answer:
        return int(answer.status)


def test_others_are_answered_beside_a_slow_scraper(listener: Listener) -> None:
    """Each connection has a thread of its own."""
    with trickling(listener.port):
        assert scrape(listener.port) == 200
        assert scrape(listener.port) == 200


def test_a_slow_scraper_loses_its_connection(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection has an end, whatever comes on it."""
    monkeypatch.setattr(listener_module, "CONNECTION_S", 0.5)
    with trickling(listener.port) as scraper:
        scraper.settimeout(TIMEOUT_S)
        with suppress(ConnectionResetError):
            assert scraper.recv(1) == b""


def test_many_connections_keep_nobody_out(listener: Listener) -> None:
    """One more than the most ends the oldest."""
    connections = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(3 * CONNECTIONS_MAX)]
    assert scrape(listener.port) == 200
    connections[0].settimeout(TIMEOUT_S)
    with suppress(ConnectionResetError):
        assert connections[0].recv(1) == b""
    for connection in connections:
        connection.close()


def test_the_end_waits_for_no_scraper(listener: Listener) -> None:
    """Closing ends the connections, so that a slow scraper does not keep the daemon from draining."""
    with trickling(listener.port):
        closing = threading.Thread(target=listener.close, daemon=True)
        closing.start()
        closing.join(TIMEOUT_S)
        assert not closing.is_alive()
