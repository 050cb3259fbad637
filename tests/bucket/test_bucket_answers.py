"""The danger: a server's answer that is taken for another, so that the archive does the wrong thing about it."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from tests.bucket.azurite import azurite_environment
from tests.bucket.gcs import gcs_environment
from tests.bucket.weed import s3_environment

from stateward_sidecar.bucket import objectstore
from stateward_sidecar.bucket.base import (
    Bucket,
    BucketDenied,
    BucketError,
    BucketFull,
    BucketMisconfigured,
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
    headers: ClassVar[dict[str, str]] = {}

    @classmethod
    def fails(cls, status: int, code: str) -> None:
        """An error with its code. The number in the message is no status."""
        body = f"<Error><Code>{code}</Code><Message>status code: 999</Message></Error>"
        cls.status, cls.body, cls.headers = status, body.encode() if code else b"", {}

    @classmethod
    def batches(cls, said: str) -> None:
        """A Blob Batch that the server took, with one part."""
        part = f"Content-Type: application/http\r\nContent-ID: 0\r\n\r\nHTTP/1.1 {said}\r\nContent-Length: 0\r\n\r\n"
        cls.status, cls.body = 202, f"--b\r\n{part}\r\n--b--\r\n".encode()
        cls.headers = {"Content-Type": "multipart/mixed; boundary=b"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Says nothing."""

        def do(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(Answer.status)
            for name, value in {"Content-Length": str(len(Answer.body)), **Answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD" and Answer.status != 304:
                self.wfile.write(Answer.body)

        do_GET = do_PUT = do_DELETE = do_POST = do_HEAD = do  # noqa: N815

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
        (408, "InvalidRequest", BucketUnavailable, BucketUnavailable, BucketUnavailable, False),
        (421, "", BucketUnavailable, BucketUnavailable, BucketUnavailable, False),
        (425, "InvalidArgument", BucketUnavailable, BucketUnavailable, BucketUnavailable, False),
        (400, "RequestTimeout", BucketUnavailable, BucketUnavailable, BucketUnavailable, False),
        (403, "InvalidObjectState", ObjectCold, ObjectCold, ObjectCold, False),
        (409, "BlobArchived", ObjectCold, ObjectCold, ObjectCold, False),
        (403, "QuotaExceeded", BucketFull, BucketFull, BucketFull, False),
        (429, "TooManyRequests", BucketUnavailable, BucketUnavailable, BucketUnavailable, False),
        (500, "InternalError", BucketUnavailable, BucketUnavailable, BucketUnavailable, True),
        (400, "AuthorizationHeaderMalformed", BucketMisconfigured, BucketMisconfigured, BucketMisconfigured, False),
        (301, "PermanentRedirect", BucketMisconfigured, BucketMisconfigured, BucketMisconfigured, False),
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
    Answer.fails(status, code)
    bucket = ObjectStoreBucket("s3://stateward/x", s3_environment(url))
    for expected, call, unclear in (
        (create, lambda: bucket.create("k", b"x"), is_unclear),
        (replace, lambda: bucket.replace("k", b"x", '"e"'), is_unclear),
        (get, lambda: bucket.get("k"), False),
    ):
        with pytest.raises(expected) as caught:
            call()
        assert caught.value.is_unclear == unclear, caught.value


# What each call makes of an answer, in the order of CALLS: (A)way, a(w)ay and unclear, (D)enied, (R)efused, (F)ull,
# (C)old, (M)isconfigured, (N)ot found, (E)xists, c(H)anged, or - for no error.
MEANINGS: dict[str, type[BucketError] | None] = {
    "A": BucketUnavailable, "w": BucketUnavailable, "D": BucketDenied, "R": BucketRefused, "F": BucketFull,
    "C": ObjectCold, "M": BucketMisconfigured, "N": ObjectNotFound, "E": ObjectExists, "H": ObjectChanged, "-": None,
}  # fmt: skip
CALLS: dict[str, Callable[[Bucket], object]] = {
    "create": lambda bucket: bucket.create("k", b"x"), "replace": lambda bucket: bucket.replace("k", b"x", "1"),
    "put": lambda bucket: bucket.put("k", b"x"), "get": lambda bucket: bucket.get("k"),
    "get_range": lambda bucket: bucket.get_range("k", 5, 5), "delete": lambda bucket: bucket.delete("k"),
    "list": lambda bucket: list(bucket.list("")), "written_at": lambda bucket: bucket.written_at("k"),
}  # fmt: skip
AZURE = """
    409 BlobAlreadyExists               E A A A A D A A
    412 ConditionNotMet                 E H R R R D R R
    404 BlobNotFound                    R R R N N R R N
    404 ContainerNotFound               R R R R R R R N
    409 ContainerBeingDeleted           A A A A A A A A
    409 ContainerDisabled               D D D D D D D A
    409 AccountBeingCreated             A A A A A A A A
    409 BlobImmutableDueToPolicy        D D D D D D D A
    409 BlobBeingRehydrated             C C C C C C C A
    409 BlobArchived                    C C C C C C C A
    412 LeaseIdMissing                  D D D D D D D R
    403 AuthenticationFailed            D D D D D D D D
    403 AuthorizationPermissionMismatch D D D D D D D D
    403 AccountIsDisabled               D D D D D D D D
    401 NoAuthenticationInformation     D D D D D D D D
    403 InsufficientAccountPermissions  D D D D D D D D
    408 -                               A A A A A A A A
    421 -                               A A A A A A A A
    425 -                               A A A A A A A A
    429 TooManyRequests                 A A A A A A A A
    500 OperationTimedOut               w w w A A w A A
    503 ServerBusy                      w w w A A w A A
    413 RequestBodyTooLarge             R R R R R R R R
    416 InvalidRange                    R R R R - R R R
    400 InvalidHeaderValue              R R R R R R R R
    307 -                               M M M M M M M M
"""
GOOGLE = """
    412 PreconditionFailed              E H R R R D R R
    409 BucketNotEmpty                  E A A A A D A A
    409 Conflict                        E A A A A D A A
    404 NoSuchKey                       R R R N N - R N
    404 NoSuchBucket                    R R R R R - R N
    403 AccessDenied                    D D D D D D D D
    403 RetentionPolicyNotMet           D D D D D D D D
    403 ObjectUnderActiveHold           D D D D D D D D
    403 UserProjectAccountProblem       D D D D D D D D
    403 AccountProblem                  D D D D D D D D
    401 AuthenticationRequired          D D D D D D D D
    400 UserProjectMissing              D D D D D D D R
    400 ExpiredToken                    D D D D D D D R
    429 SlowDown                        A A A A A A A A
    429 TooManyRequests                 A A A A A A A A
    429 RateLimitExceeded               A A A A A A A A
    408 RequestTimeout                  A A A A A A A A
    408 -                               A A A A A A A A
    421 -                               A A A A A A A A
    425 -                               A A A A A A A A
    500 InternalError                   w w w A A w A A
    503 ServiceUnavailable              w w w A A w A A
    502 -                               w w w A A w A A
    504 -                               w w w A A w A A
    304 -                               w w w A A w A A
    503 SlowDown                        w w w A A w A A
"""


ROWS = [(cloud, row.strip()) for cloud, table in (("az", AZURE), ("gs", GOOGLE)) for row in table.strip().splitlines()]


@pytest.mark.parametrize(("cloud", "row"), ROWS)
def test_answers_of_azure_and_google(url: str, cloud: str, row: str) -> None:
    """Each call's error by status and code. A HEAD request (`written_at`) has no body, so no code."""
    status, code, *expected = row.split()
    Answer.fails(int(status), code.strip("-"))
    environment = azurite_environment(url) if cloud == "az" else gcs_environment(url)
    bucket = ObjectStoreBucket(f"{cloud}://stateward/x", environment)
    for (name, call), letter in zip(CALLS.items(), expected, strict=True):
        found: BucketError | None = None
        try:
            call(bucket)
        except BucketError as error:
            found = error
        meaning = MEANINGS[letter]
        assert type(found) is (meaning or type(None)), f"{name}: {found!r}"
        assert (found is not None and found.is_unclear) == (letter == "w"), f"{name}: {found!r}"


@pytest.mark.parametrize(
    ("said", "letter"),
    [
        ("202 Accepted", "-"),
        ("404 The specified blob does not exist.", "-"),
        ("404 The specified container does not exist.", "-"),
        ("403 This request is not authorized to perform this operation using this permission.", "D"),
        ("409 This operation is not permitted as the blob is immutable due to a policy.", "D"),
        ("412 There is currently a lease on the blob and no lease ID was specified in the request.", "D"),
        ("503 The server is busy.", "w"),
    ],
)
def test_parts_of_a_batch(url: str, said: str, letter: str) -> None:
    """Azure's batch is accepted, and its part says what became of the delete."""
    Answer.batches(said)
    bucket = ObjectStoreBucket("az://stateward/x", azurite_environment(url))
    if (meaning := MEANINGS[letter]) is None:
        bucket.delete("k")
        return
    with pytest.raises(meaning) as caught:
        bucket.delete("k")
    assert caught.value.is_unclear == (letter == "w")


def test_success_without_an_etag(url: str) -> None:
    """The write happened and nothing can follow it: unclear."""
    Answer.status, Answer.body, Answer.headers = 200, b"", {}
    with pytest.raises(BucketError) as caught:
        ObjectStoreBucket("s3://stateward/x", s3_environment(url)).create("k", b"x")
    assert caught.value.is_unclear


def test_use_after_a_fork(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked process would hang in its first call; it is told instead."""
    Answer.fails(404, "")
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
