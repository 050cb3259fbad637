"""The asyncio client: a thin shell that carries out what the operations yield. The twin of `_sync`, which has the docs.

An `AsyncClient` serves one event loop at a time and opens a new channel in another one; a `State` serves one task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack

from stateward import _listing, _reading, _saving, _sync, _threads, _uploads, values
from stateward._async_archive import AsyncArchive
from stateward._async_boards import AsyncClientBoards
from stateward._async_cadence import AsyncThreadCadence
from stateward._async_drain import AsyncClientDrain
from stateward._async_effects import AsyncThreadEffects
from stateward._async_handoff import AsyncClientHandoffs, AsyncThreadHandoff
from stateward._async_io import AsyncStream, Connection, drive
from stateward._async_keeping import AsyncThreadKeeping
from stateward._async_leases import AsyncClientLocks, AsyncThreadLeasing
from stateward._async_merging import AsyncThreadMerging
from stateward._async_migrations import AsyncThreadMigration
from stateward._async_queries import AsyncFinishing, AsyncQueries
from stateward._async_signals import AsyncAsking, AsyncSignalling
from stateward._async_writer import AsyncThreadWriting
from stateward._blobs import Blob, Content
from stateward._operations import Await, Call, Download, Operation, Pause, ThreadRef, Upload, projection
from stateward._reading import CheckpointFilters
from stateward._saving import PreparedSave, SaveOptions
from stateward._shell import ClientShell, ThreadShell, documented_as
from stateward._streams import BlobReader, HistoryReader, Reader, VerifyReader, WatchReader
from stateward._threads import OptionChanges, ThreadFilters
from stateward.admin import ServerInfo, Stats, VerifyProgress
from stateward.changes import Change
from stateward.events import Event, HistoryEntry
from stateward.models import Checkpoint, Durability, PruneResult, Tag, ThreadInfo, ThreadOptions
from stateward.state import State

if TYPE_CHECKING:
    from stateward.migrations import Migrations

T = TypeVar("T")


@documented_as(_sync.Client)
class AsyncClient(
    AsyncClientHandoffs,
    AsyncClientLocks,
    AsyncSignalling,
    AsyncClientDrain,
    AsyncClientBoards,
    AsyncQueries,
    ClientShell[Connection],
):
    """A connection to the daemon beside this process, for one namespace.

    Opens at first use and waits up to `timeout` seconds for the daemon; ServerUnavailable if none answers. Later calls
    are repeated for up to `retry_timeout` seconds while the daemon is away; that is safe, as every write carries a
    request id. A write also waits that long for a thread whose sidecar seems to be dead: until its lease is over. Each
    attempt may take `deadline` seconds.

    `target` is `unix:///path`, a bare path or host:port; None finds the socket as the daemon places it.

    `take_over` is for supervisors that know that the old machine is dead: a write that is refused because another
    sidecar holds the thread (NotOwner) takes the thread over and is made once more. A sidecar that is alive after all
    is fenced by it, and what it had not archived becomes an orphan. Without it, such a write waits until the other
    sidecar was idle for a lease; NotOwner is raised if it is alive, or if that takes longer than `retry_timeout`.

    Values of more than `blob_threshold` bytes are kept apart from the state, and read with it by `hydrate`, as looking
    at a value cannot wait; choose `slots` and `logs` where that is too much. 0 = none.

    `migrations` bring states of older schemas up to date as they are read. `ephemeral` names slots that are never
    saved; a name that ends in "/" stands for all that begin so.

    `holder` names this agent across its restarts, such as "worker-3": what its former process held, claims of effects
    and leases, is then free for it at once, and for others when its term ends. Never give one name to two processes
    that live at the same time: each would take what the other holds. In a forked child a client from before the fork
    has no name. None = something random.
    """

    _connect = Connection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        connection = self._disconnected()
        for stream in list(self._streams):
            await stream.close()
        if connection is not None:
            await connection.close()

    def thread(
        self, name: str, *, branch: str = "main", migrations: Migrations | Literal[False] | None = None
    ) -> AsyncThread:
        return AsyncThread(self, self._ref(name, branch, AsyncThreadBlobs(self, name), migrations))

    def threads(self, **filters: Unpack[ThreadFilters]) -> AsyncIterator[ThreadInfo]:
        listing = _listing.ThreadList(_threads.list_threads(self.namespace, **filters))
        return self._read_list(_listing.ThreadList.next_page, listing)

    def checkpoints(self, **filters: Unpack[CheckpointFilters]) -> AsyncIterator[Checkpoint]:
        request = _reading.list_checkpoints(self.namespace, "-", **filters)
        return self._read_list(_reading.read_checkpoints, request)

    @property
    def archive(self) -> AsyncArchive:
        """Looks after the archive as a whole."""
        return AsyncArchive(self)

    async def save_all(self, saves: Iterable[PreparedSave]) -> list[Checkpoint]:
        return await self._run(_saving.save_all(list(saves)))

    def watch(
        self, *, after_cursor: str = "", include_diff: bool = False, labels: Mapping[str, str] | None = None
    ) -> AsyncStream[Event]:
        ref = ThreadRef(self.namespace, "-", "")
        return self._watch(
            WatchReader(ref, after_sequence=None, after_cursor=after_cursor, include_diff=include_diff, labels=labels)
        )

    async def server_info(self) -> ServerInfo:
        return await self._run(_threads.server_info())

    async def stats(self) -> Stats:
        return await self._run(_threads.stats())

    def verify(self, thread: str | None = None) -> AsyncStream[VerifyProgress]:
        return self._open(VerifyReader(self.namespace, thread or ""))

    async def _run(self, operation: Operation[T]) -> T:
        return await drive(self._with_retries(operation), self._perform)

    async def _perform(self, step: Call | Pause | Await) -> Any:
        match step:
            case Upload():
                answer = await self._connected().upload(step.request, step.content)  # type: ignore[arg-type]
                self._has_met_daemon = True
                return answer
            case Download():
                pieces = self._open(BlobReader(step.request))  # type: ignore[arg-type]
                return b"".join([piece async for piece in pieces])
            case Call():
                answer = await self._connected().call(step.method, step.request, step.deadline_s)
                self._has_met_daemon = True
                return answer
            case Pause():
                await asyncio.sleep(step.seconds)
            case Await():
                return await step.awaitable
        return None

    def _open(self, reader: Reader[T]) -> AsyncStream[T]:
        return AsyncStream(self, self._reading(reader))

    def _watch(self, reader: WatchReader) -> AsyncStream[Event]:
        return self._open(reader)

    async def _read_list(self, read: Callable[[Any], Operation[list[T]]], request: Any) -> AsyncIterator[T]:
        while True:
            for item in await self._run(read(request)):
                yield item
            if not request.page_token:
                return


class AsyncThreadBlobs:
    """Reads the blobs of a thread, for the states that name them."""

    is_async = True

    def __init__(self, client: AsyncClient, thread: str) -> None:
        self._client = client
        self._ref = ThreadRef(client.namespace, thread, "")
        self.policy = client._blob_policy

    async def read(self, digest: bytes, offset: int, length: int | None) -> bytes:
        return b"".join([piece async for piece in self.chunks(digest, offset, length)])

    def chunks(self, digest: bytes, offset: int, length: int | None) -> AsyncStream[bytes]:
        return self._client._open(BlobReader(_uploads.read_request(self._ref, digest, offset, length)))


@documented_as(_sync.Thread)
class AsyncThread(
    AsyncThreadHandoff,
    AsyncThreadCadence,
    AsyncThreadWriting,
    AsyncThreadLeasing,
    AsyncThreadEffects,
    AsyncAsking,
    AsyncThreadMerging,
    AsyncThreadMigration,
    AsyncThreadKeeping,
    AsyncFinishing,
    ThreadShell["AsyncClient"],
):
    """A handle on one branch of a thread. Holds no state of its own."""

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
        return await self._run(
            _reading.hydrate(
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
        return await self._run(_saving.save(self._ref, state, options))

    async def update(
        self, fn: Callable[[State], Any], *, attempts: int = 10, **options: Unpack[SaveOptions]
    ) -> Checkpoint:
        return await self._run(_saving.update(self._ref, fn, attempts, options))

    async def append(self, log: str, *entries: Any, **options: Unpack[SaveOptions]) -> Checkpoint:
        return await self._run(_saving.append(self._ref, log, entries, options))

    async def write_blob(self, source: Any, *, media_type: str = values.OCTETS) -> Blob:
        return await self._run(_uploads.write_blob(self._ref, Content.of(source), media_type, ThreadOptions()))

    async def read_blob(self, blob: Blob | bytes, offset: int = 0, length: int | None = None) -> bytes:
        request = _uploads.read_request(self._ref, _uploads.digest_of(blob), offset, length)
        data: bytes = await self._run(_uploads.read_blob(request))
        return data

    def branch(self, name: str, at: int | None = None) -> AsyncThread:
        return AsyncThread(self._client, replace(self._ref, branch=name, at=at))

    def history(
        self,
        from_version: int = 0,
        version: int | None = None,
        newest_first: bool = False,
        *,
        slots: Iterable[str] | None = None,
        logs: Mapping[str, int | None] | Iterable[str] | None = None,
    ) -> AsyncStream[HistoryEntry]:
        reader = HistoryReader(
            self._ref,
            from_version=from_version,
            version=version,
            newest_first=newest_first,
            projection=projection(slots, logs),
        )
        return self._client._open(reader)

    def checkpoints(
        self, *, branch: str = "", before: int | None = None, **filters: Unpack[CheckpointFilters]
    ) -> AsyncIterator[Checkpoint]:
        request = _reading.list_checkpoints(
            self._ref.namespace, self._ref.thread, branch=branch, before=before, **filters
        )
        return self._client._read_list(_reading.read_checkpoints, request)

    async def get(self) -> ThreadInfo:
        return await self._run(_threads.get_thread(self._ref))

    async def checkpoint(
        self, version: int | None = None, *, tag: str | None = None, checkpoint_id: str | None = None
    ) -> Checkpoint:
        return await self._run(_reading.get_checkpoint(self._ref, version, tag, checkpoint_id))

    async def diff(self, a: int, b: int | None = None) -> list[Change]:
        return await self._run(_reading.diff(self._ref, a, b))

    async def fork(
        self, new_thread: str, version: int | None = None, *, whole: bool = False, create: ThreadOptions | None = None
    ) -> AsyncThread:
        info = await self._run(_threads.fork(self._ref, new_thread, version, whole, create))
        return self._client.thread(info.name, migrations=self._ref.migrations or False)

    async def tag(self, name: str, version: int | None = None, *, expected: int | None = None) -> Tag:
        return await self._run(_threads.set_tag(self._ref, name, version, expected))

    async def delete_tag(self, name: str) -> Tag:
        return await self._run(_threads.delete_tag(self._ref, name))

    async def prune(
        self,
        *,
        versions: Iterable[int] | None = None,
        older_than: timedelta | None = None,
        keep_latest_per_branch: int | None = None,
        dry_run: bool = False,
    ) -> PruneResult:
        return await self._run(_threads.prune(self._ref, versions, older_than, keep_latest_per_branch, dry_run))

    async def update_options(self, **changes: Unpack[OptionChanges]) -> ThreadInfo:
        return await self._run(_threads.update_options(self._ref, changes))

    async def delete(
        self,
        missing_ok: bool = False,
        *,
        expected_version: int | None = None,
        durability: Durability | str | None = None,
        local_only: bool = False,
    ) -> bool:
        return await self._run(_threads.delete(self._ref, missing_ok, expected_version, durability, local_only))

    def watch(
        self,
        *,
        after_sequence: int | None = None,
        after_cursor: str = "",
        include_diff: bool = False,
        slots: Iterable[str] = (),
        logs: Iterable[str] = (),
    ) -> AsyncStream[Event]:
        reader = WatchReader(
            self._ref,
            after_sequence=after_sequence,
            after_cursor=after_cursor,
            include_diff=include_diff,
            slots=slots,
            logs=logs,
        )
        return self._client._watch(reader)

    async def _run(self, operation: Operation[T]) -> T:
        return await self._client._run(operation)
