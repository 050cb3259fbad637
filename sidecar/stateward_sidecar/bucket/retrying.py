"""Retries, and finds out what happened to a write whose answer was lost.

If a conditional write was applied and its answer was lost, the second attempt meets a conflict. So after a conflict
this wrapper reads the object and compares it with the bytes that were to be written. Bodies carry a write id, so equal
bytes are this very write:

    the caller's bytes             the write was applied: success, with the etag that was read
    missing (create), or           nothing happened (a store may answer 409 to concurrent writes): try again
      the etag given (replace)
    anything else                  ObjectExists, ObjectChanged

One case cannot be seen from outside: the write was applied, and then replaced or deleted before it was read back. The
error then has ``is_unclear``; a body that names the writes before it tells the caller. A create whose object was
deleted in between is made again, so a name that was deleted must not be created again.

While the store is away, only the first read waits for it: after a call that gave up, reads are tried once until
anything is answered. Otherwise a list of a thousand threads would wait a thousand times.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from stateward_sidecar.bucket.base import (
    REPLACED_BYTES_MAX,
    Bucket,
    BucketError,
    BucketMissing,
    BucketUnavailable,
    Object,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
)
from stateward_sidecar.clock import Clock

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a call tries. It may take longer than ``deadline_s`` by one request."""

    deadline_s: float = 30.0
    pause_min_s: float = 0.1
    pause_max_s: float = 5.0


class RetryingBucket(Bucket):
    """A bucket that retries while ``inner`` is unavailable, and reads back after conflicts.

    ``sleep`` may raise to end a wait when the daemon stops. Tests replace ``sleep`` and ``dice``.
    """

    def __init__(
        self,
        inner: Bucket,
        clock: Clock,
        patience: Patience | None = None,
        sleep: Callable[[float], None] = time.sleep,
        dice: random.Random | None = None,
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._patience = patience or Patience()
        self._sleep = sleep
        self._dice = dice or random.Random()  # noqa: S311  (spreads retries; no secret)
        self._is_away = False  # the last call that ended gave up

    @property
    def rewrites_every_s(self) -> float:  # type: ignore[override]  # nobody sets it
        """See ``Bucket``."""
        return self._inner.rewrites_every_s

    def get(self, key: str, most_bytes: int = REPLACED_BYTES_MAX) -> Object:
        return self._run(lambda: self._inner.get(key, most_bytes), self._begin(reads=True))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._run(lambda: self._inner.get_range(key, offset, length), self._begin(reads=True))

    def put(self, key: str, data: bytes) -> None:
        self._run(lambda: self._inner.put(key, data))

    def put_file(self, key: str, path: Path) -> None:
        self._run(lambda: self._inner.put_file(key, path))

    def create(self, key: str, data: bytes) -> str:
        attempts = self._begin()

        def attempt() -> str:
            try:
                return self._inner.create(key, data)
            except ObjectExists as conflict:
                found = self._read_back(key, data, attempts)
                if found is None:
                    raise _NothingHappened(str(conflict)) from conflict
                if found.data == data:
                    return found.etag
                raise

        return self._run(attempt, attempts)

    def replace(self, key: str, data: bytes, etag: str) -> str:
        attempts = self._begin()

        def attempt() -> str:
            try:
                return self._inner.replace(key, data, etag)
            except ObjectChanged as conflict:
                found = self._read_back(key, data, attempts)
                if found is not None and found.data == data:
                    return found.etag
                if found is not None and found.etag == etag:
                    raise _NothingHappened(str(conflict)) from conflict
                raise

        return self._run(attempt, attempts)

    def delete(self, key: str) -> None:
        self._run(lambda: self._inner.delete(key))

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Retries until the first object is there. A listing that breaks later raises."""
        rest: Iterator[tuple[str, int]] = iter(())

        def begin() -> tuple[str, int] | None:
            nonlocal rest
            rest = self._inner.list(prefix)
            return next(rest, None)

        first = self._run(begin, self._begin(reads=True))
        if first is not None:
            yield first
            yield from rest

    def written_at(self, key: str) -> float | None:
        return self._run(lambda: self._inner.written_at(key), self._begin(reads=True))

    def keeps_versions(self, key: str) -> bool:
        return self._run(lambda: self._inner.keeps_versions(key), self._begin(reads=True))

    def close(self) -> None:
        self._inner.close()

    def _read_back(self, key: str, data: bytes, attempts: _Attempts) -> Object | None:
        """Returns the object after a conflict; None if there is none.

        Other bytes than the caller's count only if two reads return them: a bit that flips during the transfer must not
        make the caller's write look like another one.
        """
        was_unclear, attempts.is_unclear = attempts.is_unclear, True  # until the reads below have told
        found = self._look(key, attempts)
        if was_unclear and found is not None and found.data != data:
            again = self._look(key, attempts)
            if again is None or again.data != found.data:
                raise BucketUnavailable(f"two reads of the object {key} differ", key=key, is_unclear=True)
        attempts.is_unclear = was_unclear
        return found

    def _look(self, key: str, attempts: _Attempts) -> Object | None:
        """Reads the object, and tries again by itself: a refused read must not repeat the write before it."""
        try:
            return self._run(lambda: self._inner.get(key), attempts)
        except ObjectNotFound:
            return None

    def _begin(self, *, reads: bool = False) -> _Attempts:
        deadline_s = 0.0 if reads and self._is_away else self._patience.deadline_s
        return _Attempts(self._clock.monotonic() + deadline_s, self._patience.pause_min_s)

    def _run(self, attempt: Callable[[], Result], attempts: _Attempts | None = None) -> Result:
        """Tries until it succeeds, fails for good, or the deadline is near. The error says whether any attempt was
        unclear."""
        attempts = attempts or self._begin()
        while True:
            try:
                answer = attempt()
            except BucketError as error:
                attempts.is_unclear = error.is_unclear = attempts.is_unclear or error.is_unclear
                is_tried = isinstance(error, BucketUnavailable) and not isinstance(error, BucketMissing)
                if not is_tried or not self._pause(attempts):
                    self._is_away = type(error) is BucketUnavailable
                    raise
            else:
                self._is_away = False
                return answer

    def _pause(self, attempts: _Attempts) -> bool:
        """Waits before the next attempt, with decorrelated jitter. Returns False if the deadline would pass
        meanwhile."""
        patience = self._patience
        longest = max(patience.pause_min_s, attempts.pause_s * 3)
        attempts.pause_s = min(patience.pause_max_s, self._dice.uniform(patience.pause_min_s, longest))
        if self._clock.monotonic() + attempts.pause_s > attempts.end:
            return False
        self._sleep(attempts.pause_s)
        return True


@dataclass(slots=True)
class _Attempts:
    """The attempts of one call so far."""

    end: float
    pause_s: float
    is_unclear: bool = False


class _NothingHappened(BucketUnavailable):
    """The store answered with a conflict, and there is none."""
