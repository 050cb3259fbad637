"""The blocking client: a thin shell that sends what the operations yield, retries and waits.

A `Client` may be shared by threads, and by forked processes (each opens its own channel); a `State` may not.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

from stateward import _operations as ops
from stateward._channel import OPTIONS, Retry, Settings, bind_methods, explain, grpc, resolve_target, unreachable
from stateward._operations import UNCHANGED, PreparedSave, SaveOptions, ThreadRef, _Unchanged
from stateward._watch import HistoryReader, Reader, VerifyReader, WatchReader
from stateward.errors import StatewardError
from stateward.models import (
    Change,
    Checkpoint,
    Durability,
    DurableResult,
    Event,
    HistoryEntry,
    PruneResult,
    Retention,
    ServerInfo,
    Stats,
    Status,
    Tag,
    ThreadInfo,
    ThreadOptions,
    VerifyProgress,
)
from stateward.state import State

T = TypeVar("T")


class Client:
    """A connection to the daemon beside this process, for one namespace.

    Opens at first use and waits up to `timeout` seconds for the daemon; ServerUnavailable if none answers. Later calls
    are repeated for up to `retry_timeout` seconds while the daemon is away; that is safe, as every write carries a
    request id. Each attempt may take `deadline` seconds.

    `target` is `unix:///path`, a bare path or host:port; None finds the socket as the daemon places it.
    """

    def __init__(
        self,
        target: str | None = None,
        *,
        namespace: str = "default",
        timeout: float = 10.0,
        deadline: float = 60.0,
        retry_timeout: float = 30.0,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self._settings = Settings(resolve_target(target), namespace, timeout, deadline, retry_timeout, credentials)
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        self._inherited: list[_Connection] = []  # a forked child never closes what its parent uses
        self._streams: weakref.WeakSet[Stream[Any]] = weakref.WeakSet()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.target!r}, namespace={self.namespace!r})"

    @property
    def target(self) -> str:
        """Where the daemon is dialled."""
        return self._settings.target

    @property
    def namespace(self) -> str:
        """The namespace of all threads of this client."""
        return self._settings.namespace

    def close(self) -> None:
        """Ends open streams and the connection. Closing again does nothing."""
        self._closed = True
        for stream in list(self._streams):
            stream.close()
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None and connection.pid == os.getpid():
            connection.channel.close()

    def thread(self, name: str, *, branch: str = "main") -> Thread:
        """A handle on a thread, which need not exist. Asks nothing of the daemon."""
        return Thread(self, ThreadRef(self.namespace, name, branch))

    def threads(
        self,
        *,
        statuses: Iterable[Status | str | int] = (),
        labels: Mapping[str, str] | None = None,
        name_prefix: str = "",
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
        min_step: int | None = None,
        max_step: int | None = None,
        page_size: int = 0,
    ) -> Iterator[ThreadInfo]:
        """The namespace's threads, the most recently changed first, read page by page."""
        request = ops.list_threads(
            self.namespace,
            statuses=statuses,
            labels=labels,
            name_prefix=name_prefix,
            updated_after=updated_after,
            updated_before=updated_before,
            min_step=min_step,
            max_step=max_step,
            page_size=page_size,
        )
        return self._read_list(ops.read_threads, request)

    def checkpoints(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        statuses: Iterable[Status | str | int] = (),
        page_size: int = 0,
    ) -> Iterator[Checkpoint]:
        """Versions of all threads of the namespace, newest first, read page by page."""
        request = ops.list_checkpoints(self.namespace, "-", labels=labels, statuses=statuses, page_size=page_size)
        return self._read_list(ops.read_checkpoints, request)

    def save_all(self, saves: Iterable[PreparedSave]) -> list[Checkpoint]:
        """One version in each of several threads, all or none on this disk: `save_all([a.prepare(x), b.prepare(y)])`.

        The archive gets them thread by thread, so after the loss of the machine one may be there without the other.
        """
        return self._run(ops.save_all(list(saves)))

    def watch(
        self, *, after_cursor: str = "", include_diff: bool = False, labels: Mapping[str, str] | None = None
    ) -> Stream[Event]:
        """Events of all threads of the namespace, from now on or after a cursor. Close it, or use it with `with`.

        The watch has begun when this returns. It goes on after a restart of the daemon without gap or duplicate; only
        one that has no cursor yet raises ServerUnavailable, as it cannot know what it missed.
        """
        reader = WatchReader(
            ThreadRef(self.namespace, "-", ""),
            after_sequence=None,
            after_cursor=after_cursor,
            include_diff=include_diff,
            labels=labels,
        )
        return self._open(reader, begin=True)

    def server_info(self) -> ServerInfo:
        """Version, limits and features of the daemon."""
        return self._run(ops.server_info())

    def stats(self) -> Stats:
        """Counts and sizes of the daemon."""
        return self._run(ops.stats())

    def verify(self, thread: str | None = None) -> Stream[VerifyProgress]:
        """Reads stored records of this namespace (or one thread) back and tells what is wrong with them."""
        return self._open(VerifyReader(self.namespace, thread or ""))

    def _run(self, operation: ops.Operation[T]) -> T:
        try:
            step = next(operation)
            while True:
                try:
                    answer = self._perform(step)
                except StatewardError as error:
                    step = operation.throw(error)
                else:
                    step = operation.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            operation.close()  # an interrupted call must not leave its state marked as being saved

    def _perform(self, step: ops.Call | ops.Pause | ops.Await) -> Any:
        match step:
            case ops.Call():
                return self._call(step)
            case ops.Pause():
                time.sleep(step.seconds)
            case ops.Await():
                raise TypeError("update got a coroutine function: use AsyncClient, or a plain function")
        return None

    def _call(self, call: ops.Call) -> Any:
        retry = Retry(self._settings.retry_timeout_s)
        while True:
            try:
                return self._method(call.method)(call.request, timeout=self._settings.deadline_s)
            except grpc.RpcError as failure:
                error = explain(failure, self._settings)
                delay_s = retry.delay_after(error) if call.retry else None
                if delay_s is None:
                    raise error from failure
            time.sleep(delay_s)

    def _method(self, name: str) -> Callable[..., Any]:
        connection = self._connection
        if connection is None or connection.pid != os.getpid():
            connection = self._connect()
        return connection.methods[name]

    def _connect(self) -> _Connection:
        if self._connection is not None and self._connection.pid != os.getpid():
            # After a fork the lock may be held by a thread that does not exist here.
            self._lock, self._streams = threading.Lock(), weakref.WeakSet()
            self._inherited.append(self._connection)
            self._connection = None
        with self._lock:
            if self._closed:
                raise RuntimeError("this client is closed")
            if self._connection is None:
                self._connection = _Connection(self._settings)
                _open_clients.add(self)
            return self._connection

    def _open(self, reader: Reader[T], *, begin: bool = False) -> Stream[T]:
        stream = Stream(self, reader)
        if begin:
            stream._begin()
        return stream

    def _read_list(self, read: Callable[[Any], ops.Operation[list[T]]], request: Any) -> Iterator[T]:
        while True:
            yield from self._run(read(request))
            if not request.page_token:
                return


