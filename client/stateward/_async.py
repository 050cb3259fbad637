"""The asyncio client: a thin shell that sends what the operations yield, retries and waits. The twin of `_sync`.

An `AsyncClient` serves one event loop at a time and opens a new channel in another one; a `State` serves one task.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
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


class AsyncClient:
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
        self._lock = asyncio.Lock()
        self._connection: _Connection | None = None
        self._inherited: list[_Connection] = []  # a forked child never closes what its parent uses
        self._streams: weakref.WeakSet[AsyncStream[Any]] = weakref.WeakSet()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self.target!r}, namespace={self.namespace!r})"

    @property
    def target(self) -> str:
        """Where the daemon is dialled."""
        return self._settings.target

    @property
    def namespace(self) -> str:
        """The namespace of all threads of this client."""
        return self._settings.namespace

    async def close(self) -> None:
        """Ends open streams and the connection. Closing again does nothing."""
        self._closed = True
        for stream in list(self._streams):
            await stream.close()
        connection, self._connection = self._connection, None
        if connection is not None and connection.is_ours():
            await connection.channel.close()

    def thread(self, name: str, *, branch: str = "main") -> AsyncThread:
        """A handle on a thread, which need not exist. Asks nothing of the daemon."""
        return AsyncThread(self, ThreadRef(self.namespace, name, branch))

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
    ) -> AsyncIterator[ThreadInfo]:
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
    ) -> AsyncIterator[Checkpoint]:
        """Versions of all threads of the namespace, newest first, read page by page."""
        request = ops.list_checkpoints(self.namespace, "-", labels=labels, statuses=statuses, page_size=page_size)
        return self._read_list(ops.read_checkpoints, request)

    async def save_all(self, saves: Iterable[PreparedSave]) -> list[Checkpoint]:
        """One version in each of several threads, all or none on this disk: `save_all([a.prepare(x), b.prepare(y)])`.

        The archive gets them thread by thread, so after the loss of the machine one may be there without the other.
        """
        return await self._run(ops.save_all(list(saves)))

    def watch(
        self, *, after_cursor: str = "", include_diff: bool = False, labels: Mapping[str, str] | None = None
    ) -> AsyncStream[Event]:
        """Events of all threads of the namespace, from now on or after a cursor.

        The watch begins with `async with` (or the first step of `async for`). It goes on after a restart of the daemon
        without gap or duplicate; only one that has no cursor yet raises ServerUnavailable, as it cannot know what it
        missed.
        """
        reader = WatchReader(
            ThreadRef(self.namespace, "-", ""),
            after_sequence=None,
            after_cursor=after_cursor,
            include_diff=include_diff,
            labels=labels,
        )
        return self._open(reader)

    async def server_info(self) -> ServerInfo:
        """Version, limits and features of the daemon."""
        return await self._run(ops.server_info())

    async def stats(self) -> Stats:
        """Counts and sizes of the daemon."""
        return await self._run(ops.stats())

    def verify(self, thread: str | None = None) -> AsyncStream[VerifyProgress]:
        """Reads stored records of this namespace (or one thread) back and tells what is wrong with them."""
        return self._open(VerifyReader(self.namespace, thread or ""))

    async def _run(self, operation: ops.Operation[T]) -> T:
        try:
            step = next(operation)
            while True:
                try:
                    answer = await self._perform(step)
                except StatewardError as error:
                    step = operation.throw(error)
                else:
                    step = operation.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            operation.close()  # a cancelled task must not leave its state marked as being saved

    async def _perform(self, step: ops.Call | ops.Pause | ops.Await) -> Any:
        match step:
            case ops.Call():
                return await self._call(step)
            case ops.Pause():
                await asyncio.sleep(step.seconds)
            case ops.Await():
                return await step.awaitable
        return None

    async def _call(self, call: ops.Call) -> Any:
        retry = Retry(self._settings.retry_timeout_s)
        while True:
            try:
                return await (await self._method(call.method))(call.request, timeout=self._settings.deadline_s)
            except grpc.RpcError as failure:
                error = explain(failure, self._settings)
                delay_s = retry.delay_after(error) if call.retry else None
                if delay_s is None:
                    raise error from failure
            await asyncio.sleep(delay_s)

    async def _method(self, name: str) -> Callable[..., Any]:
        connection = self._connection
        if connection is None or not connection.is_ours():
            connection = await self._connect()
        return connection.methods[name]

    async def _connect(self) -> _Connection:
        if self._connection is not None and not self._connection.is_ours():
            self._lock, self._streams = asyncio.Lock(), weakref.WeakSet()
            self._inherited.append(self._connection)
            self._connection = None
        async with self._lock:
            if self._closed:
                raise RuntimeError("this client is closed")
            if self._connection is None:
                connection = _Connection(self._settings)
                await connection.wait_until_ready()
                self._connection = connection
            return self._connection

    def _open(self, reader: Reader[T]) -> AsyncStream[T]:
        return AsyncStream(self, reader)

    async def _read_list(self, read: Callable[[Any], ops.Operation[list[T]]], request: Any) -> AsyncIterator[T]:
        while True:
            for item in await self._run(read(request)):
                yield item
            if not request.page_token:
                return


class AsyncThread:
    """A handle on one branch of a thread. Holds no state of its own."""

    def __init__(self, client: AsyncClient, ref: ThreadRef) -> None:
        self._client = client
        self._ref = ref

    def __repr__(self) -> str:
        return f"AsyncThread({self.name!r}, branch={self._ref.branch!r})"

    @property
    def name(self) -> str:
        """Name of the thread."""
        return self._ref.thread

    async def hydrate(
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
        return await self._run(
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

    async def save(self, state: State, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Writes what changed in `state` as a new version, if its version is still the branch's head.

        The state then continues from the new version. VersionMismatch leaves it as it was. NotArchivedYet says that
        the version is saved, but less durably than asked.
        """
        return await self._run(ops.save(self._ref, state, options))

    def prepare(self, state: State, **options: Unpack[SaveOptions]) -> PreparedSave:
        """The same as `save`, to be made together with others by `AsyncClient.save_all`."""
        return PreparedSave(self._ref, state, options)

    async def update(
        self, fn: Callable[[State], Any], *, attempts: int = 10, **options: Unpack[SaveOptions]
    ) -> Checkpoint:
        """Hydrates, calls `fn(state)` to change it, and saves; from the start again when somebody saved in between.

        `fn` may so be called several times. VersionMismatch after `attempts` tries.
        """
        return await self._run(ops.update(self._ref, fn, attempts, options))

    async def append(self, log: str, *entries: Any, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Adds entries to a log on top of whatever is the head, without reading it: never a VersionMismatch."""
        return await self._run(ops.append(self._ref, log, entries, options))

    def branch(self, name: str, at: int | None = None) -> AsyncThread:
        """A handle on another branch. One that does not exist yet starts from version `at` with its first save."""
        return AsyncThread(self._client, ThreadRef(self._ref.namespace, self._ref.thread, name, at))

    def history(
        self,
        from_version: int = 0,
        version: int | None = None,
        newest_first: bool = False,
        *,
        slots: Iterable[str] | None = None,
        logs: Mapping[str, int | None] | Iterable[str] | None = None,
    ) -> AsyncStream[HistoryEntry]:
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
    ) -> AsyncIterator[Checkpoint]:
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

    async def get(self) -> ThreadInfo:
        """What is known about the thread; ThreadNotFound if there is none."""
        return await self._run(ops.get_thread(self._ref))

    async def checkpoint(
        self, version: int | None = None, *, tag: str | None = None, checkpoint_id: str | None = None
    ) -> Checkpoint:
        """What is known about a version, without its state; without arguments about the branch's head."""
        return await self._run(ops.get_checkpoint(self._ref, version, tag, checkpoint_id))

    async def diff(self, a: int, b: int | None = None) -> list[Change]:
        """The edits that lead from version `a` (0 = the empty state) to `b` (None = the head)."""
        return await self._run(ops.diff(self._ref, a, b))

    async def fork(
        self, new_thread: str, version: int | None = None, *, whole: bool = False, create: ThreadOptions | None = None
    ) -> AsyncThread:
        """Copies one version (None = the head), or the whole thread, to a new one; returns a handle on that."""
        info = await self._run(ops.fork(self._ref, new_thread, version, whole, create))
        return self._client.thread(info.name)

    async def tag(self, name: str, version: int | None = None, *, expected: int | None = None) -> Tag:
        """Makes or moves a tag (None = to the head). `expected` is what it must name now, 0 = must not exist."""
        return await self._run(ops.set_tag(self._ref, name, version, expected))

    async def delete_tag(self, name: str) -> Tag:
        """Removes a tag and returns what it named."""
        return await self._run(ops.delete_tag(self._ref, name))

    async def prune(
        self,
        *,
        versions: Iterable[int] | None = None,
        older_than: timedelta | None = None,
        keep_latest_per_branch: int | None = None,
        dry_run: bool = False,
    ) -> PruneResult:
        """Removes versions now: these, those older, or all but the newest of each branch. Give exactly one."""
        return await self._run(ops.prune(self._ref, versions, older_than, keep_latest_per_branch, dry_run))

    async def update_options(
        self,
        *,
        labels: Mapping[str, str] | _Unchanged | None = UNCHANGED,
        ttl: timedelta | _Unchanged | None = UNCHANGED,
        retention: Retention | _Unchanged | None = UNCHANGED,
        parent_thread: str | _Unchanged | None = UNCHANGED,
        agent: str | _Unchanged | None = UNCHANGED,
    ) -> ThreadInfo:
        """Changes what is given; None clears it."""
        return await self._run(
            ops.update_options(
                self._ref, labels=labels, ttl=ttl, retention=retention, parent_thread=parent_thread, agent=agent
            )
        )

    async def delete(
        self,
        missing_ok: bool = False,
        *,
        expected_version: int | None = None,
        durability: Durability | str | None = None,
    ) -> bool:
        """Removes the thread for good. False if there was none, which without `missing_ok` is ThreadNotFound."""
        return await self._run(ops.delete(self._ref, missing_ok, expected_version, durability))

    def watch(
        self, *, after_sequence: int | None = None, after_cursor: str = "", include_diff: bool = False
    ) -> AsyncStream[Event]:
        """Events of the thread: from now on, after a sequence (0 = from the beginning) or after a cursor.

        The watch begins with `async with` (or the first step of `async for`), and goes on after a restart of the daemon
        without gap or duplicate.
        """
        reader = WatchReader(
            self._ref, after_sequence=after_sequence, after_cursor=after_cursor, include_diff=include_diff
        )
        return self._client._open(reader)

    async def wait_durable(self, sequence: int, durability: Durability | str | None = None) -> DurableResult:
        """Waits until a place in the journal has reached a level, for up to the client's deadline."""
        return await self._run(ops.wait_durable(self._ref, sequence, durability))

    async def _run(self, operation: ops.Operation[T]) -> T:
        return await self._client._run(operation)


class AsyncStream(Generic[T]):
    """What a stream brings, one by one. Opened by `async with` or by the first step of `async for`."""

    def __init__(self, client: AsyncClient, reader: Reader[T]) -> None:
        self._client = client
        self._reader = reader
        self._retry = Retry(client._settings.retry_timeout_s)
        self._ready: deque[T] = deque()
        self._call: Any = None
        self._started = False
        self._ended = False
        self._closed = asyncio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._ready:
            if self._ended or not await self._pump():
                raise StopAsyncIteration
        return self._ready.popleft()

    async def __aenter__(self) -> Self:
        await self._pump()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the stream. Closing again does nothing."""
        self._ended = True
        self._closed.set()
        if self._call is not None:
            self._call.cancel()

    async def _pump(self) -> bool:
        """Takes the next message, reopening the stream where it may go on. False at its end."""
        while not self._closed.is_set():
            try:
                if self._call is None:
                    await self._open()
                message = await self._call.read()
            except asyncio.CancelledError:  # of the call by `close`, or of this task
                if self._closed.is_set() and not _is_being_cancelled():
                    break
                raise
            except grpc.RpcError as failure:
                self._call = None
                error = explain(failure, self._client._settings)
                delay_s = self._retry.delay_after(error) if self._reader.can_resume() else None
                if delay_s is None:
                    self._ended = True
                    raise error from failure
                await asyncio.sleep(delay_s)
            else:
                if message is grpc.aio.EOF:
                    break
                self._retry.reset()
                self._ready.extend(self._reader.take(message))
                return True
        self._ended = True
        return False

    async def _open(self) -> None:
        if not self._started:
            await self._client._run(self._reader.start())
            self._started = True
        self._call = (await self._client._method(self._reader.method))(self._reader.request())
        self._client._streams.add(self)


class _Connection:
    """An open channel of one process and one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        if settings.credentials is None:
            self.channel = grpc.aio.insecure_channel(settings.target, options=OPTIONS)
        else:
            self.channel = grpc.aio.secure_channel(settings.target, settings.credentials, options=OPTIONS)
        self.methods = bind_methods(self.channel)

    def is_ours(self) -> bool:
        """Whether this process and this loop opened it."""
        return self._pid == os.getpid() and self._loop is asyncio.get_running_loop()

    async def wait_until_ready(self) -> None:
        """Waits for the daemon; ServerUnavailable if it does not answer in time."""
        timeout_s = self._settings.ready_timeout_s
        try:
            await asyncio.wait_for(self.channel.channel_ready(), timeout_s)
        except TimeoutError:
            await self.channel.close()
            raise unreachable(self._settings, f"waited {timeout_s:g} s") from None


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
