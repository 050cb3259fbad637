# Generated from stateward/_async/client.py by client/generate.py. Do not edit.
"""The blocking client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Literal, Self, Unpack, overload

from stateward._frames import ends_at_the_caller
from stateward._io.blocking.session import Session
from stateward._io.blocking.stream import Stream
from stateward._io.channel import Settings
from stateward._io.target import resolve_target
from stateward._io.tls import resolve_tls
from stateward._io.token import resolve_token
from stateward._operations import handoff, leases, migration_run, reading, saving, threads
from stateward._operations.handoff import WAIT_S
from stateward._operations.holding import session_key_of
from stateward._operations.listing import ThreadList
from stateward._operations.reading import CheckpointFilters
from stateward._operations.saving import PreparedSave
from stateward._operations.signals import SignalReader
from stateward._operations.steps import ThreadRef, new_request_id
from stateward._operations.streams import WatchReader, verify
from stateward._sync.archive import Archive
from stateward._sync.boards import Board
from stateward._sync.leases import HeldLease
from stateward._sync.records import Records
from stateward._sync.thread import TakenThread, Thread
from stateward.admin import Compaction, Diagnoses, DrainResult, Rekeyed, ServerInfo, Stats, VerifyProgress
from stateward.arguments import function, instance, several, text
from stateward.blobs import DEFAULT_THRESHOLD_BYTES
from stateward.durations import Duration, seconds
from stateward.events import Event
from stateward.handoff import Handoff
from stateward.migrations import Migrations, Report
from stateward.models import Checkpoint, Durability, HeldThread, Status, ThreadFilters, ThreadInfo
from stateward.options import ThreadOptions
from stateward.signals import Wake

if TYPE_CHECKING:
    import grpc

CONNECT_S = 10.0


@ends_at_the_caller
class Client:
    """A connection to the daemon beside this process, for one namespace.

    `target` is `unix:///path`, a bare path or host:port. None looks for the socket where the daemon puts it by default.

    The client connects at the first call, and waits up to `connect_timeout` for the daemon; then the call raises
    ServerUnavailable. None = 10 s, but no wait for a socket that does not exist: give the time if the daemon starts
    beside the program. Later calls are repeated for up to `retry_timeout` while the daemon is away. That is safe,
    because every write carries a request id. Each attempt may take `call_timeout`; then the call raises
    DeadlineExceeded.

    `token` goes with every call, to a daemon that asks for one. None = the first token in the file that
    STATEWARD_TOKEN_FILE names, which is read again when it changes.

    `tls_ca` is for a daemon's port with TLS: a file with the CA of its certificate. `tls_cert` and `tls_key` are the
    client's own certificate and key, for a daemon that asks for one. All are PEM, and are read again when they change.
    None = the files that STATEWARD_TLS_CA, STATEWARD_TLS_CERT and STATEWARD_TLS_KEY name; without a CA the client
    speaks plain text. `credentials` are gRPC's own, for whom files do not suit.

    A write to a thread that another sidecar holds waits up to `retry_timeout` until the thread is free, if that sidecar
    seems to be dead. It raises NotOwner if that sidecar is alive, or if the wait takes too long. With `take_over` the
    write takes the thread instead. That is for supervisors which know that the old machine is dead: if its sidecar is
    alive, it is fenced, and what it had not archived becomes an orphan.

    Values of more than `blob_threshold` bytes become blobs: they are stored apart from the state, and read when they
    are used (0 = none). Put data that grows step by step into a log, because a blob is written anew whenever its value
    changes.

    `migrations` bring states of older schemas up to date when they are read. `ephemeral` names slots that are never
    saved; a name that ends in "/" means all slots that begin with it.

    `holder` names this agent across restarts, such as "worker-3". A new process with the same name takes over at once
    the leases and claims of the old process; others get them when their terms end. Never use one name in two processes
    at a time: each would take what the other holds. A client that was made before a fork has no name in the child. None
    = a random name.
    """

    def __init__(
        self,
        target: str | None = None,
        *,
        namespace: str = "default",
        connect_timeout: Duration | None = None,
        call_timeout: Duration = 60.0,
        retry_timeout: Duration = 30.0,
        credentials: grpc.ChannelCredentials | None = None,
        tls_ca: str | PathLike[str] | None = None,
        tls_cert: str | PathLike[str] | None = None,
        tls_key: str | PathLike[str] | None = None,
        token: str | None = None,
        take_over: bool = False,
        blob_threshold: int = DEFAULT_THRESHOLD_BYTES,
        migrations: Migrations | None = None,
        ephemeral: Iterable[str] = (),
        holder: str | None = None,
    ) -> None:
        target = resolve_target(target)
        self._session = Session(
            Settings(
                target,
                namespace,
                seconds(CONNECT_S if connect_timeout is None else connect_timeout, "connect_timeout"),
                seconds(call_timeout, "call_timeout"),
                seconds(retry_timeout, "retry_timeout"),
                credentials,
                take_over,
                resolve_token(token),
                tls=resolve_tls(target, tls_ca, tls_cert, tls_key, credentials),
                waits_for_socket=connect_timeout is not None,
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
        """The gRPC target of the daemon."""
        return self._session.settings.target

    @property
    def namespace(self) -> str:
        """The namespace of this client."""
        return self._session.namespace

    # -- threads and the daemon ---------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the open streams and the connection. Closing again does nothing."""
        self._session.close()

    def thread(
        self,
        name: str,
        *,
        branch: str = "main",
        migrations: Migrations | Literal[False] | None = None,
        session_key: bytes | None = None,
    ) -> Thread:
        """Returns a handle on a thread, which need not exist. Sends nothing.

        `migrations` bring states of older schemas up to date; None = the client's migrations, False = none.

        `session_key` (16 to 64 bytes) makes a held thread, which nobody can read or write without the key. All calls of
        the handle carry it, over a connection of their own. A thread that exists and is not held is refused. Whoever
        loses the key loses the thread.
        """
        session = self._session
        if session_key is not None:
            session = session.holding(session_key_of(session_key))
        return Thread(session, session.refer(name, branch, migrations))

    def records(self, scope: str, *, create: ThreadOptions | None = None) -> Records:
        """Returns the records of a scope: small values with keys. Sends nothing.

        The scope is the thread of this name, which need not exist and needs no version. `create` are its settings if a
        write makes it. Its TTL, if it has one, counts from its first write, because a record is not a save.
        """
        return Records(self._session, self._session.refer(text(scope, "scope"), "main", False), create)

    def threads(self, **filters: Unpack[ThreadFilters]) -> Iterator[ThreadInfo]:
        """Lists the threads of the namespace, most recently changed first, page by page.

        A thread that is saved while the list is read is still listed, but may come at the end. Raises ThreadsUnreadable
        after the last thread if there are threads that cannot be opened.
        """
        pages = ThreadList(threads.list_threads(self.namespace, **filters))
        return self._session.read_list(ThreadList.next_page, pages)

    def checkpoints(self, **filters: Unpack[CheckpointFilters]) -> Iterator[Checkpoint]:
        """Lists the versions of all threads of the namespace, newest first, page by page.

        Raises ThreadsUnreadable after the last version if there are threads that cannot be opened.
        """
        pages = reading.NamespaceVersions(reading.list_checkpoints(self.namespace, "-", **filters))
        return self._session.read_list(reading.NamespaceVersions.next_page, pages)

    @property
    def archive(self) -> Archive:
        """The archive as a whole: its state, its threads, and its upkeep."""
        return Archive(self._session)

    def save_all(self, saves: Iterable[PreparedSave]) -> list[Checkpoint]:
        """Saves one version in each of several threads or branches: `save_all([a.prepare(x), b.prepare(y)])`.

        All versions are written to this disk, or none. The archive gets them thread by thread, so it may have only some
        of them if this machine is lost.
        """
        return self._session.run(saving.save_all(several(saves, "saves", "what thread.prepare returned")))

    def watch(
        self,
        *,
        after_cursor: str = "",
        include_diff: bool = False,
        labels: Mapping[str, str] | None = None,
        records: bool = False,
    ) -> Stream[Event]:
        """Streams the events of all threads of the namespace, from now on or after a cursor.

        `include_diff` adds the changes of each version. `labels` selects the threads that have them. `records`
        adds events of records. A blocking watch
        begins when this method returns, an asyncio watch when the stream is entered or first read. It continues after a
        restart of the daemon without gap or duplicate. Close the stream, or use it as a context manager.
        """
        ref = ThreadRef(self.namespace, "-", "")
        reader = WatchReader(ref, after_cursor=after_cursor, include_diff=include_diff, labels=labels, records=records)
        return self._session.watch(reader)

    def server_info(self) -> ServerInfo:
        """Returns the version, limits and features of the daemon."""
        return self._session.run(threads.server_info(self.namespace))

    def stats(self) -> Stats:
        """Returns counts and sizes of the daemon."""
        return self._session.run(threads.stats())

    def diagnose(self, *, probe_bucket: bool = True) -> Diagnoses:
        """Lets the daemon examine itself and its machine: disk, space, keys, bucket, clock, limits. Takes some seconds.

        `probe_bucket` also proves that the bucket honours conditional writes, which takes about ten requests.
        """
        return self._session.run(threads.diagnose(probe_bucket))

    def verify(self, thread: str | None = None, *, deleted_keys: bool = False) -> Stream[VerifyProgress]:
        """Reads the stored records of this namespace, or of one thread, and streams what is wrong with them.

        With `deleted_keys` it returns instead the deleted threads that the daemon's disk remembers, and whether a key
        of each is still there.
        """
        return self._session.open(verify(self.namespace, thread or "", deleted_keys=deleted_keys))

    def compact(self) -> Compaction:
        """Lets the daemon write its data file anew, without freed space, and overwrite and remove the old one.

        Agents go on saving meanwhile. It needs as much free space as the data take.
        """
        return self._session.run(threads.compact())

    def rekey(self, thread: str) -> Rekeyed:
        """Gives a thread another data key, under another uid: all of it is sealed anew, and the old key is destroyed.

        Versions, branches, tags, records, effects, signals, blobs, leases and claims stay as they are. Digests change,
        so a program that is in the middle of a save gets VersionMismatch, or UidMismatch, and reads the thread again.
        Other calls on the thread wait meanwhile.
        """
        return self._session.run(threads.rekey(self.namespace, thread))

    # -- many threads -------------------------------------------------------------------------------------------------

    def migrate(
        self,
        migrations: Migrations | None = None,
        *,
        dry_run: bool = False,
        threads: Iterable[str] | None = None,
        on_progress: Callable[[str, Report], None] = lambda *_: None,
    ) -> Report:
        """Migrates the heads of all branches of all threads of the namespace, or of the given threads.

        `migrations` are the client's by default. `dry_run` migrates in memory only. It cannot judge threads that
        another sidecar wrote last, and counts them as `remote`. `on_progress(thread, report)` is called after each
        thread.

        Agents may go on saving meanwhile: a thread that is saved in between is tried again. Current threads are
        skipped, so an interrupted run can be repeated. The report names the branches that could not be migrated; they
        stay unchanged. The TTL of a finished thread starts again with its new version. Only threads on this daemon's
        disk are migrated.
        """
        chosen = migrations if migrations is not None else self._session.migrations
        if chosen is None:
            raise TypeError("migrate takes migrations, as the client has none")
        instance(chosen, "migrations", Migrations, "Migrations")
        function(on_progress, "on_progress")
        names = None if threads is None else several(threads, "threads", "names")
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
        """Counts the threads of the namespace by status: {Status.FAILED: 3, …}. Reads an index only.

        Raises ThreadsUnreadable, with the counts, if threads are known that cannot be opened.
        """
        counts: dict[Status | int, int] = self._session.run(
            threads.count_threads(self.namespace, updated_within, updated_after, updated_before)
        )
        return counts

    def held_threads(self) -> list[HeldThread]:
        """Lists the held threads of the namespace, which no other list shows: uid, size and times of each, and no name.
        Needs no session key."""
        found: list[HeldThread] = self._session.run(threads.held_threads(self.namespace))
        return found

    # -- boards and locks ---------------------------------------------------------------------------------------------

    def board(self, name: str, *, agent: str = "") -> Board:
        """Returns a thread that several agents write, each under its own name. Sends nothing."""
        return Board(self.thread(name), agent)

    def lock(
        self, name: str, *, term: Duration = 30.0, wait: Duration = 0.0, take_over: bool = False,
        holder: str | None = None,
    ) -> HeldLease:  # fmt: skip
        """Returns a named lock among all clients of the namespace, to be used as a context manager.

        Raises LeaseHeld if another client holds the lock for longer than `wait`, at most an hour. The lock is free
        `term` after the last renewal of a holder that died. `take_over` takes it from a holder that is known to be
        dead. `holder` names the holder; by default that is the client's `holder`.

        The lock is the lease of the thread `locks/<name>`. It survives the daemon, and with an archive the machine.
        Another machine may take it once its sidecar has archived nothing of that thread for `--archive-lease` (10 s)
        and the term of the last archived holder is over. Until then the call raises NotOwner after `wait`.

        Holding a lock archives nothing, so a live holder may lose the lock to another machine without knowing. If
        clients of several machines use a lock, let the resource that it protects refuse every `token` below the newest
        that it has seen. Tokens only grow, on all machines, until the thread `locks/<name>` is deleted.
        """
        ref = ThreadRef(self.namespace, leases.LOCKS + text(name, "the name of a lock"), "main")
        return HeldLease(self._session, ref, term=term, wait=wait, take_over=take_over, holder=holder)

    # -- questions and signals ----------------------------------------------------------------------------------------

    def waiting(self, *, labels: Mapping[str, str] | None = None) -> Iterator[ThreadInfo]:
        """Lists the threads that wait for something, most recently changed first.

        `info.question` and `info.wait_id` say what a thread waits for, and `info.pending_signals` counts the signals
        that its agent has not acknowledged.
        """
        return self.threads(status=Status.WAITING, labels=labels)

    def watch_signals(self, *, labels: Mapping[str, str] | None = None) -> Stream[Wake]:
        """Streams the threads whose agents have signals to handle: first the present ones, then each to which a signal
        comes.

        The stream continues after a restart of the daemon and misses nothing. A signal that came to the archive through
        another sidecar appears when this sidecar next reads the thread; `stateward run` does that regularly. Close the
        stream, or use it as a context manager.
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
        """Takes a thread that another agent handed over, and returns its handle; `handoff` of the handle has what its
        sender left.

        With `to` it takes the thread that has waited longest for `to`, and returns None if there is none. Exactly one
        agent gets a thread; the others get HandoffTaken, or with `to` another thread. Raises NoHandoff if the thread is
        not handed to anybody.

        `taker` names the agent that takes, so that it gets the thread again after a crash: with `to` until its first
        save, by name also later. The default is the client's `holder`, or else a random name.

        With an archive the call returns when the taking is archived. Then no other machine finds the handoff open if
        this one is lost. Raises NotArchivedYet if that takes too long; the handoff is then open again.
        `durability="committed"` does not wait for the archive.

        `wait` is how long to wait while the sender still holds the thread. After it the call raises LeaseHeld, or
        NotOwner if the sender is on another machine. With `to`, other threads are taken first.

        `to` finds only threads on this sidecar's disk. A thread that was handed over on another machine is taken by its
        name, which its sender must tell.
        """
        known = taker or self._session.identity.name
        taking = handoff.Taking.of(known or f"unnamed-{new_request_id()}", wait, durability)
        if (thread is None) == (to is None):
            raise TypeError("take_handoff takes a thread or to=")
        if thread is not None:
            found: Handoff | None = self._session.run(handoff.take(self._session.refer(thread), taking))
        else:
            assert to is not None
            text(to, "to")
            request = handoff.waiting(self.namespace, taken_too=known is not None)
            found = self._session.run(handoff.take_any(self._session.refer, request, to, taking))
        if found is None:
            return None
        return TakenThread(self._session, self._session.refer(found.thread, migrations=None), found)

    def handoffs(self, to: str | None = None) -> Iterator[Handoff]:
        """Lists the open handoffs to one agent, or to all, newest first.

        Includes only threads on this sidecar's disk, and none that was handed over on another machine.
        """
        if to is not None:
            text(to, "to")
        read = partial(handoff.read_open, self._session.refer, to)
        return self._session.read_list(read, handoff.waiting(self.namespace))

    # -- the machine --------------------------------------------------------------------------------------------------

    def drain(self, *, grace: Duration | None = None, undo: bool = False) -> DrainResult:
        """Prepares this machine for removal: the daemon archives what is committed, and gives every thread up.

        The daemon reports that it is not ready and refuses new work with ShuttingDown. Reads continue. `grace` is how
        long archiving may take, at most an hour; None = the daemon's --grace. If `result.dirty_threads` is 0, the
        machine can be removed; otherwise call again. `undo` ends the drain, as a restart does.
        """
        return self._session.run(threads.drain(grace, undo))


@ends_at_the_caller
class SignalStream(Stream[Wake]):
    """Streams the threads that have signals already, then each thread to which a signal comes."""

    def __init__(self, session: Session, reader: SignalReader) -> None:
        super().__init__(session, session.reading(reader))
        self._run = session.run
        self._reader = reader
        self._has_listed = False

    def _pump(self) -> bool:
        goes_on = super()._pump()
        if goes_on and not self._has_listed:
            waiting = self._run(self._reader.waiting())
            self._reading.ready.extendleft(reversed(waiting))
            self._has_listed = True
        return goes_on
