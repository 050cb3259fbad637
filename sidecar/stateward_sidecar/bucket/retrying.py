"""Tries again, and finds out what became of a write whose answer was lost.

A conditional write that landed while its answer was lost comes back as a conflict when it is sent again. So after a
conflict the object is read and compared with the bytes that were to be written; bodies carry a write id, so equal bytes
are this very write:

    our bytes                      it landed: success, with the etag that was read
    missing (create), or           nothing happened (a store may answer 409 to writes that race): try again
      the etag given (replace)
    anything else                  ObjectExists, ObjectChanged

What cannot be told from outside: that our write landed and was replaced or deleted before it was looked for. The error
then has ``is_unclear``, and a body that names the writes before it tells the caller. A create that was deleted in
between is made again; names that are deleted must not be created again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from stateward_sidecar.bucket.base import Bucket, Object
from stateward_sidecar.bucket.errors import (
    BucketError,
    BucketUnavailable,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
)
from stateward_sidecar.clock import Clock

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a call goes on. It may take one request longer than ``deadline_s``."""

    deadline_s: float = 30.0
    pause_min_s: float = 0.1
    pause_max_s: float = 5.0


class RetryingBucket(Bucket):
    """A bucket that tries again while ``inner`` is unavailable, and reads back after conflicts.

    ``sleep`` may raise to end the waiting, for a stop; like ``dice`` it can be another one in tests.
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

    def get(self, key: str) -> Object:
        return self._run(lambda: self._inner.get(key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._run(lambda: self._inner.get_range(key, offset, length))

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
        """Tries again until the first object was given; a listing that breaks later raises."""
        rest: Iterator[tuple[str, int]] = iter(())

        def begin() -> tuple[str, int] | None:
            nonlocal rest
            rest = self._inner.list(prefix)
            return next(rest, None)

        first = self._run(begin)
        if first is not None:
            yield first
            yield from rest

    def close(self) -> None:
        self._inner.close()

    def _read_back(self, key: str, data: bytes, attempts: _Attempts) -> Object | None:
        """What is there after a conflict; None if nothing is.

        Bytes that are not ours are believed when they are read twice: a bit that flips on the way must not make
        another's write out of ours.
        """
        was_unclear, attempts.is_unclear = attempts.is_unclear, True  # for as long as nobody knows
        found = self._look(key)
        if was_unclear and found is not None and found.data != data:
            again = self._look(key)
            if again is None or again.data != found.data:
                raise BucketUnavailable(f"two reads of the object {key} differ", key=key, is_unclear=True)
        attempts.is_unclear = was_unclear
        return found

    def _look(self, key: str) -> Object | None:
        try:
            return self._inner.get(key)
        except ObjectNotFound:
            return None

    def _begin(self) -> _Attempts:
        return _Attempts(self._clock.monotonic() + self._patience.deadline_s, self._patience.pause_min_s)

    def _run(self, attempt: Callable[[], Result], attempts: _Attempts | None = None) -> Result:
        """Until it succeeds, fails for good, or the deadline is near. Errors say whether any attempt was unclear."""
        attempts = attempts or self._begin()
        while True:
            try:
                return attempt()
            except BucketError as error:
                attempts.is_unclear = error.is_unclear = attempts.is_unclear or error.is_unclear
                if not isinstance(error, BucketUnavailable) or not self._pause(attempts):
                    raise

    def _pause(self, attempts: _Attempts) -> bool:
        """Waits before the next attempt, unless the deadline would pass meanwhile. Decorrelated jitter."""
        patience = self._patience
        longest = max(patience.pause_min_s, attempts.pause_s * 3)
        attempts.pause_s = min(patience.pause_max_s, self._dice.uniform(patience.pause_min_s, longest))
        if self._clock.monotonic() + attempts.pause_s > attempts.end:
            return False
        self._sleep(attempts.pause_s)
        return True


@dataclass(slots=True)
class _Attempts:
    """What one call has been through."""

    end: float
    pause_s: float
    is_unclear: bool = False


class _NothingHappened(BucketUnavailable):
    """The store spoke of a conflict and there is none."""
