# Generated from stateward/_async/client.py by client/generate.py. Do not edit.
"""The blocking client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Literal, Self, Unpack, overload

from stateward._io.blocking.session import Session
from stateward._io.blocking.stream import Stream
from stateward._io.channel import Settings, grpc
from stateward._io.target import resolve_target
from stateward._operations import drain, handoff, leases, migration_run, reading, saving, signals, threads
from stateward._operations.handoff import WAIT_S
from stateward._operations.listing import ThreadList
from stateward._operations.reading import CheckpointFilters
from stateward._operations.saving import PreparedSave
from stateward._operations.signals import SignalReader
from stateward._operations.steps import ThreadRef, new_request_id
from stateward._operations.streams import VerifyReader, WatchReader
from stateward._operations.threads import ThreadFilters
from stateward._sync.archive import Archive
from stateward._sync.boards import Board
from stateward._sync.leases import HeldLease
from stateward._sync.streams import SignalStream
from stateward._sync.thread import TakenThread, Thread
from stateward.admin import DrainResult, ServerInfo, Stats, VerifyProgress
from stateward.blobs import DEFAULT_THRESHOLD_BYTES
from stateward.durations import Duration, seconds
from stateward.events import Event
from stateward.handoff import Handoff
from stateward.migrations import Migrations, Report
from stateward.models import Checkpoint, Durability, Status, ThreadInfo
from stateward.signals import Wake


class Client:
    """A connection to the daemon beside this process, for one namespace.

    Opens at first use and waits up to `connect_timeout` for the daemon; ServerUnavailable if none answers. Later calls
    are repeated for up to `retry_timeout` while the daemon is away; that is safe, as every write carries a
    request id. A write also waits that long for a thread whose sidecar seems to be dead: until its lease is over. Each
    attempt may take `call_timeout`; then DeadlineExceeded.

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

    def __init__(
        self,
        target: str | None = None,
        *,
        namespace: str = "default",
        connect_timeout: Duration = 10.0,
        call_timeout: Duration = 60.0,
        retry_timeout: Duration = 30.0,
        credentials: grpc.ChannelCredentials | None = None,
        take_over: bool = False,
        blob_threshold: int = DEFAULT_THRESHOLD_BYTES,
        migrations: Migrations | None = None,
        ephemeral: Iterable[str] = (),
        holder: str | None = None,
    ) -> None:
        self._session = Session(
            Settings(
                resolve_target(target),
                namespace,
                seconds(connect_timeout, "connect_timeout"),
                seconds(call_timeout, "call_timeout"),
                seconds(retry_timeout, "retry_timeout"),
                credentials,
                take_over,
            ),
            holder=holder,
            blob_threshold=blob_threshold,
            migrations=migrations,
            ephemeral=ephemeral,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.target!r}, namespace={self.namespace!r})"

    @property
    def target(self) -> str:
        """The gRPC target at which the client looks for the daemon."""
        return self._session.settings.target

    @property
    def namespace(self) -> str:
        """The namespace of all threads of this client."""
        return self._session.namespace

    # -- threads and the daemon ---------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends open streams and the connection. Closing again does nothing."""
        self._session.close()

    def thread(
        self, name: str, *, branch: str = "main", migrations: Migrations | Literal[False] | None = None
    ) -> Thread:
        """A handle on a thread, which need not exist. Asks nothing of the daemon.

        `migrations` bring states of older schemas up to date; None = those of the client, False = none.
        """
        return Thread(self._session, self._session.refer(name, branch, migrations))

    def threads(self, **filters: Unpack[ThreadFilters]) -> Iterator[ThreadInfo]:
        """The namespace's threads, the most recently changed first, read page by page.

        A thread that is saved to while the list is read is not left out: it may come at the end, out of its order.
        """
        pages = ThreadList(threads.list_threads(self.namespace, **filters))
        return self._session.read_list(ThreadList.next_page, pages)

    def checkpoints(self, **filters: Unpack[CheckpointFilters]) -> Iterator[Checkpoint]:
        """Versions of all threads of the namespace, newest first, read page by page."""
        request = reading.list_checkpoints(self.namespace, "-", **filters)
        return self._session.read_list(reading.read_checkpoints, request)

    @property
    def archive(self) -> Archive:
        """Looks after the archive as a whole."""
        return Archive(self._session)

    def save_all(self, saves: Iterable[PreparedSave]) -> list[Checkpoint]:
        """One version in each of several threads, all or none on this disk: `save_all([a.prepare(x), b.prepare(y)])`.

        The archive gets them thread by thread, so after the loss of the machine one may be there without the other.
        """
        return self._session.run(saving.save_all(list(saves)))

    def watch(
        self, *, after_cursor: str = "", include_diff: bool = False, labels: Mapping[str, str] | None = None
    ) -> Stream[Event]:
        """Events of all threads of the namespace, from now on or after a cursor. Close it, or use it with `with`.

        The blocking watch has begun when this returns, the asyncio one with `async with` (or the first step of `async
        for`). It goes on after a restart of the daemon without gap or duplicate.
        """
        ref = ThreadRef(self.namespace, "-", "")
        return self._session.watch(
            WatchReader(ref, after_sequence=None, after_cursor=after_cursor, include_diff=include_diff, labels=labels)
        )

    def server_info(self) -> ServerInfo:
        """Version, limits and features of the daemon."""
        return self._session.run(threads.server_info())

    def stats(self) -> Stats:
        """Counts and sizes of the daemon."""
        return self._session.run(threads.stats())

    def verify(self, thread: str | None = None) -> Stream[VerifyProgress]:
        """Reads stored records of this namespace (or one thread) back and tells what is wrong with them."""
        return self._session.open(VerifyReader(self.namespace, thread or ""))

    # -- many threads -------------------------------------------------------------------------------------------------

    def migrate(
        self,
        migrations: Migrations | None = None,
        *,
        dry_run: bool = False,
        threads: Iterable[str] | None = None,
        on_progress: Callable[[str, Report], None] = lambda *_: None,
    ) -> Report:
        """Migrates the heads of all branches of all threads of the namespace, or of these threads. `migrations` are
        those of the client unless they are given.

        Runs beside agents at work: tries a thread again that is saved meanwhile, and passes over a thread that is
        current, so a run that was interrupted can be repeated. The report names what failed; that stays as it was.
        `dry_run` migrates in memory only; it cannot judge threads that another sidecar wrote last, and counts them
        apart. Calls `on_progress(thread, report)` after each thread.

        A new version of a finished thread begins its TTL anew. Looks at threads on this daemon's disk only.
        """
        chosen = migrations if migrations is not None else self._session.migrations
        if chosen is None:
            raise TypeError("migrate takes migrations, as the client has none")
        names = None if threads is None else list(threads)
        return self._session.run(
            migration_run.run(chosen, self.namespace, self._session.refer, names, dry_run, on_progress)
        )

    def count_threads(
        self,
        *,
        updated_within: Duration | None = None,
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
    ) -> dict[Status | int, int]:
        """How many threads of the namespace have each status: {Status.FAILED: 3, …}. Reads an index, no thread."""
        counts: dict[Status | int, int] = self._session.run(
            threads.count_threads(self.namespace, updated_within, updated_after, updated_before)
        )
        return counts

    # -- boards and locks ---------------------------------------------------------------------------------------------

    def board(self, name: str, *, agent: str = "") -> Board:
        """A thread that several agents write: each opens it with its own name. Asks nothing of the daemon."""
        return Board(self.thread(name), agent)

    def lock(
        self, name: str, *, term: Duration = 30.0, wait: Duration = 0.0, take_over: bool = False,
        holder: str | None = None,
    ) -> HeldLease:  # fmt: skip
        """A lock with a name, among all clients of the namespace on this daemon, to be used with `with`. LeaseHeld
        where somebody holds it, after `wait` seconds.

        It is the lease of a thread of its own, `locks/<name>`, so it survives the daemon, and with an archive the
        machine. Another machine gets it when the one that had it has archived nothing of it for `--archive-lease`
        (10 s) and the term of the last holder that is known there is over; until then NotOwner, after `wait` seconds.
        To hold a lock archives nothing, so a holder that lives may be replaced from another machine and not know it:
        where clients of several machines use a lock, let what it protects refuse a `token` below the newest it has
        seen.

        Tokens only grow, on all machines, until the thread `locks/<name>` is deleted: then they begin anew. `holder`
        names who holds it instead of the client's own name.
        """
        ref = ThreadRef(self.namespace, leases.LOCKS + name, "main")
        return HeldLease(self._session, ref, term=term, wait=wait, take_over=take_over, holder=holder)

    # -- questions and signals ----------------------------------------------------------------------------------------

    def waiting(self, *, labels: Mapping[str, str] | None = None) -> Iterator[ThreadInfo]:
        """The threads that wait for something, the most recently changed first: `question`, `wait_id`, and
        `pending_signals` where it came and no agent has taken it yet."""
        pages = ThreadList(signals.list_waiting(self.namespace, labels))
        return self._session.read_list(ThreadList.next_page, pages)

    def watch_signals(self, *, labels: Mapping[str, str] | None = None) -> Stream[Wake]:
        """Threads whose agents have something to do: first those with signals that wait already, then each to which
        one comes. Close it, or use it with `with`.

        It goes on after a restart of the daemon, and nothing is missed then. A signal that came to the archive through
        another sidecar is told when this one looks at the thread: `stateward run` does that from time to time.
        """
        return SignalStream(self._session, SignalReader(self.namespace, labels))

    # -- handing over -------------------------------------------------------------------------------------------------

    @overload
    def take_handoff(
        self,
        thread: str,
        *,
        taker: str | None = None,
        wait: Duration = ...,
        durability: Durability | str | None = ...,
    ) -> TakenThread: ...

    @overload
    def take_handoff(
        self,
        *,
        to: str,
        taker: str | None = None,
        wait: Duration = ...,
        durability: Durability | str | None = ...,
    ) -> TakenThread | None: ...

    def take_handoff(
        self,
        thread: str | None = None,
        *,
        to: str | None = None,
        taker: str | None = None,
        wait: Duration = WAIT_S,
        durability: Durability | str | None = None,
    ) -> TakenThread | None:
        """Takes over a thread that another agent handed over, and returns its handle; `handoff` of the handle says what
        its sender left. With `to`, takes the thread that has waited longest for `to`; None if there is none.

        Of all who try exactly one gets the thread; the others get HandoffTaken, or with `to` another thread. Raises
        NoHandoff if the thread is not handed to anybody. `taker` names who takes, so that the same taker gets the
        thread again after a crash: with `to` until the first save after that, by name also later. Without `taker` that
        is the client's `holder`, and without a `holder` something random.

        With an archive this returns when the taking is archived: then no other machine finds the handoff open if this
        one is lost. Raises NotArchivedYet if that takes too long; the handoff is open again then.
        `durability="committed"` saves that wait.

        The sender may still hold the thread: `wait` says for how long this waits for that. Then it raises LeaseHeld, or
        NotOwner if the sender is on another machine. With `to`, other threads are taken first.

        `to` finds only threads that this sidecar has on its disk. Take a thread that was handed over on another machine
        by its name, which its sender has to tell.
        """
        known = taker or self._session.identity.name
        taking = handoff.Taking.of(known or f"unnamed-{new_request_id()}", wait, durability)
        if (thread is None) == (to is None):
            raise TypeError("take_handoff takes a thread or to=")
        if thread is not None:
            found: Handoff | None = self._session.run(handoff.take(self._session.refer(thread), taking))
        else:
            assert to is not None
            request = handoff.waiting(self.namespace, taken_too=known is not None)
            found = self._session.run(handoff.take_any(self._session.refer, request, to, taking))
        return None if found is None else TakenThread(self._session, self._session.refer(found.thread), found)

    def handoffs(self, to: str | None = None) -> Iterator[Handoff]:
        """What is handed over and not taken, to one agent or to all; the newest first.

        Only of threads that this sidecar has on its disk: not what was handed over on another machine.
        """
        read = partial(handoff.read_open, self._session.refer, to)
        return self._session.read_list(read, handoff.waiting(self.namespace))

    # -- the machine --------------------------------------------------------------------------------------------------

    def drain(self, *, grace: Duration | None = None, undo: bool = False) -> DrainResult:
        """Prepares the machine for being taken away: the daemon is not ready any more and takes no new work
        (ShuttingDown), archives what is committed, and gives every thread up. Reads go on.

        `grace` is how many seconds that may take, at most an hour; None = the daemon's --grace. `result.dirty_threads`
        0 = the machine may go; else call again. `undo` takes work again, and so does a restart.
        """
        return self._session.run(drain.drain(grace, undo))