class Thread:
    """A handle on one branch of a thread. Holds no state of its own."""

    def __init__(self, client: Client, ref: ThreadRef) -> None:
        self._client = client
        self._ref = ref

    def __repr__(self) -> str:
        return f"Thread({self.name!r}, branch={self._ref.branch!r})"

    @property
    def name(self) -> str:
        """Name of the thread."""
        return self._ref.thread

    def hydrate(
        self,
        version: int | None = None,
        *,
        tag: str | None = None,
        checkpoint_id: str | None = None,
        slots: Iterable[str] | None = None,
        logs: Mapping[str, int | None] | Iterable[str] | None = None,
        must_exist: bool = False,
    ) -> State:
        """Reads the branch's head, or another version, whole or in part.

        `slots` and `logs` choose what is read, `logs={"messages": 15}` the last so many entries; giving one of them
        leaves the other out, and the state is `partial`. A thread or branch that does not exist is the empty state at
        version 0; `must_exist` makes that ThreadNotFound or VersionNotFound.
        """
        return self._run(
            ops.hydrate(
                self._ref,
                version,
                tag=tag,
                checkpoint_id=checkpoint_id,
                slots=slots,
                logs=logs,
                must_exist=must_exist,
            )
        )

    def save(self, state: State, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Writes what changed in `state` as a new version, if its version is still the branch's head.

        The state then continues from the new version. VersionMismatch leaves it as it was. NotArchivedYet says that
        the version is saved, but less durably than asked.
        """
        return self._run(ops.save(self._ref, state, options))

    def prepare(self, state: State, **options: Unpack[SaveOptions]) -> PreparedSave:
        """The same as `save`, to be made together with others by `Client.save_all`."""
        return PreparedSave(self._ref, state, options)

    def update(self, fn: Callable[[State], Any], *, attempts: int = 10, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Hydrates, calls `fn(state)` to change it, and saves; from the start again when somebody saved in between.

        `fn` may so be called several times. VersionMismatch after `attempts` tries.
        """
        return self._run(ops.update(self._ref, fn, attempts, options))

    def append(self, log: str, *entries: Any, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Adds entries to a log on top of whatever is the head, without reading it: never a VersionMismatch."""
        return self._run(ops.append(self._ref, log, entries, options))

    def branch(self, name: str, at: int | None = None) -> Thread:
        """A handle on another branch. One that does not exist yet starts from version `at` with its first save."""
        return Thread(self._client, ThreadRef(self._ref.namespace, self._ref.thread, name, at))

    def history(
        self,
        from_version: int = 0,
        version: int | None = None,
        newest_first: bool = False,
        *,
        slots: Iterable[str] | None = None,
        logs: Mapping[str, int | None] | Iterable[str] | None = None,
    ) -> Stream[HistoryEntry]:
        """`version` (None = the head) and its ancestors back to `from_version`: (checkpoint, state, changes) of each.

        Only the first has its state, the others what they changed against their parent.
        """
        reader = HistoryReader(
            self._ref,
            from_version=from_version,
            version=version,
            newest_first=newest_first,
            projection=ops.projection(slots, logs),
        )
        return self._client._open(reader)

    def checkpoints(
        self,
        *,
        branch: str = "",
        labels: Mapping[str, str] | None = None,
        statuses: Iterable[Status | str | int] = (),
        before: int | None = None,
        page_size: int = 0,
    ) -> Iterator[Checkpoint]:
        """Versions of the thread, newest first, read page by page; of all branches unless one is named."""
        request = ops.list_checkpoints(
            self._ref.namespace,
            self._ref.thread,
            branch=branch,
            labels=labels,
            statuses=statuses,
            before=before,
            page_size=page_size,
        )
        return self._client._read_list(ops.read_checkpoints, request)

    def get(self) -> ThreadInfo:
        """What is known about the thread; ThreadNotFound if there is none."""
        return self._run(ops.get_thread(self._ref))

    def checkpoint(
        self, version: int | None = None, *, tag: str | None = None, checkpoint_id: str | None = None
    ) -> Checkpoint:
        """What is known about a version, without its state; without arguments about the branch's head."""
        return self._run(ops.get_checkpoint(self._ref, version, tag, checkpoint_id))

    def diff(self, a: int, b: int | None = None) -> list[Change]:
        """The edits that lead from version `a` (0 = the empty state) to `b` (None = the head)."""
        return self._run(ops.diff(self._ref, a, b))

    def fork(
        self, new_thread: str, version: int | None = None, *, whole: bool = False, create: ThreadOptions | None = None
    ) -> Thread:
        """Copies one version (None = the head), or the whole thread, to a new one; returns a handle on that."""
        info = self._run(ops.fork(self._ref, new_thread, version, whole, create))
        return self._client.thread(info.name)

    def tag(self, name: str, version: int | None = None, *, expected: int | None = None) -> Tag:
        """Makes or moves a tag (None = to the head). `expected` is what it must name now, 0 = must not exist."""
        return self._run(ops.set_tag(self._ref, name, version, expected))

    def delete_tag(self, name: str) -> Tag:
        """Removes a tag and returns what it named."""
        return self._run(ops.delete_tag(self._ref, name))

    def prune(
        self,
        *,
        versions: Iterable[int] | None = None,
        older_than: timedelta | None = None,
        keep_latest_per_branch: int | None = None,
        dry_run: bool = False,
    ) -> PruneResult:
        """Removes versions now: these, those older, or all but the newest of each branch. Give exactly one."""
        return self._run(ops.prune(self._ref, versions, older_than, keep_latest_per_branch, dry_run))

    def update_options(
        self,
        *,
        labels: Mapping[str, str] | _Unchanged | None = UNCHANGED,
        ttl: timedelta | _Unchanged | None = UNCHANGED,
        retention: Retention | _Unchanged | None = UNCHANGED,
        parent_thread: str | _Unchanged | None = UNCHANGED,
        agent: str | _Unchanged | None = UNCHANGED,
    ) -> ThreadInfo:
        """Changes what is given; None clears it."""
        return self._run(
            ops.update_options(
                self._ref, labels=labels, ttl=ttl, retention=retention, parent_thread=parent_thread, agent=agent
            )
        )

    def delete(
        self,
        missing_ok: bool = False,
        *,
        expected_version: int | None = None,
        durability: Durability | str | None = None,
    ) -> bool:
        """Removes the thread for good. False if there was none, which without `missing_ok` is ThreadNotFound."""
        return self._run(ops.delete(self._ref, missing_ok, expected_version, durability))

    def watch(
        self, *, after_sequence: int | None = None, after_cursor: str = "", include_diff: bool = False
    ) -> Stream[Event]:
        """Events of the thread: from now on, after a sequence (0 = from the beginning) or after a cursor.

        The watch has begun when this returns, and goes on after a restart of the daemon without gap or duplicate.
        Close it, or use it with `with`.
        """
        reader = WatchReader(
            self._ref, after_sequence=after_sequence, after_cursor=after_cursor, include_diff=include_diff
        )
        return self._client._open(reader, begin=True)

    def wait_durable(self, sequence: int, durability: Durability | str | None = None) -> DurableResult:
        """Waits until a place in the journal has reached a level, for up to the client's deadline."""
        return self._run(ops.wait_durable(self._ref, sequence, durability))

    def _run(self, operation: ops.Operation[T]) -> T:
        return self._client._run(operation)


class Stream(Generic[T]):
    """What a stream brings, one by one. Ends with `close`, which may be called from another thread."""

    def __init__(self, client: Client, reader: Reader[T]) -> None:
        self._client = client
        self._reader = reader
        self._retry = Retry(client._settings.retry_timeout_s)
        self._ready: deque[T] = deque()
        self._call: Any = None
        self._started = False
        self._ended = False
        self._closed = threading.Event()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while not self._ready:
            if self._ended or not self._pump():
                raise StopIteration
        return self._ready.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the stream. Closing again does nothing."""
        self._ended = True
        self._closed.set()
        if self._call is not None:
            self._call.cancel()

    def _begin(self) -> None:
        """Waits for the first message."""
        self._pump()

    def _pump(self) -> bool:
        """Takes the next message, reopening the stream where it may go on. False at its end."""
        while not self._closed.is_set():
            try:
                if self._call is None:
                    self._open()
                message = next(self._call)
            except StopIteration:
                break
            except grpc.RpcError as failure:
                self._call = None
                if self._closed.is_set():
                    break
                error = explain(failure, self._client._settings)
                delay_s = self._retry.delay_after(error) if self._reader.can_resume() else None
                if delay_s is None:
                    self._ended = True
                    raise error from failure
                self._closed.wait(delay_s)
            else:
                self._retry.reset()
                self._ready.extend(self._reader.take(message))
                return True
        self._ended = True
        return False

    def _open(self) -> None:
        if not self._started:
            self._client._run(self._reader.start())
            self._started = True
        self._call = self._client._method(self._reader.method)(self._reader.request())
        self._client._streams.add(self)
        if self._closed.is_set():  # closed by another thread just now
            self._call.cancel()


class _Connection:
    """An open channel of one process."""

    def __init__(self, settings: Settings) -> None:
        self.pid = os.getpid()
        if settings.credentials is None:
            self.channel = grpc.insecure_channel(settings.target, options=OPTIONS)
        else:
            self.channel = grpc.secure_channel(settings.target, settings.credentials, options=OPTIONS)
        ready = grpc.channel_ready_future(self.channel)
        try:
            ready.result(timeout=settings.ready_timeout_s)
        except grpc.FutureTimeoutError:
            self.channel.close()
            raise unreachable(settings, f"waited {settings.ready_timeout_s:g} s") from None
        finally:
            ready.cancel()
        self.methods = bind_methods(self.channel)


_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_open_clients() -> None:
    """Without it gRPC waits for ever at interpreter exit for a stream that was left open."""
    for client in list(_open_clients):
        client.close()
