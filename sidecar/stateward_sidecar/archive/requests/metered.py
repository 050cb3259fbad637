"""The archive's access to the bucket: counts requests, notes when the bucket is away, and translates its errors."""

from __future__ import annotations

import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from stateward_sidecar.archive.requests.places import FORMAT_KEY, SLICE_BYTES, slice_count, slice_name, slice_names
from stateward_sidecar.bucket.base import (
    REPLACED_BYTES_MAX,
    Bucket,
    BucketDenied,
    BucketError,
    BucketFull,
    BucketRefused,
    Object,
    ObjectChanged,
    ObjectCold,
    ObjectExists,
    ObjectNotFound,
    ObjectTooLarge,
)
from stateward_sidecar.bucket.probe import PREFIX
from stateward_sidecar.clock import Clock
from stateward_sidecar.errors import ArchiveUnavailable, Corrupt, StatewardError
from stateward_sidecar.measures import BucketMeasures
from stateward_sidecar.spans import carried, span
from stateward_sidecar.telemetry import guarded, log

T = TypeVar("T")
# Requests that one operation makes at the same time.
PARALLEL = 16
# Objects that one ship uploads at the same time, and the ships that may do so.
UPLOADS_AT_ONCE, SHIPS_AT_ONCE = 4, 80
# Slices of one object that are put at the same time.
SLICES_AT_ONCE = 2
# Keys that one list request returns at most.
PAGE_KEYS = 1000


@dataclass(slots=True)
class Traffic:
    """Counts since the start of the process."""

    requests: int = 0
    heads: int = 0
    head_bytes: int = 0
    objects: int = 0
    object_bytes: int = 0
    entry_bytes: int = 0


