"""The danger: a server's answer that is taken for another, so that the archive does the wrong thing about it."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.bucket.weed import s3_environment

from stateward_sidecar.bucket import objectstore
from stateward_sidecar.bucket.base import (
    BucketDenied,
    BucketError,
    BucketFull,
    BucketRefused,
    BucketUnavailable,
    ObjectChanged,
    ObjectCold,
    ObjectExists,
    ObjectNotFound,
)
from stateward_sidecar.bucket.objectstore import ObjectStoreBucket


class Answer:
    """What the server says to everything."""

    status = 200
    body = b""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Says nothing."""

        def do(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(Answer.status)
            self.send_header("Content-Length", str(len(Answer.body)))
            self.end_headers()
            self.wfile.write(Answer.body)

        do_GET = do_PUT = do_DELETE = do  # noqa: N815

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "code", "create", "replace", "get", "is_unclear"),
    [
        (412, "PreconditionFailed", ObjectExists, ObjectChanged, BucketError, False),
        (409, "ConditionalRequestConflict", BucketUnavailable, BucketUnavailable, BucketUnavailable, False),
        (409, "BlobAlreadyExists", ObjectExists, BucketUnavailable, BucketUnavailable, False),
        (404, "NoSuchKey", BucketRefused, ObjectChanged, ObjectNotFound, False),
        (404, "NoSuchBucket", BucketRefused, BucketRefused, BucketRefused, False),
        (401, "Unauthorized", BucketDenied, BucketDenied, BucketDenied, False),
        (403, "AccessDenied", BucketDenied, BucketDenied, BucketDenied, False),
        (400, "ExpiredToken", BucketDenied, BucketDenied, BucketDenied, False),
        (400, "InvalidRequest", BucketRefused, BucketRefused, BucketRefused, False),
        (400, "RequestTimeout", BucketUnavailable, BucketUnavailable, BucketUnavailable, False),
        (403, "InvalidObjectState", ObjectCold, ObjectCold, ObjectCold, False),
        (409, "BlobArchived", ObjectCold, ObjectCold, ObjectCold, False),
        (403, "QuotaExceeded", BucketFull, BucketFull, BucketFull, False),
        (429, "TooManyRequests", BucketUnavailable, BucketUnavailable, BucketUnavailable, False),
        (500, "InternalError", BucketUnavailable, BucketUnavailable, BucketUnavailable, True),
        (501, "NotImplemented", BucketRefused, BucketRefused, BucketRefused, False),
        (503, "SlowDown", BucketUnavailable, BucketUnavailable, BucketUnavailable, True),
        (507, "XMinioStorageFull", BucketFull, BucketFull, BucketFull, False),
    ],
)
def test_answers(
    url: str,
    status: int,
    code: str,
    create: type[BucketError],
    replace: type[BucketError],
    get: type[BucketError],
    is_unclear: bool,
) -> None:
    """Status and code decide; a write after which the server failed is unclear, a read never is."""
    Answer.status, Answer.body = (
        status,
        f"<Error><Code>{code}</Code><Message>status code: 999</Message></Error>".encode(),
    )
    bucket = ObjectStoreBucket("s3://stateward/x", s3_environment(url))
    for expected, call, unclear in (
        (create, lambda: bucket.create("k", b"x"), is_unclear),
        (replace, lambda: bucket.replace("k", b"x", '"e"'), is_unclear),
        (get, lambda: bucket.get("k"), False),
    ):
        with pytest.raises(expected) as caught:
            call()
        assert caught.value.is_unclear == unclear, caught.value


def test_success_without_an_etag(url: str) -> None:
    """The write happened and nothing can follow it: unclear."""
    Answer.status, Answer.body = 200, b""
    with pytest.raises(BucketError) as caught:
        ObjectStoreBucket("s3://stateward/x", s3_environment(url)).create("k", b"x")
    assert caught.value.is_unclear


def test_use_after_a_fork(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked process would hang in its first call; it is told instead."""
    Answer.status, Answer.body = 404, b""
    bucket = ObjectStoreBucket("s3://stateward/x", s3_environment(url))
    with pytest.raises(ObjectNotFound):
        bucket.get("k")
    monkeypatch.setattr(objectstore.os, "getpid", lambda: -1)
    with pytest.raises(BucketRefused, match="fork"):
        bucket.get("k")


@pytest.mark.parametrize(("url", "field"), [("gs://b", "version"), ("az://c", "e_tag"), ("s3://b", "e_tag")])
def test_what_a_replace_compares(url: str, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Google's generation, the others' etag: it goes out as it came in, and no field is ever None."""
    modes: list[Any] = []

    class Store:
        def put(self, key: str, data: bytes, *, mode: Any, use_multipart: bool) -> dict[str, str | None]:
            modes.append(mode)
            return {"e_tag": '"etag"', "version": "1700"}

    bucket = ObjectStoreBucket(url, {})
    monkeypatch.setattr(bucket, "_open", lambda _timeout_s, _retries: Store())
    etag = bucket.create("k", b"x")
    assert bucket.replace("k", b"y", etag) == etag == ("1700" if field == "version" else '"etag"')
    assert modes == ["create", {field: etag}]
