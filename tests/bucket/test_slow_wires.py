"""The danger: a slow wire or a refused part, and a large object never arrives, however long the bucket tries."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.bucket.proxy import Proxy, running_proxy
from tests.bucket.weed import s3_environment

from stateward_sidecar.bucket import objectstore
from stateward_sidecar.bucket.errors import ObjectTooLarge
from stateward_sidecar.bucket.objectstore import ObjectStoreBucket

pytestmark = pytest.mark.slow
URL, KIB = "s3://stateward/slow", 1 << 10
PIECE_BYTES, PIECES_A_S = 64 * KIB, 64  # 4 MiB in a second
SIZE_BYTES = 16 << 20
TIMEOUT_S = 3.0  # less than the whole object takes, and enough for a part of it


class Narrow:
    """A wire that carries so many bytes in a second, all connections together."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._turn = threading.Lock()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accepts nothing more, and breaks what is open."""
        for each in (self._listener, *self._sockets):
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((self._upstream.hostname or "", self._upstream.port or 0))
                self._sockets += [client, server]
                for source, target in ((client, server), (server, client)):
                    # A small window: what waits inside of sockets has not passed yet.
                    source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE_BYTES)
                    threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                with self._turn:
                    time.sleep(len(piece) / PIECE_BYTES / PIECES_A_S)
                target.sendall(piece)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextmanager
def narrow(upstream: str) -> Iterator[str]:
    """The URL of a narrow wire to a server."""
    wire = Narrow(upstream)
    try:
        yield wire.url
    finally:
        wire.close()


@pytest.fixture
def single_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One part after the other, so that each takes a second. The server takes no smaller ones."""
    monkeypatch.setattr(objectstore, "PARTS_AT_ONCE", 1)
    monkeypatch.setattr(objectstore, "PART_PAUSE_MIN_S", 0.01)


@pytest.fixture
def direct(weed_url: str) -> ObjectStoreBucket:
    """What the server really has."""
    return ObjectStoreBucket(URL, s3_environment(weed_url))


def test_a_download_may_take_as_long_as_bytes_arrive(weed_url: str, direct: ObjectStoreBucket) -> None:
    """The time of a request is that between two pieces of its answer."""
    key, data = f"{secrets.token_hex(8)}.pack", secrets.token_bytes(SIZE_BYTES)
    direct.put(key, data)
    with narrow(weed_url) as url:
        bucket, began = ObjectStoreBucket(URL, s3_environment(url), TIMEOUT_S), time.monotonic()
        assert bucket.get(key, SIZE_BYTES).data == data
        assert time.monotonic() - began > TIMEOUT_S


@pytest.mark.parametrize("from_file", [False, True])
def test_an_upload_has_time_for_each_part(
    weed_url: str, direct: ObjectStoreBucket, single_parts: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    from_file: bool,
) -> None:  # fmt: skip
    """An object that takes longer than the time of a request arrives, because no part of it does."""
    monkeypatch.setattr(objectstore, "PART_TIMEOUT_S", TIMEOUT_S)
    key, data = f"{secrets.token_hex(8)}.pack", secrets.token_bytes(SIZE_BYTES)
    (tmp_path / "data").write_bytes(data)
    with narrow(weed_url) as url:
        bucket, began = ObjectStoreBucket(URL, s3_environment(url), TIMEOUT_S), time.monotonic()
        if from_file:
            bucket.put_file(key, tmp_path / "data")
        else:
            bucket.put(key, data)
        assert time.monotonic() - began > TIMEOUT_S
    assert direct.get(key, SIZE_BYTES).data == data


@pytest.fixture
def proxy(weed_url: str) -> Iterator[Proxy]:
    with running_proxy(weed_url) as running:
        yield running


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_a_refused_part_is_sent_again_alone(
    proxy: Proxy, direct: ObjectStoreBucket, single_parts: None, tmp_path: Path, method: str
) -> None:
    """503 for every third request, as a throttled bucket answers: each part arrives, and only it is repeated."""
    key, data = f"{secrets.token_hex(8)}.blob", secrets.token_bytes(SIZE_BYTES)
    (tmp_path / "data").write_bytes(data)
    proxy.plan(method, *[("", ""), ("503", "before"), ("503", "after")] * 20)
    bucket = ObjectStoreBucket(URL, s3_environment(proxy.url))
    bucket.put_file(key, tmp_path / "data")
    assert direct.get(key, SIZE_BYTES).data == data
    assert proxy.seen.count("PUT") < 4 * SIZE_BYTES / objectstore.PART_BYTES


def test_an_object_that_is_too_large_is_not_read(proxy: Proxy, direct: ObjectStoreBucket) -> None:
    """Its size is known before its bytes come."""
    key = f"{secrets.token_hex(8)}/HEAD"
    direct.put(key, secrets.token_bytes(1000))
    with pytest.raises(ObjectTooLarge, match="1000 bytes, more than 999"):
        ObjectStoreBucket(URL, s3_environment(proxy.url)).get(key, 999)
