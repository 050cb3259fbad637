"""The blocking client: a thin shell that carries out what the operations yield.

A `Client` may be shared by threads, and by forked processes (each opens its own channel); a `State` may not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack

from stateward import _listing, _reading, _saving, _threads, _uploads, values
from stateward._blobs import Blob, Content
from stateward._operations import Await, Call, Download, Operation, Pause, ThreadRef, Upload, projection
from stateward._reading import CheckpointFilters
from stateward._saving import PreparedSave, SaveOptions
from stateward._shell import ClientShell, ThreadShell
from stateward._streams import BlobReader, HistoryReader, Reader, VerifyReader, WatchReader
from stateward._sync_archive import Archive
from stateward._sync_boards import ClientBoards
from stateward._sync_cadence import ThreadCadence
from stateward._sync_drain import ClientDrain
from stateward._sync_effects import ThreadEffects
from stateward._sync_handoff import ClientHandoffs, ThreadHandoff
from stateward._sync_io import Connection, Stream, drive
from stateward._sync_keeping import ThreadKeeping
from stateward._sync_leases import ClientLocks, ThreadLeasing
from stateward._sync_merging import ThreadMerging
from stateward._sync_migrations import ThreadMigration
from stateward._sync_queries import Finishing, Queries
from stateward._sync_signals import Asking, Signalling
from stateward._sync_writer import ThreadWriting
from stateward._threads import OptionChanges, ThreadFilters
from stateward.admin import ServerInfo, Stats, VerifyProgress
from stateward.changes import Change
from stateward.events import Event, HistoryEntry
from stateward.models import Checkpoint, Durability, PruneResult, Tag, ThreadInfo, ThreadOptions
from stateward.state import State

if TYPE_CHECKING:
    from stateward.migrations import Migrations

T = TypeVar("T")


class Client(ClientHandoffs, ClientLocks, Signalling, ClientDrain, ClientBoards, Queries, ClientShell[Connection]):
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

    Values of more than `blob_threshold` bytes are kept apart from the state, and read when they are looked at (0 =
    none). What grows step by step belongs into a log: a blob is written anew whenever its value changes.

    `migrations` bring states of older schemas up to date as they are read. `ephemeral` names slots that are never
    saved; a name that ends in "/" stands for all that begin so.

    `holder` names this agent across its restarts, such as "worker-3": what its former process held, claims of effects
    and leases, is then free for it at once, and for others when its term ends. Never give one name to two processes
    that live at the same time: each would take what the other holds. In a forked child a client from before the fork
    has no name. None = something random.
    """

    _connect = Connection

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends open streams and the connection. Closing again does nothing."""
        connection = self._disconnected()
        for stream in list(self._streams):
            stream.close()
        if connection is not None:
            connection.close()

    def thread(
        self, name: str, *, branch: str = "main", migrations: Migrations | Literal[False] | None = None
    ) -> Thread:
        """A handle on a thread, which need not exist. Asks nothing of the daemon.

        `migrations` bring states of older schemas up to date; None = those of the client, False = none.
        """
        return Thread(self, self._ref(name, branch, ThreadBlobs(self, name), migrations))

    def threads(self, **filters: Unpack[ThreadFilters]) -> Iterator[ThreadInfo]:
        """The namespace's threads, the most recently changed first, read page by page.

        A thread that is saved to while the list is read is not left out: it may come at the end, out of its order.
        """
        listing = _listing.ThreadList(_threads.list_threads(self.namespace, **filters))
        return self._read_list(_listing.ThreadList.next_page, listing)

    def checkpoints(self, **filters: Unpack[CheckpointFilters]) -> Iterator[Checkpoint]:
        """Versions of all threads of the namespace, newest first, read page by page."""
        request = _reading.list_checkpoints(self.namespace, "-", **filters)
        return self._read_list(_reading.read_checkpoints, request)

    @property
    def archive(self) -> Archive:
        """Looks after the archive as a whole."""
        return Archive(self)

    def save_all(self, saves: Iterable[PreparedSave]) -> list[Checkpoint]:
        """One version in each of several threads, all or none on this disk: `save_all([a.prepare(x), b.prepare(y)])`.

        The archive gets them thread by thread, so after the loss of the machine one may be there without the other.
        """
        return self._run(_saving.save_all(list(saves)))

    def watch(
        self, *, after_cursor: str = "", include_diff: bool = False, labels: Mapping[str, str] | None = None
    ) -> Stream[Event]:
        """Events of all threads of the namespace, from now on or after a cursor. Close it, or use it with `with`.

        The blocking watch has begun when this returns, the asyncio one with `async with` (or the first step of `async
        for`). It goes on after a restart of the daemon without gap or duplicate.
        """
        ref = ThreadRef(self.namespace, "-", "")
        return self._watch(
            WatchReader(ref, after_sequence=None, after_cursor=after_cursor, include_diff=include_diff, labels=labels)
        )

    def server_info(self) -> ServerInfo:
        """Version, limits and features of the daemon."""
        return self._run(_threads.server_info())

    def stats(self) -> Stats:
        """Counts and sizes of the daemon."""
        return self._run(_threads.stats())

    def verify(self, thread: str | None = None) -> Stream[VerifyProgress]:
        """Reads stored records of this namespace (or one thread) back and tells what is wrong with them."""
        return self._open(VerifyReader(self.namespace, thread or ""))

    def _run(self, operation: Operation[T]) -> T:
        return drive(self._with_retries(operation), self._perform)

    def _perform(self, step: Call | Pause | Await) -> Any:
        match step:
            case Upload():
                answer = self._connected().upload(step.request, step.content)  # type: ignore[arg-type]
                self._has_met_daemon = True
                return answer
            case Download():
                return b"".join(self._open(BlobReader(step.request)))  # type: ignore[arg-type]
            case Call():
                answer = self._connected().call(step.method, step.request, step.deadline_s)
                self._has_met_daemon = True
                return answer
            case Pause():
                self._connected().pause(time.sleep, step.seconds)
            case Await():
                if isinstance(step.awaitable, Coroutine):
                    step.awaitable.close()  # else Python warns that nobody awaited it
                raise TypeError("a coroutine function was given: use AsyncClient, or a plain function")
        return None

    def _open(self, reader: Reader[T]) -> Stream[T]:
        return Stream(self, self._reading(reader))

    def _watch(self, reader: WatchReader) -> Stream[Event]:
        stream = self._open(reader)
        stream._pump()
        return stream

    def _read_list(self, read: Callable[[Any], Operation[list[T]]], request: Any) -> Iterator[T]:
        while True:
            yield from self._run(read(request))
            if not request.page_token:
                return


class ThreadBlobs:
    """Reads the blobs of a thread, for the states that name them."""

    is_async = False

    def __init__(self, client: Client, thread: str) -> None:
        self._client = client
        self._ref = ThreadRef(client.namespace, thread, "")
        self.policy = client._blob_policy

    def read(self, digest: bytes, offset: int, length: int | None) -> bytes:
        return b"".join(self.chunks(digest, offset, length))

    def chunks(self, digest: bytes, offset: int, length: int | None) -> Stream[bytes]:
        return self._client._open(BlobReader(_uploads.read_request(self._ref, digest, offset, length)))


class Thread(
    ThreadHandoff,
    ThreadCadence,
    ThreadWriting,
    ThreadLeasing,
    ThreadEffects,
    Asking,
    ThreadMerging,
    ThreadMigration,
    ThreadKeeping,
    Finishing,
    ThreadShell["Client"],
):
    """A handle on one branch of a thread. Holds no state of its own."""

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

    def save(self, state: State, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Writes what changed in `state` as a new version, if its version is still the branch's head.

        The state then continues from the new version. VersionMismatch leaves it as it was. NotArchivedYet says that
        the version is saved, but less durably than asked.
        """
        return self._run(_saving.save(self._ref, state, options))

    def update(self, fn: Callable[[State], Any], *, attempts: int = 10, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Hydrates, calls `fn(state)` to change it, and saves; from the start again when somebody saved in between.

        `fn` may so be called several times. VersionMismatch after `attempts` tries.
        """
        return self._run(_saving.update(self._ref, fn, attempts, options))

    def append(self, log: str, *entries: Any, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Adds entries to a log on top of whatever is the head, without reading it: never a VersionMismatch.

        The thread's status and the question that it may ask stay as they are, unless `status` says otherwise or `ack`
        names signals; so it is with `increment`, `set_slot` and boards.
        """
        return self._run(_saving.append(self._ref, log, entries, options))

    def write_blob(self, source: Any, *, media_type: str = values.OCTETS) -> Blob:
        """Writes bytes that are too large for the state, and returns what names them: put it into a slot or a log.

        `source` is bytes, a path, a file opened for reading bytes, or an iterator of bytes. A thread that does not
        exist is made. The same bytes are kept once. What no saved version names goes after a day.
        """
        return self._run(_uploads.write_blob(self._ref, Content.of(source), media_type, ThreadOptions()))

    def read_blob(self, blob: Blob | bytes, offset: int = 0, length: int | None = None) -> bytes:
        """The bytes of a blob (or of what has this SHA-256), from `offset` on; `length` None = to the end."""
        request = _uploads.read_request(self._ref, _uploads.digest_of(blob), offset, length)
        data: bytes = self._run(_uploads.read_blob(request))
        return data

    def branch(self, name: str, at: int | None = None) -> Thread:
        """A handle on another branch. One that does not exist yet starts from version `at` with its first save."""
        return Thread(self._client, replace(self._ref, branch=name, at=at))

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
            projection=projection(slots, logs),
        )
        return self._client._open(reader)

    def checkpoints(
        self, *, branch: str = "", before: int | None = None, **filters: Unpack[CheckpointFilters]
    ) -> Iterator[Checkpoint]:
        """Versions of the thread (below `before`), newest first, read page by page; of all branches unless one is
        named."""
        request = _reading.list_checkpoints(
            self._ref.namespace, self._ref.thread, branch=branch, before=before, **filters
        )
        return self._client._read_list(_reading.read_checkpoints, request)

    def get(self) -> ThreadInfo:
        """What is known about the thread; ThreadNotFound if there is none."""
        return self._run(_threads.get_thread(self._ref))

    def checkpoint(
        self, version: int | None = None, *, tag: str | None = None, checkpoint_id: str | None = None
    ) -> Checkpoint:
        """What is known about a version, without its state; without arguments about the branch's head."""
        return self._run(_reading.get_checkpoint(self._ref, version, tag, checkpoint_id))

    def diff(self, a: int, b: int | None = None) -> list[Change]:
        """The edits that lead from version `a` (0 = the empty state) to `b` (None = the head)."""
        return self._run(_reading.diff(self._ref, a, b))

    def fork(
        self, new_thread: str, version: int | None = None, *, whole: bool = False, create: ThreadOptions | None = None
    ) -> Thread:
        """Copies one version (None = the head), or the whole thread, to a new one; returns a handle on that."""
        info = self._run(_threads.fork(self._ref, new_thread, version, whole, create))
        return self._client.thread(info.name, migrations=self._ref.migrations or False)

    def tag(self, name: str, version: int | None = None, *, expected: int | None = None) -> Tag:
        """Makes or moves a tag (None = to the head). `expected` is what it must name now, 0 = must not exist."""
        return self._run(_threads.set_tag(self._ref, name, version, expected))

    def delete_tag(self, name: str) -> Tag:
        """Removes a tag and returns what it named."""
        return self._run(_threads.delete_tag(self._ref, name))

    def prune(
        self,
        *,
        versions: Iterable[int] | None = None,
        older_than: timedelta | None = None,
        keep_latest_per_branch: int | None = None,
        dry_run: bool = False,
    ) -> PruneResult:
        """Removes versions now: these, those older, or all but the newest of each branch. Give exactly one."""
        return self._run(_threads.prune(self._ref, versions, older_than, keep_latest_per_branch, dry_run))

    def update_options(self, **changes: Unpack[OptionChanges]) -> ThreadInfo:
        """Changes what is given; None clears it."""
        return self._run(_threads.update_options(self._ref, changes))

    def delete(
        self,
        missing_ok: bool = False,
        *,
        expected_version: int | None = None,
        durability: Durability | str | None = None,
        local_only: bool = False,
    ) -> bool:
        """Removes the thread for good. False if there was none, which without `missing_ok` is ThreadNotFound.

        With an archive it goes there too, which must be reached; `local_only` removes what is on this disk and leaves
        the archive alone, so that the thread can be had again from there.
        """
        return self._run(_threads.delete(self._ref, missing_ok, expected_version, durability, local_only))

    def watch(
        self,
        *,
        after_sequence: int | None = None,
        after_cursor: str = "",
        include_diff: bool = False,
        slots: Iterable[str] = (),
        logs: Iterable[str] = (),
    ) -> Stream[Event]:
        """Events of the thread: from now on, after a sequence (0 = from the beginning) or after a cursor.

        ThreadNotFound if there is no such thread; its deletion is the last event. `slots` and `logs` choose: only
        versions that change one of them, and with `include_diff` only those changes; what else happens is told as well.

        The blocking watch has begun when this returns, the asyncio one with `async with` (or the first step of `async
        for`). It goes on after a restart of the daemon without gap or duplicate. Close it, or use it with `with`.
        """
        reader = WatchReader(
            self._ref,
            after_sequence=after_sequence,
            after_cursor=after_cursor,
            include_diff=include_diff,
            slots=slots,
            logs=logs,
        )
        return self._client._watch(reader)

    def _run(self, operation: Operation[T]) -> T:
        return self._client._run(operation)