class Job:
    """A call in the background that somebody may wait for."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._future: Future[object] = Future()

    @property
    def is_running(self) -> bool:
        """Whether it has begun and not ended."""
        return self._future.running()

    def run(self) -> None:
        """Runs the call, unless somebody who waits for it has begun it."""
        if not self._future.set_running_or_notify_cancel():
            return
        try:
            self._future.set_result(self._call())
        except BaseException as error:
            self._future.set_exception(error)
            raise

    def join(self) -> None:
        """Waits for the call, or makes it here if it has not begun. Raises its error."""
        if self._future.cancel():
            self._call()
        else:
            self._future.result()


class Unclear(ArchiveUnavailable):
    """The outcome of a conditional write is unknown. The caller must read HEAD to learn it."""


class Wire:
    """Makes requests. Passes ObjectNotFound, ObjectExists and ObjectChanged on; other errors become
    ArchiveUnavailable."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._bucket = bucket
        self._clock = clock
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="bucket")
        # Enough for all ships at the same time, so that no upload waits for hanging ones of other threads.
        self._uploads = ThreadPoolExecutor(SHIPS_AT_ONCE * UPLOADS_AT_ONCE, thread_name_prefix="upload")
        self.traffic = Traffic()
        # Set if metrics are on.
        self.measures: BucketMeasures | None = None
        self._error = ""
        # Why the bucket last refused a write (full, denied). Only a write that succeeds clears it, no read does;
        # `ask_again` tries one.
        self._refusal = ""
        self._is_denied = False
        self._away_since: float | None = None
        self.failed_at = float("-inf")  # when a request last failed, in seconds on the boot-time clock
        self._is_asking = False

    def now(self) -> float:
        """Returns the boot-time clock in seconds: it continues while the machine sleeps."""
        return self._clock.boottime()

    @property
    def rewrites_every_s(self) -> float:
        """How far apart two writes of one HEAD must be; 0 = at any rate."""
        return self._bucket.rewrites_every_s

    @property
    def away_s(self) -> float:
        """Seconds since the bucket's first failure after its last answer; 0 if the last request was answered."""
        since = self._away_since
        return max(self._clock.boottime() - since, 1e-9) if since is not None else 0.0

    @property
    def refuses(self) -> bool:
        """Whether the bucket denies or refuses requests, so that trying again does not help."""
        return bool(self._refusal) or self._is_denied

    @property
    def error(self) -> str:
        """Why requests fail at present; empty if they do not."""
        return self._refusal or self._error

    def keeps_versions(self, key: str) -> bool:
        """Returns whether the bucket may keep old versions of objects, by what it tells about one. Raises
        ObjectNotFound."""
        return self._call("get", lambda: self._bucket.keeps_versions(key))

    def get(self, key: str, most_bytes: int = REPLACED_BYTES_MAX) -> Object:
        """Returns an object. Raises ObjectNotFound, and Corrupt if it has more bytes: then nothing of it was read."""
        return self._call("get", lambda: self._bucket.get(key, most_bytes))

    def read(self, key: str, size_bytes: int) -> bytes:
        """Returns an object of a known size, or one byte more if it is larger. A connection that breaks costs one
        slice. Raises ObjectNotFound, Corrupt."""
        if size_bytes <= SLICE_BYTES:
            return self.get(key, size_bytes).data
        whole, is_over = bytearray(), False
        while len(whole) <= size_bytes and not is_over:
            length = min(SLICE_BYTES, size_bytes + 1 - len(whole))
            part = self.get_range(key, len(whole), length)
            whole += part
            is_over = len(part) < length
        return bytes(whole)

    def find(self, key: str) -> Object | None:
        """Returns an object, or None if there is none."""
        try:
            return self.get(key)
        except ObjectNotFound:
            return None

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Returns a part of an object, or what there is of it if the object ends before. Raises ObjectNotFound."""
        found = bytearray()
        while length > 0:
            before, at = divmod(offset, SLICE_BYTES)
            wanted = min(length, SLICE_BYTES - at)
            try:
                part = self._get_range(slice_name(key, before + 1), at, wanted)
            except ObjectNotFound:
                if not before:
                    raise
                break  # it ends with the slice before
            found += part
            if len(part) < wanted:
                break
            offset, length = offset + wanted, length - wanted
        return bytes(found)

    def _get_range(self, name: str, offset: int, length: int) -> bytes:
        return self._call("get", lambda: self._bucket.get_range(name, offset, length))

    def has(self, key: str, size_bytes: int) -> bool:
        """Returns whether there is a whole object of this size: all its slices. Raises Corrupt if it cannot be read."""
        *before, last = slice_names(key, size_bytes)
        last_bytes = size_bytes - len(before) * SLICE_BYTES
        asked = [partial(self._ends_at, name, SLICE_BYTES) for name in before]
        asked.append(partial(self._ends_at, last, last_bytes))
        for at in range(0, len(asked), PARALLEL):
            if not all(self.together(*asked[at : at + PARALLEL])):
                return False
        return last_bytes < SLICE_BYTES or not self._is_there(slice_name(key, len(asked) + 1))

    def _ends_at(self, name: str, size_bytes: int) -> bool:
        try:  # the last byte and one more: the answer has one byte if the size is right
            return len(self._get_range(name, size_bytes - 1, 2)) == 1
        except ObjectNotFound:
            return False

    def _is_there(self, name: str) -> bool:
        try:
            self._get_range(name, 0, 1)
        except ObjectNotFound:
            return False
        return True

    def put(self, key: str, data: bytes) -> None:
        """Writes an immutable object, the first slice last."""
        size_bytes = len(data)
        if size_bytes <= SLICE_BYTES:
            self._put(key, size_bytes, lambda name: self._bucket.put(name, data))
        else:
            self._put_slices(key, size_bytes, lambda offset: data[offset : offset + SLICE_BYTES])

    def put_file(self, key: str, path: Path) -> None:
        """Writes an immutable object with the bytes of a file."""
        size_bytes = path.stat().st_size
        if size_bytes <= SLICE_BYTES:
            self._put(key, size_bytes, lambda name: self._bucket.put_file(name, path))
            return
        with path.open("rb") as file:
            self._put_slices(key, size_bytes, lambda offset: os.pread(file.fileno(), SLICE_BYTES, offset))

    def _put_slices(self, key: str, size_bytes: int, read: Callable[[int], bytes]) -> None:
        def put(number: int) -> None:
            data = read((number - 1) * SLICE_BYTES)
            self._put(slice_name(key, number), len(data), lambda name: self._bucket.put(name, data))

        numbers = range(2, slice_count(size_bytes) + 1)
        for at in range(0, len(numbers), SLICES_AT_ONCE):
            self.together(*(partial(put, number) for number in numbers[at : at + SLICES_AT_ONCE]))
        put(1)

    def _put(self, name: str, size_bytes: int, put: Callable[[str], None]) -> None:
        self._call("put", lambda: put(name), is_write=True)
        with self._lock:
            self.traffic.objects += 1
            self.traffic.object_bytes += size_bytes

    def create(self, key: str, data: bytes) -> str:
        """Creates an object and returns its etag. Raises ObjectExists, or Unclear if the outcome is unknown."""
        return self._write("create", lambda: self._bucket.create(key, data), data, is_head=key.endswith("/HEAD"))

    def replace(self, key: str, data: bytes, etag: str) -> str:
        """Replaces an object if its etag is ``etag``, and returns the new etag.

        Raises ObjectChanged, or Unclear if the outcome is unknown.
        """
        return self._write("replace", lambda: self._bucket.replace(key, data, etag), data, is_head=True)

    def delete(self, key: str, size_bytes: int = 0) -> None:
        """Deletes an object of this size. Does nothing if it is missing. A bucket that denies this is not away: it may
        keep objects on purpose, and everything else works."""
        for name in slice_names(key, size_bytes):
            self._call("delete", partial(self._bucket.delete, name))

    def delete_whole(self, key: str) -> None:
        """Deletes an object of unknown size."""
        count = 1
        while self._is_there(slice_name(key, count + 1)):
            count += 1
        self.delete(key, count * SLICE_BYTES)

    def walk(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yields key and size of each object under a prefix. For commands and interrupted deletions only."""
        steps, seen = iter(self._bucket.list(prefix)), 0
        while (found := self._call("list", lambda: next(steps, None), counts=seen % PAGE_KEYS == 0)) is not None:
            seen += 1
            yield found

    def together(self, *calls: Callable[[], T]) -> list[T]:
        """Runs calls at the same time, in one round trip. Raises the first error, after all calls have ended."""
        if len(calls) <= 1:
            return [call() for call in calls]
        futures = [self._pool.submit(carried(call)) for call in calls[1:]]
        ended = [_settle(calls[0])]
        for call, future in zip(calls[1:], futures, strict=True):
            # This thread runs a call that has not begun, because hanging requests of others may occupy the pool.
            ended.append(_settle(call if future.cancel() else future.result))
        for _, error in ended:
            if error is not None:
                raise error
        return [value for value, _ in ended]  # type: ignore[misc]

    def run_long(
        self, calls: Sequence[Callable[[], object]], beat: Callable[[], None], first_s: float, every_s: float
    ) -> None:
        """Runs calls that write or read objects, some at the same time, and ``beat`` after ``first_s`` and then every
        ``every_s``, until all have ended.

        Raises the first error of the calls, after all have ended. Raises an error of ``beat`` at once: calls that have
        begun then end by themselves, and the others never begin.
        """
        waiting, running, errors = deque(calls), set[Future[object]](), list[BaseException]()
        due = self._clock.boottime() + first_s
        while waiting or running:
            while waiting and len(running) < UPLOADS_AT_ONCE:
                running.add(self._uploads.submit(carried(waiting.popleft())))
            ended, running = wait(running, max(due - self._clock.boottime(), 0.0), FIRST_COMPLETED)
            found = [error for each in ended if (error := each.exception()) is not None]
            errors += found
            if found:
                waiting.clear()
            if running and self._clock.boottime() >= due:
                beat()
                due = self._clock.boottime() + every_s
        if errors:
            raise errors[0]

    def check_there(self) -> None:
        """Raises ArchiveUnavailable if the archive's format object is missing: the bucket is wrong, or its directory is
        not mounted."""
        if self.find(FORMAT_KEY) is None:
            self._error = "the archive is empty: is this the right bucket, and is its directory mounted?"
            self._away_since = self.failed_at = self._clock.boottime()
            raise ArchiveUnavailable(self._error)

    def ask_again(self, *, tries_write: bool = False) -> None:
        """Makes one request in the background. Its answer ends the time in which calls are refused.

        With ``tries_write``, and if the bucket refused a write, a small object is also created and deleted: perhaps
        nothing waits to be written, and a read says nothing of writes.
        """
        with self._lock:
            if self._is_asking:
                return
            self._is_asking = True

        def ask() -> None:
            try:
                self.find(FORMAT_KEY)
                if tries_write and self._refusal:
                    self._try_write()
            except (ArchiveUnavailable, ObjectExists):
                pass  # still away, or still refused
            finally:
                self._is_asking = False

        self.later(ask)

    def _try_write(self) -> None:
        """Clears the refusal if the bucket takes a write again. Deletes what was or may have been written."""
        key = PREFIX + secrets.token_hex(16)
        try:
            self._call("create", lambda: self._bucket.create(key, b"written again"), is_write=True)
        except Unclear:
            self.delete(key)
            raise
        self.delete(key)

    def later(self, call: Callable[[], object]) -> None:
        """Runs a call in the background, and logs its error."""

        def run() -> None:
            try:
                call()
            except StatewardError as error:
                log.warning("a background request to the archive failed", reason=error.reason)

        try:
            self._pool.submit(guarded, "put off", run)
        except RuntimeError:
            return  # the daemon is stopping

    def begin(self, job: Job) -> None:
        """Runs an upload in the background, and logs its error. No hanging request of another thread delays it."""

        def run() -> None:
            try:
                job.run()
            except StatewardError as error:
                log.warning("an upload in the background failed; a later one takes its place", reason=error.reason)

        try:
            self._uploads.submit(guarded, "upload", run)
        except RuntimeError:
            return  # the daemon is stopping

    def join(self, job: Job) -> None:
        """Waits for an upload in the background. Raises its error."""
        job.join()

    def close(self) -> None:
        """Ends the pool and closes the bucket. Waits for requests that are under way."""
        for pool in (self._pool, self._uploads):
            pool.shutdown(wait=True, cancel_futures=True)
        self._bucket.close()

    def _write(self, operation: str, call: Callable[[], str], data: bytes, *, is_head: bool) -> str:
        try:
            etag = self._call(operation, call, is_write=True)
        except (ObjectExists, ObjectChanged) as error:
            if error.is_unclear:
                raise Unclear(f"it is unknown whether a write to the archive landed: {error.message}") from error
            raise
        if is_head:
            with self._lock:
                self.traffic.heads += 1
                self.traffic.head_bytes += len(data)
        return etag

    def _call(self, operation: str, call: Callable[[], T], *, is_write: bool = False, counts: bool = True) -> T:
        with self._lock:
            self.traffic.requests += counts
        began = self._clock.monotonic()
        try:
            with span(f"bucket {operation}") if counts else nullcontext():
                result = call()
        except (ObjectNotFound, ObjectExists, ObjectChanged):
            self._answered()
            self._measure(operation, began, counts=counts)
            raise
        except (ObjectTooLarge, ObjectCold) as error:  # says nothing of the bucket, nor of other objects
            self._answered()
            self._measure(operation, began, type(error).__name__)
            raise Corrupt(error.message) from error
        except BucketError as error:
            self._measure(operation, began, type(error).__name__)
            if operation == "delete" and isinstance(error, BucketDenied | BucketRefused):
                raise ArchiveUnavailable(f"the archive refuses to delete: {error.message}") from error
            if is_write and isinstance(error, BucketFull | BucketDenied | BucketRefused):
                self._refusal = error.message
            else:
                self._error = error.message
            self._is_denied = isinstance(error, BucketDenied | BucketRefused)
            self.failed_at = self._clock.boottime()
            if self._away_since is None:
                self._away_since = self.failed_at
            kind = Unclear if error.is_unclear else ArchiveUnavailable
            how = "used" if self._is_denied else "reached"
            raise kind(f"the archive cannot be {how}: {error.message}") from error
        self._answered()
        self._measure(operation, began, counts=counts)
        if is_write:
            self._refusal = ""
        return result

    def _measure(self, operation: str, began: float, error: str = "", *, counts: bool = True) -> None:
        if self.measures is not None and counts:
            with self._lock:
                self.measures.note(operation, self._clock.monotonic() - began, error)

    def _answered(self) -> None:
        self._away_since = None
        self._is_denied = False
        self._error = ""


def _settle(call: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001  (the caller raises it after all calls have ended)
        return None, error
