"""A bucket in memory, for tests: it can fail before and after the effect of any call."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stateward_sidecar.bucket.base import (
    REPLACED_BYTES_MAX,
    Bucket,
    Object,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
    check_key,
    check_prefix,
    check_range,
    check_size,
)

# Gets the method's name and the key, and raises what the caller shall see.
Hook = Callable[[str, str], None]


def etag_of(data: bytes) -> str:
    """A hash of the content, as in S3: a counter would hide that etags may repeat."""
    return hashlib.sha256(data).hexdigest()[:32]


def _do_nothing(_method: str, _key: str) -> None:
    """No fault."""


class MemoryBucket(Bucket):
    """Objects in a dictionary. ``before`` runs before a call's effect, ``after`` between effect and answer."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.before: Hook = _do_nothing
        self.after: Hook = _do_nothing
        self._lock = threading.Lock()

    def get(self, key: str, most_bytes: int = REPLACED_BYTES_MAX) -> Object:
        with self._call("get", key):
            data = self._find(key)
            check_size(key, len(data), most_bytes)
            return Object(data, etag_of(data))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        check_range(offset, length)
        with self._call("get_range", key):
            return self._find(key)[offset : offset + length]

    def put(self, key: str, data: bytes) -> None:
        with self._call("put", key):
            self.objects[key] = bytes(data)

    def put_file(self, key: str, path: Path) -> None:
        self.put(key, path.read_bytes())

    def create(self, key: str, data: bytes) -> str:
        with self._call("create", key):
            if key in self.objects:
                raise ObjectExists(key)
            self.objects[key] = bytes(data)
            return etag_of(data)

    def replace(self, key: str, data: bytes, etag: str) -> str:
        with self._call("replace", key):
            if key not in self.objects or etag_of(self.objects[key]) != etag:
                raise ObjectChanged(key)
            self.objects[key] = bytes(data)
            return etag_of(data)

    def delete(self, key: str) -> None:
        with self._call("delete", key):
            self.objects.pop(key, None)

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        check_prefix(prefix)
        self.before("list", prefix)
        with self._lock:
            found = [(key, len(data)) for key, data in sorted(self.objects.items()) if key.startswith(prefix)]
        yield from found
        self.after("list", prefix)

    def close(self) -> None:
        """Keeps the objects, so that a test can open the bucket again."""

    def _find(self, key: str) -> bytes:
        if key not in self.objects:
            raise ObjectNotFound(key)
        return self.objects[key]

    @contextmanager
    def _call(self, method: str, key: str) -> Iterator[None]:
        check_key(key)
        self.before(method, key)
        with self._lock:
            yield
        self.after(method, key)
