"""The part of Google's XML API that obstore speaks, in front of fake-gcs-server, which knows the JSON API only.

obstore writes with `PUT /bucket/object` and `x-goog-if-generation-match`; fake-gcs-server refuses that, so the front
turns it into an upload by JSON. fake-gcs-server alone judges the conditions. The front can also answer 429 to a write
of an object within a second of the last one, as Google does, and refuse deletes. It counts what it sees.
"""

from __future__ import annotations

import http.client
import http.server
import json
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape

WRITE_EVERY_S = 1.0  # https://cloud.google.com/storage/quotas: writes to the same object name
_KEPT = {"etag", "x-goog-generation", "content-range", "last-modified", "content-type", "accept-ranges"}


@dataclass
class Front:
    """Where it listens, what it is told to do, and what it has seen."""

    url: str = ""
    upstream: str = ""
    one_a_second: bool = False
    refuses_deletes: bool = False
    # Answers by method and status, such as ("PUT", 429); writes by object; uploads in parts; tokens of the callers.
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)
    uploads_in_parts: int = 0
    tokens: set[str] = field(default_factory=set)
    _taken_at: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def takes(self, name: str) -> bool:
        """Whether a write of this object may happen now. A refused write counts for nothing."""
        with self._lock:
            now = time.monotonic()
            if self.one_a_second and now - self._taken_at.get(name, -WRITE_EVERY_S) < WRITE_EVERY_S:
                return False
            self._taken_at[name] = now
            return True

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Asks fake-gcs-server; returns status, headers and body."""
        connection = http.client.HTTPConnection(self.upstream, timeout=30)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()  # type: ignore[return-value]  # a Message is a mapping
        finally:
            connection.close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    front: Front

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base class names it)
        """Says nothing."""

    def handle_one_request(self) -> None:
        with suppress(ConnectionError):
            super().handle_one_request()

    def do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        bucket, _, quoted = url.path.lstrip("/").partition("/")
        self.front.tokens.add(self.headers.get("Authorization", "").removeprefix("Bearer "))
        self.front.uploads_in_parts += "uploads" in query
        if self.command == "PUT":
            self._write(bucket, urllib.parse.unquote(quoted), body)
        elif self.command == "DELETE":
            self._delete(bucket, urllib.parse.unquote(quoted))
        elif self.command == "GET" and not quoted:
            self._list(bucket, query)
        elif self.command in ("GET", "HEAD"):
            self._read()
        else:
            self._answer(400, _error("NotImplemented"))

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do  # noqa: N815  (the base class looks for these names)

    def _write(self, bucket: str, name: str, body: bytes) -> None:
        if not self.front.takes(name):
            self._answer(429, _error("SlowDown"))
            return
        wanted = {"uploadType": "media", "name": name}
        if (generation := self.headers.get("x-goog-if-generation-match")) is not None:
            wanted["ifGenerationMatch"] = generation
        path = f"/upload/storage/v1/b/{bucket}/o?{urllib.parse.urlencode(wanted)}"
        status, _, data = self.front.ask("POST", path, body)
        if status != 200:
            code = {412: "PreconditionFailed", 404: "NoSuchBucket"}.get(status, "InternalError")
            self._answer(status, _error(code))
            return
        self.front.written[name] += 1
        found = json.loads(data)
        self._answer(200, b"", {"ETag": f'"{found["etag"]}"', "x-goog-generation": found["generation"]})

    def _delete(self, bucket: str, name: str) -> None:
        if self.front.refuses_deletes:
            self._answer(403, _error("AccessDenied"))
            return
        status, _, _ = self.front.ask("DELETE", f"/storage/v1/b/{bucket}/o/{urllib.parse.quote(name, safe='')}")
        if status == 200:
            self._answer(204, b"")
        else:
            self._answer(status, _error("NoSuchKey"))

    def _read(self) -> None:
        asked = {name: value for name, value in self.headers.items() if name.lower() == "range"}
        status, headers, data = self.front.ask(self.command, self.path, b"", asked)
        kept = {name: value for name, value in headers.items() if name.lower() in _KEPT}
        if self.command == "HEAD":
            kept["Content-Length"] = headers.get("Content-Length", "0")
        self._answer(status, _error("NoSuchKey") if status == 404 else data, kept)

    def _list(self, bucket: str, query: Mapping[str, str]) -> None:
        wanted = {"prefix": query.get("prefix", ""), "maxResults": query.get("max-keys", "50")}
        if token := query.get("continuation-token"):
            wanted["pageToken"] = token
        status, _, data = self.front.ask("GET", f"/storage/v1/b/{bucket}/o?{urllib.parse.urlencode(wanted)}")
        if status != 200:
            self._answer(status, _error("NoSuchBucket"))
            return
        found = json.loads(data)
        entries = "".join(map(_entry, found.get("items", [])))
        following = escape(found.get("nextPageToken", ""))
        more = f"<NextContinuationToken>{following}</NextContinuationToken>" if following else ""
        page = f"<Name>{bucket}</Name><IsTruncated>{str(bool(following)).lower()}</IsTruncated>{more}{entries}"
        self._answer(200, f"<ListBucketResult>{page}</ListBucketResult>".encode())

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.front.answers[self.command, status] += 1
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD" and status != 204:
            self.wfile.write(body)


def _entry(found: Mapping[str, str]) -> str:
    return (
        f"<Contents><Key>{escape(found['name'])}</Key><Generation>{found['generation']}</Generation>"
        f"<Size>{found['size']}</Size><LastModified>{found['updated']}</LastModified>"
        f'<ETag>"{escape(found["etag"])}"</ETag></Contents>'
    )


def _error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no news."""


@contextmanager
def running_front(upstream: str) -> Iterator[Front]:
    """Runs the front of the server at this host and port until the block is left."""
    front = Front(upstream=upstream)
    with _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"front": front})) as server:
        front.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield front
        finally:
            server.shutdown()
            thread.join()
