"""A bucket in S3 or a store with its API, in Google Cloud Storage or in Azure, through obstore.

Only obstore's blocking calls are used, because its asynchronous calls can abort the interpreter at exit. Blocking calls
release the interpreter's lock. The store is made at the first call, because obstore hangs in a process that was forked
after it was used; calls in such a process are refused. obstore itself tries nothing again but new objects that
are large: a second attempt of a conditional write after a lost answer would meet the caller's own write as a conflict.
So the wrapper that reads back tries again. Nothing is sent in parts: a process that dies would leave them unfinished,
and obstore can neither list nor end such uploads.

Endpoints and credentials come from the environment (`access.py`, `azure.py`, `google.py`), web identity, and instance
metadata. Buckets of S3 are addressed by path unless AWS_VIRTUAL_HOSTED_STYLE_REQUEST says otherwise.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obstore.exceptions import BaseError
from obstore.store import from_url

from stateward_sidecar.bucket.access import Access, s3_access
from stateward_sidecar.bucket.answers import PANIC, said, translate
from stateward_sidecar.bucket.azure import azure_access
from stateward_sidecar.bucket.base import (
    REPLACED_BYTES_MAX,
    Bucket,
    BucketMisconfigured,
    BucketRefused,
    Object,
    check_key,
    check_prefix,
    check_range,
    check_size,
)
from stateward_sidecar.bucket.google import google_access

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode, PutResult
    from obstore.store import BackoffConfig, ClientConfig, ObjectStore, RetryConfig

CONNECT_TIMEOUT_S = 5.0
# From the first byte sent to the first byte received, for a request that sends little. Between two pieces of an answer:
# so a download may take as long as bytes arrive.
REQUEST_TIMEOUT_S = 30.0
# A new object above this size has more time, and is sent again by obstore: a second attempt meets no conflict.
SMALL_BYTES = 1 << 20
UPLOAD_TIMEOUT_S, UPLOAD_RETRIES = 300.0, 8
UPLOAD_PAUSE_MIN_S, UPLOAD_PAUSE_MAX_S = 0.25, 5.0
WHOLE_TIMEOUT_S = 3600.0  # of a request whose answer trickles
# https://cloud.google.com/storage/quotas: one write a second to the same object name.
GOOGLE_REWRITES_EVERY_S = 1.0
_PREFIXES = {"s3": "AWS_", "az": "AZURE_", "gs": "GOOGLE_"}
_UNREADABLE = re.compile(r'failed to parse "([^"]*)"')
_ACCESS = {"s3": s3_access, "az": azure_access, "gs": google_access}


class ObjectStoreBucket(Bucket):
    """The bucket at ``s3://name/prefix``, ``gs://…`` or ``az://…``."""

    def __init__(self, url: str, environment: Mapping[str, str], request_timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._url = url
        self._scheme = url.partition("://")[0]
        # Google compares generations, which obstore calls versions. The others compare etags.
        self._etag_field = "version" if self._scheme == "gs" else "e_tag"
        self.rewrites_every_s = GOOGLE_REWRITES_EVERY_S if self._scheme == "gs" else 0.0
        self._access = Access()
        self._environment = dict(environment)
        self._request_timeout_s = request_timeout_s
        self._store: ObjectStore | None = None
        self._uploads: ObjectStore | None = None
        self._process = 0
        self._opening = threading.Lock()

    def get(self, key: str, most_bytes: int = REPLACED_BYTES_MAX) -> Object:
        with self._call(key, "get") as store:
            answer = store.get(key)
            check_size(key, answer.meta["size"], most_bytes)
            data = bytes(answer.bytes())
            return Object(data, self._etag_of(answer.meta))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        check_range(offset, length)
        try:
            with self._call(key, "get_range") as store:
                return bytes(store.get_range(key, start=offset, length=length))
        except BucketRefused as error:
            if error.metadata.get("status") == "416":  # the object ends before the range begins
                return b""
            raise

    def put(self, key: str, data: bytes) -> None:
        check_key(key)
        with self._translated(key, "put"):
            self._opened(for_uploads=len(data) > SMALL_BYTES).put(key, data, use_multipart=False)

    def put_file(self, key: str, path: Path) -> None:
        self.put(key, path.read_bytes())

    def create(self, key: str, data: bytes) -> str:
        return self._put_if(key, data, "create", "create")

    def replace(self, key: str, data: bytes, etag: str) -> str:
        # Without the other field: obstore does not accept None for it.
        mode: Any = {self._etag_field: etag}
        return self._put_if(key, data, mode, "replace")

    def delete(self, key: str) -> None:
        with self._call(key, "delete") as store, suppress(FileNotFoundError):
            store.delete(key)

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        check_prefix(prefix)
        with self._translated(prefix, "list"):
            pages = iter(self._opened().list(prefix or None))
        while True:
            with self._translated(prefix, "list"):
                page = next(pages, None)
            if page is None:
                return
            for found in page:
                yield found["path"], found["size"]

    def written_at(self, key: str) -> float | None:
        with self._call(key, "get") as store:
            return store.head(key)["last_modified"].timestamp()

    def keeps_versions(self, key: str) -> bool:
        with self._call(key, "get") as store:
            # Each object at Google has a generation, so nobody can tell.
            return store.head(key)["version"] not in (None, "null")

    def close(self) -> None:
        """Closes the connections."""
        with self._opening:
            self._store = self._uploads = None

    def _put_if(self, key: str, data: bytes, mode: PutMode, method: str) -> str:
        with self._call(key, method) as store:
            return self._etag_of(store.put(key, data, mode=mode, use_multipart=False))

    def _etag_of(self, found: ObjectMeta | PutResult) -> str:
        etag = found["version"] if self._etag_field == "version" else found["e_tag"]
        if not etag:
            raise BucketRefused(f"{self._url} gives no ETags", is_unclear=True)
        return etag

    @contextmanager
    def _call(self, key: str, method: str) -> Iterator[ObjectStore]:
        check_key(key)
        with self._translated(key, method):
            yield self._opened()

    @contextmanager
    def _translated(self, key: str, method: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, NotImplementedError, OSError) as error:
            raise translate(error, key, self._url, method, self._access) from error
        except BaseException as error:
            if type(error).__name__ != PANIC:  # obstore's, which no module exports
                raise
            raise translate(error, key, self._url, method, self._access) from error

    def _opened(self, *, for_uploads: bool = False) -> ObjectStore:
        with self._opening:
            if self._store is None or self._uploads is None:
                self._process = os.getpid()
                self._store = self._open(
                    self._request_timeout_s,
                    {"max_retries": 0, "retry_timeout": timedelta(seconds=self._request_timeout_s)},
                )
                pauses: BackoffConfig = {
                    "init_backoff": timedelta(seconds=UPLOAD_PAUSE_MIN_S),
                    "max_backoff": timedelta(seconds=UPLOAD_PAUSE_MAX_S),
                }
                self._uploads = self._open(
                    UPLOAD_TIMEOUT_S,
                    {
                        "backoff": pauses, "max_retries": UPLOAD_RETRIES,
                        "retry_timeout": timedelta(seconds=UPLOAD_TIMEOUT_S * UPLOAD_RETRIES),
                    },
                )  # fmt: skip
            if self._process != os.getpid():
                raise BucketRefused("the bucket was used before this process was forked; open it after the fork")
            return self._uploads if for_uploads else self._store

    def _read_access(self) -> Access:
        """The settings are no answer of the store, whatever their reading raises."""
        try:
            return _ACCESS[self._scheme](self._environment)
        except OSError as error:
            raise BucketMisconfigured(f"{self._url}: its settings cannot be read: {error}") from error

    def _open(self, timeout_s: float, retries: RetryConfig) -> ObjectStore:
        client: ClientConfig = {
            "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
            "read_timeout": timedelta(seconds=timeout_s),
            "timeout": timedelta(seconds=WHOLE_TIMEOUT_S),
        }
        self._access = access = self._read_access()
        if access.allows_http:
            client["allow_http"] = True
        given: Any = {"config": access.config, "client_options": client, "retry_config": retries}
        if access.provider is not None:
            given["credential_provider"] = access.provider
        try:
            return from_url(self._url, **given)
        except BaseError as error:
            named = self._named_by(str(error))
            check = f"check {named}" if named else f"check the URL and {access.credentials}"
            raise BucketMisconfigured(f"cannot open {self._url}: {check}: {said(error)}") from error

    def _named_by(self, text: str) -> str:
        """Returns the variables whose value obstore could not read: it repeats the value, and not the name."""
        if (found := _UNREADABLE.search(text)) is None:
            return ""
        variables = {**os.environ, **self._environment}
        return " or ".join(
            name for name, value in variables.items() if value == found[1] and name.startswith(_PREFIXES[self._scheme])
        )
