"""Keeps two writes of one object apart, for a store that takes one write a second of each object name.

The pause counts from the end of a write, because the store may have taken it at any moment before. A write that the
store refused counts as well: whether Google counts those is unknown. The limit of another store is learnt from a 429
right after a write that landed, and forgotten after ten minutes without a 429. Deletes and writes of new objects
(``put``) are not held back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from stateward_sidecar.bucket.base import REPLACED_BYTES_MAX, Bucket, BucketUnavailable, Object
from stateward_sidecar.clock import Clock
from stateward_sidecar.telemetry import log

# What a store that answers 429 to the second write of an object is taken to allow.
LEARNT_EVERY_S = 1.0
FORGOTTEN_AFTER_S = 600.0
TOO_MANY_REQUESTS = "429"
# Writes that are remembered; above it, those whose pause is over are forgotten.
REMEMBERED = 4096


class PacedBucket(Bucket):
    """``inner``, which waits before it writes an object again. Tests replace ``sleep``."""

    def __init__(self, inner: Bucket, clock: Clock, sleep: Callable[[float], None] = time.sleep) -> None:
        self._inner = inner
        self._clock = clock
        self._sleep = sleep
        self._written: dict[str, float] = {}  # when the last write of an object ended, or began
        self._landed: dict[str, float] = {}  # when the last write that succeeded ended
        self._refused_at = float("-inf")  # when a write last met the limit
        self._lock = threading.Lock()
        self.rewrites_every_s = inner.rewrites_every_s

    def get(self, key: str, most_bytes: int = REPLACED_BYTES_MAX) -> Object:
        return self._inner.get(key, most_bytes)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._inner.get_range(key, offset, length)

    def put(self, key: str, data: bytes) -> None:
        self._inner.put(key, data)

    def put_file(self, key: str, path: Path) -> None:
        self._inner.put_file(key, path)

    def create(self, key: str, data: bytes) -> str:
        return self._paced(key, lambda: self._inner.create(key, data))

    def replace(self, key: str, data: bytes, etag: str) -> str:
        return self._paced(key, lambda: self._inner.replace(key, data, etag))

    def delete(self, key: str) -> None:
        self._inner.delete(key)

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        return self._inner.list(prefix)

    def written_at(self, key: str) -> float | None:
        return self._inner.written_at(key)

    def keeps_versions(self, key: str) -> bool:
        return self._inner.keeps_versions(key)

    def close(self) -> None:
        self._inner.close()

    def _paced(self, key: str, write: Callable[[], str]) -> str:
        self._take_turn(key)
        try:
            etag = write()
        except BucketUnavailable as error:
            if error.metadata.get("status") == TOO_MANY_REQUESTS:
                self._learn(key)
            raise
        else:
            with self._lock:
                self._landed[key] = self._clock.monotonic()
            return etag
        finally:
            with self._lock:
                self._written[key] = self._clock.monotonic()
                self._forget()

    def _take_turn(self, key: str) -> None:
        """Waits until the object may be written again."""
        while True:
            with self._lock:
                now, before = self._clock.monotonic(), self._written.get(key)
                if now - self._refused_at > FORGOTTEN_AFTER_S:
                    self.rewrites_every_s = self._inner.rewrites_every_s
                pause_s = 0.0 if before is None else before + self.rewrites_every_s - now
                if pause_s <= 0:
                    self._written[key] = now
                    return
            self._sleep(pause_s)

    def _learn(self, key: str) -> None:
        """Paces writes from now on if the one before landed within a second. Every 429 keeps the pace."""
        with self._lock:
            now = self._clock.monotonic()
            is_paced = self.rewrites_every_s >= LEARNT_EVERY_S
            if not is_paced and now - self._landed.get(key, float("-inf")) >= LEARNT_EVERY_S:
                return
            self._refused_at = now
            self.rewrites_every_s = max(self.rewrites_every_s, LEARNT_EVERY_S)
        if not is_paced:
            log.warning("the bucket refuses a second write of an object within a second; writes are paced")

    def _forget(self) -> None:
        if len(self._written) > REMEMBERED:
            old = self._clock.monotonic() - max(self.rewrites_every_s, LEARNT_EVERY_S)
            self._written = {key: at for key, at in self._written.items() if at > old}
            self._landed = {key: at for key, at in self._landed.items() if at > old}
