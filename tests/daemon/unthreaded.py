"""What takes the place of a daemon's threads and waits where a test drives it: all happens where it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Hashable, Sequence
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from tests.daemon.clocks import Beat, FakeClock

from stateward_sidecar.archive.own.pulse import Parted
from stateward_sidecar.archive.requests.metered import Job, Wire
from stateward_sidecar.bucket.base import REPLACED_BYTES_MAX, Object
from stateward_sidecar.bucket.retrying import RetryingBucket
from stateward_sidecar.errors import ArchiveUnavailable, StatewardError
from stateward_sidecar.service.admission.streams import Places
from stateward_sidecar.service.api.blobs import BlobService
from stateward_sidecar.service.calls.calls import Calls
from stateward_sidecar.service.calls.ownership import Ownership
from stateward_sidecar.storage.queue import Write

T = TypeVar("T")


class Inline(Executor):
    """Runs at once, where it was asked for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """As many workers as you like."""

    def submit(self, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(call(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  (as an executor does it)
            future.set_exception(error)
        return future


class Upload:
    """Objects that are being written before a HEAD, or read, and how their ship is ended by what strikes meanwhile."""

    def __init__(self, beat: Callable[[], None], begun_s: float) -> None:
        self._beat = beat
        self.begun_s = begun_s
        self.keys: set[str] = set()  # of objects that were begun
        self.error: Exception | None = None

    def strike(self) -> None:
        """A sign of life, unless the ship is over and only waits for its turn."""
        if self.error is None:
            try:
                self._beat()
            except Parted as error:
                self.error = error


class DrivenWire(Wire):
    """One request after the other; what has time waits for ``background``."""

    def __init__(
        self, bucket: RetryingBucket, clock: FakeClock, time: FakeClock, begin: Callable[..., Any],
        fails: Callable[[], None],
    ) -> None:  # fmt: skip
        """``time``: what all machines share. ``begin``: runs something as a call of its own, if calls take turns.
        ``fails``: called when the bucket did not answer a request."""
        super().__init__(bucket, clock)
        self._time = time
        self._begin = begin
        self._fails = fails
        self.waiting: list[Callable[[], object]] = []
        self.uploads: list[Upload] = []
        self._beginning: Upload | None = None

    def _call(self, *arguments: Any, **how: Any) -> Any:
        try:
            return super()._call(*arguments, **how)
        except ArchiveUnavailable:
            self._fails()
            raise

    def together(self, *calls: Callable[[], T]) -> list[T]:
        results, errors = list[T](), list[Exception]()
        for call in calls:
            try:
                results.append(call())
            except Exception as error:  # noqa: BLE001  (raised below, once all are in)
                errors.append(error)
        if errors:
            raise errors[0]
        return results

    def run_long(
        self, calls: Sequence[Callable[[], object]], beat: Callable[[], None], first_s: float, every_s: float
    ) -> None:
        """One after the other. A request that is held takes its time: others overtake, and what is due strikes."""
        upload = Upload(beat, self._time.now_s)
        clock = Beat(lambda: self._begin(upload.strike), every_s, self._time.now_s + first_s)
        self._time.beats.append(clock)
        self.uploads.append(upload)
        try:
            for call in calls:
                self._beginning = upload
                call()
                if upload.error is not None:
                    raise upload.error
        finally:
            self._time.beats.remove(clock)
            self.uploads.remove(upload)

    def put(self, key: str, data: bytes) -> None:
        self._note(key)
        super().put(key, data)

    def put_file(self, key: str, path: Path) -> None:
        self._note(key)
        super().put_file(key, path)

    def get(self, key: str, most_bytes: int = REPLACED_BYTES_MAX) -> Object:
        self._note(key)
        return super().get(key, most_bytes)

    def _note(self, key: str) -> None:
        """What a long call reads or writes first is an object of its thread."""
        upload, self._beginning = self._beginning, None
        if upload is not None:
            upload.keys.add(key)

    def later(self, call: Callable[[], object]) -> None:
        self.waiting.append(call)

    def begin(self, job: Job) -> None:
        self.waiting.append(job.run)

    def join(self, job: Job) -> None:
        """No call waits for another one: a ship that has to is tried again."""
        if job.is_running:
            raise ArchiveUnavailable("an upload in the background is under way")
        job.join()

    def background(self) -> None:
        """Does what was put off."""
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()


class DrivenOwnership(Ownership):
    """Blocks instead of going to a thread: each call has its own."""

    async def block(self, name: Hashable, verb: Callable[..., T], *arguments: Any) -> T:
        return verb(*arguments)

    async def know(self, namespace: str, thread: str) -> None:
        self.need().know(namespace, thread)

    def give_back(self, namespace: str, thread: str) -> None:
        with suppress(StatewardError):
            self.need().unclaim(namespace, thread)


class DrivenCalls(Calls):
    """The same for reads and writes."""

    async def read(self, verb: Callable[..., T], *args: Any) -> T:
        return self.store.read(verb, *args)

    load = scan = read

    async def look(self, verb: Callable[..., T], *args: Any) -> T:
        return verb(*args)

    async def reserve(self, size_bytes: int, make: Callable[[int], Awaitable[bytes]]) -> bytes:
        return await make(0)

    async def work(self, verb: Callable[..., T], *args: Any) -> T:
        return verb(*args)

    async def write(self, run: Callable[..., T], context: Any, **how: Any) -> T:
        size_bytes, prepare = how.pop("size_bytes", 0), how.pop("prepare", None)
        if prepare is not None:
            prepare()
        write = Write(run=run, size_bytes=size_bytes, **how)
        result: T = self.store.context.writer.submit(write, wait=True).wait()
        return result


class DrivenBlobs(BlobService):
    """Works on files where it was asked for."""

    def __init__(self, calls: Calls) -> None:
        super().__init__(calls)
        self._places = Places(100, "blobs are being written", lambda: 0.0)

    async def _work(self, verb: Callable[..., T], *args: Any) -> T:
        return verb(*args)


class NoLoop:
    """What ``asyncio`` is to ``service.blobs`` and ``service.uploads``: nothing takes time, a task is over when it was
    begun."""

    Task, CancelledError = asyncio.Task, asyncio.CancelledError

    def current_task(self) -> None:
        """No task is cancelled."""

    @asynccontextmanager
    async def timeout(self, _seconds: float | None) -> AsyncIterator[None]:
        yield

    def ensure_future(self, call: Awaitable[T]) -> Done[T]:
        return Done(run(call))

    async def shield(self, call: Awaitable[T]) -> T:
        return await call


class Done(Generic[T]):
    """A task that is over."""

    def __init__(self, result: T) -> None:
        self._result = result

    def add_done_callback(self, _callback: Callable[[Any], object]) -> None:
        """Whoever waits for the task has its result."""

    def __await__(self) -> Generator[None, None, T]:
        return self._result
        yield


class Caller:
    """A gRPC context without a deadline, of somebody without a certificate."""

    def time_remaining(self) -> None:
        return None

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    def peer(self) -> str:
        return "unix:"


def run(call: Awaitable[T]) -> T:
    """A coroutine that waits for nothing but its turn."""
    steps = call.__await__()
    try:
        next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a driven call waits for something")
