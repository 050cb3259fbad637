"""The danger: a slow wire or a refused slice, and a large object never arrives, however long the bucket tries."""

from __future__ import annotations

import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.bucket.proxy import Proxy, running_proxy
from tests.bucket.weed import s3_environment
from tests.histories.weather import running_weather

from stateward_sidecar.archive.requests import metered as wiremodule
from stateward_sidecar.archive.requests.metered import Wire
from stateward_sidecar.archive.requests.places import slice_count, whole_of
from stateward_sidecar.bucket import objectstore
from stateward_sidecar.bucket.base import ObjectTooLarge
from stateward_sidecar.bucket.objectstore import ObjectStoreBucket
from stateward_sidecar.clock import Clock

pytestmark = pytest.mark.slow
URL, KIB = "s3://stateward/slow", 1 << 10
CUT_KEY = "large.blob"
PIECE_BYTES, PIECES_A_S = 64 * KIB, 64  # 4 MiB in a second
SIZE_BYTES = 17 << 20
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


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a large object is sent again."""
    monkeypatch.setattr(objectstore, "UPLOAD_PAUSE_MIN_S", 0.01)


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
def test_an_upload_has_time_for_each_slice(
    weed_url: str, direct: ObjectStoreBucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, from_file: bool
) -> None:
    """An object that takes longer than the time of a request arrives, because no slice of it does."""
    monkeypatch.setattr(objectstore, "UPLOAD_TIMEOUT_S", TIMEOUT_S)
    monkeypatch.setattr(wiremodule, "SLICES_AT_ONCE", 1)
    key, data = f"{secrets.token_hex(8)}.pack", secrets.token_bytes(SIZE_BYTES)
    (tmp_path / "data").write_bytes(data)
    with narrow(weed_url) as url:
        wire, began = Wire(ObjectStoreBucket(URL, s3_environment(url), TIMEOUT_S), Clock()), time.monotonic()
        if from_file:
            wire.put_file(key, tmp_path / "data")
        else:
            wire.put(key, data)
        assert time.monotonic() - began > TIMEOUT_S
        wire.close()
    assert Wire(direct, Clock()).read(key, SIZE_BYTES) == data


@pytest.fixture
def proxy(weed_url: str) -> Iterator[Proxy]:
    with running_proxy(weed_url) as running:
        yield running


def test_a_refused_slice_is_sent_again_alone(proxy: Proxy, direct: ObjectStoreBucket, tmp_path: Path) -> None:
    """503 for two requests of three, as a throttled bucket answers: each slice arrives, and only it is repeated."""
    key, data = f"{secrets.token_hex(8)}.blob", secrets.token_bytes(SIZE_BYTES)
    (tmp_path / "data").write_bytes(data)
    proxy.plan("PUT", *[("", ""), ("503", "before"), ("503", "after")] * 20)
    wire = Wire(ObjectStoreBucket(URL, s3_environment(proxy.url)), Clock())
    wire.put_file(key, tmp_path / "data")
    wire.close()
    assert Wire(direct, Clock()).read(key, SIZE_BYTES) == data
    assert proxy.seen.count("PUT") <= 3 * slice_count(SIZE_BYTES)


def test_a_process_that_dies_leaves_no_unfinished_upload(weed_url: str, tmp_path: Path) -> None:
    """No request begins an upload in parts, however large the object is: the provider's own list of such uploads is
    empty, and what is in the bucket is listed as objects."""
    place = f"s3://stateward/{secrets.token_hex(8)}"
    with running_weather(weed_url, random.Random(0)) as weather:
        weather.put_bytes_s = 20 << 20
        code = f"from {__name__} import put_large; put_large({place!r}, {weather.url!r}, {str(tmp_path)!r})"
        path = os.pathsep.join(filter(None, sys.path))
        child = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})
        while weather.requests < 3:
            time.sleep(0.01)
        child.kill()
        child.wait()
    with urllib.request.urlopen(f"{weed_url}/stateward?uploads", timeout=30) as answer:
        assert b"<UploadId>" not in answer.read()
    left = [name for name, _ in ObjectStoreBucket(place, s3_environment(weed_url)).list("")]
    assert left
    assert {whole_of(name) for name in left} == {CUT_KEY}


def put_large(place: str, url: str, directory: str) -> None:
    """Another process, which puts a large object."""
    file = Path(directory, "data")
    file.write_bytes(secrets.token_bytes(20 * SIZE_BYTES))
    Wire(ObjectStoreBucket(place, s3_environment(url)), Clock()).put_file(CUT_KEY, file)


def test_an_object_that_is_too_large_is_not_read(proxy: Proxy, direct: ObjectStoreBucket) -> None:
    """Its size is known before its bytes come."""
    key = f"{secrets.token_hex(8)}/HEAD"
    direct.put(key, secrets.token_bytes(1000))
    with pytest.raises(ObjectTooLarge, match="1000 bytes, more than 999"):
        ObjectStoreBucket(URL, s3_environment(proxy.url)).get(key, 999)
