# Generated from stateward/_io/aio/session.py by client/generate.py. Do not edit.
"""A session: the settings, the connections and the open streams of one blocking client.

Every part of a client reaches the daemon through the session: threads, writers, leases and streams hold the session,
never the client.
"""

from __future__ import annotations

import copy
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, TypeVar

from stateward._frames import AT_THE_CALLER, ends_at_the_caller, hide_frames
from stateward._io import forks
from stateward._io.blocking.background import IS_ASYNC, awaited, running_loop, worked
from stateward._io.blocking.connection import Connection
from stateward._io.blocking.driving import drive
from stateward._io.blocking.stream import Stream, watching
from stateward._io.channel import Settings
from stateward._io.lastseen import LastSeen
from stateward._io.target import is_socket_missing
from stateward._operations.effects import Daemon
from stateward._operations.holder import Holder, Identity
from stateward._operations.holding import hold
from stateward._operations.ownership import with_take_over
from stateward._operations.steps import (
    Await,
    Call,
    Collect,
    Download,
    Migrating,
    Operation,
    Pause,
    Step,
    ThreadRef,
    Upload,
    Work,
    with_retries,
)
from stateward._operations.streams import BlobReader, Reader, Reading
from stateward._operations.uploads import read_request
from stateward.arguments import instance, several, text
from stateward.blobs import BlobPolicy
from stateward.errors import ServerUnavailable, StatewardError
from stateward.migrations import Migrations

T = TypeVar("T")


def checked(migrations: Migrating | None) -> Migrating | None:
    """Returns the migrations of an argument. Raises TypeError for anything else."""
    return None if migrations is None else instance(migrations, "migrations", Migrations, "Migrations")


class Session:
    """How the parts of a blocking client reach the daemon."""

    def __init__(
        self,
        settings: Settings,
        *,
        holder: str | None,
        blob_threshold: int,
        migrations: Migrating | None,
        ephemeral: Iterable[str],
    ) -> None:
        text(settings.namespace, "namespace")
        self.settings = settings
        self.identity = Identity(holder)
        self.has_met_daemon = False
        self.blob_policy = BlobPolicy(blob_threshold)
        self.migrations = checked(migrations)
        self._ephemeral = tuple(several(ephemeral, "ephemeral", "names"))
        self._last_seen = LastSeen.of(os.environ)
        self._closed = False
        self._lock, self._lock_pid = threading.Lock(), os.getpid()
        self._connections: dict[tuple[int, Any], Connection] = {}
        """By process and event loop: a gRPC channel belongs to one process, and with asyncio to one event loop."""
        self._held: weakref.WeakValueDictionary[bytes, Session] = weakref.WeakValueDictionary()
        """The sessions of held threads, by session key."""

    def holding(self, session_key: bytes) -> Session:
        """Returns the session of a held thread, whose calls carry its key. It has a connection of its own, which ends
        with this session, or with the last object that uses it."""
        held = self._held.get(session_key)
        if held is None:
            held = copy.copy(self)
            held.settings = replace(self.settings, session_key=session_key)
            held._connections, held._lock = {}, threading.Lock()
            held._held = weakref.WeakValueDictionary()
            self._held[session_key] = held
        return held

    @property
    def namespace(self) -> str:
        """The namespace of all threads of the client."""
        return self.settings.namespace

    @property
    def holder(self) -> Holder:
        """The name under which the client holds leases and claims."""
        return self.identity.holder

    @property
    def daemon(self) -> Daemon:
        """What claims know of the daemon."""
        return Daemon(self.settings.target, self.settings.call_timeout_s)

    def refer(
        self, name: str, branch: str = "main", migrations: Migrating | Literal[False] | None = False
    ) -> ThreadRef:
        """Returns the reference to a branch of a thread. `migrations`: None = those of the client, False = none."""
        text(name, "the name of a thread")
        text(branch, "the name of a branch")
        chosen = self.migrations if migrations is None else checked(migrations or None)
        blobs = ThreadBlobs(self, name)
        return ThreadRef(
            self.namespace, name, branch, blobs=blobs, migrations=chosen, ephemeral=self._ephemeral,
            has_key=bool(self.settings.session_key),
        )  # fmt: skip

    def connected(self) -> Connection:
        """Returns the connection of this process and event loop, and opens one if there is none."""
        connection = self._connections.get(self._place())
        return connection if connection is not None and connection.is_open else self._reconnected()

    def _reconnected(self) -> Connection:
        forks.check()
        if self._lock_pid != os.getpid():  # a thread that exists only in the parent may hold the lock of a forked child
            self._lock, self._lock_pid = threading.Lock(), os.getpid()
        if self.settings.keeper is not None and not self._closed:
            self.settings.keeper.hold()
        with self._lock:
            if self._closed:
                raise RuntimeError("this client is closed")
            # Connections of closed event loops go. Those of a parent process stay: a forked child never closes them.
            self._connections = {
                (pid, loop): each
                for (pid, loop), each in self._connections.items()
                if each.is_open or pid != os.getpid()
            }
            if self._place() not in self._connections:
                self._connections[self._place()] = Connection(self.settings)
            return self._connections[self._place()]

    @property
    def connection(self) -> Connection | None:
        """The open connection; None if there is none or the client is being closed."""
        return self._connections.get(self._place())

    def patience_s(self) -> float:
        """Returns for how many seconds a call is retried while the daemon is away."""
        if self.has_met_daemon:
            return self.settings.retry_timeout_s
        if not self.settings.waits_for_socket and is_socket_missing(self.settings.target):
            return 0.0
        return self.settings.connect_timeout_s

    def with_retries(self, operation: Operation[T]) -> Operation[T]:
        """Returns the operation with its calls retried as the settings say."""
        if self._last_seen is not None:
            operation = self._last_seen.watching(operation)
        if self.settings.take_over:  # the client takes a thread that another sidecar holds, and never waits for it
            return with_retries(with_take_over(operation), self.patience_s, renew=self.renew_token)
        return with_retries(operation, self.patience_s, lambda: self.settings.retry_timeout_s, self.renew_token)

    def reading(self, reader: Reader[T]) -> Reading[T]:
        """Returns the state of a stream that is reopened for as long as the settings say."""
        return Reading(reader, self.patience_s, self.renew_token)

    def renew_token(self) -> bool:
        """Reads the file of the token again. Returns whether there is one."""
        return self.settings.token is not None and self.settings.token.renew()

    def run(self, operation: Operation[T]) -> T:
        """Carries out an operation with retries."""
        try:  # adapters for frameworks call this directly
            return drive(self.with_retries(operation), self.perform)
        except Exception as error:
            hide_frames(error)
            raise

    def look(self, method: str, namespace: str, thread: str, *, again: bool) -> None:
        """Checks that the thread of a stream still has what was seen of it, before the stream is opened. Whoever opens
        it tries again."""
        if self._last_seen is not None:
            drive(self._last_seen.opening(method, namespace, thread, again=again), self.perform)

    def hear(self, namespace: str, thread: str, message: Any) -> None:
        """Notes what a message of a stream says."""
        if self._last_seen is not None:
            self._last_seen.hear(namespace, thread, message)

    def perform(self, step: Step) -> Any:
        """Carries out one step of an operation without retries."""
        try:
            return self._perform(step)
        except StatewardError as error:
            self.has_met_daemon |= isinstance(step, Call) and bool(error.reason)  # only the daemon names reasons
            if self._last_seen is not None and isinstance(error, ServerUnavailable):
                self._last_seen.doubt()
            raise

    def _perform(self, step: Step) -> Any:
        if self.settings.session_key and isinstance(step, Call | Upload):
            hold(step.request)
        match step:
            case Upload():
                answer = self.connected().upload(step.request, step.content)
                self.has_met_daemon = True
                return answer
            case Download():
                return b"".join([piece for piece in self.open(BlobReader(step.request))])  # type: ignore[arg-type]
            case Call():
                answer = self.connected().call(step.method, step.request, step.deadline_s)
                self.has_met_daemon = True
                return answer
            case Pause():
                self.connected().pause(step.seconds)
            case Await():
                return awaited(step.awaitable)
            case Collect():
                return [each for each in self.open(step.reader)]
            case Work():
                return worked(step.function)
        return None

    def open(self, reader: Reader[T], until: float | None = None) -> Stream[T]:
        """Returns a stream that opens when it is first read."""
        return Stream(self, self.reading(reader), until)

    def watch(self, reader: Reader[T]) -> Stream[T]:
        """Returns a stream of the events from now on."""
        return watching(self.open(reader))

    def read_list(self, read: Callable[[Any], Operation[list[T]]], request: Any) -> Iterator[T]:
        """Yields the items of a list, page by page. `read` takes the request and sets its next page token."""
        with AT_THE_CALLER:
            while True:
                for item in self.run(read(request)):
                    yield item
                if not request.page_token:
                    return

    def close(self) -> None:
        """Ends the open streams and the connections. Closing again does nothing."""
        for held in list(self._held.values()):
            held._close_connections()
        self._close_connections()
        if self.settings.keeper is not None:
            self.settings.keeper.release()

    def _close_connections(self) -> None:
        self._closed = True
        with self._lock:
            ours = [self._connections.pop(place) for place in list(self._connections) if place[0] == os.getpid()]
        for connection in ours:
            connection.close()

    def _place(self) -> tuple[int, Any]:
        return os.getpid(), running_loop()


@ends_at_the_caller
class ThreadBlobs:
    """Reads the blobs of a thread, for states that refer to them."""

    is_async = IS_ASYNC

    def __init__(self, session: Session, thread: str) -> None:
        self._session = session
        self._ref = ThreadRef(session.namespace, thread, "")
        self.policy = session.blob_policy

    def read(self, digest: bytes, offset: int, length: int | None) -> bytes:
        return b"".join([piece for piece in self.chunks(digest, offset, length)])

    def chunks(self, digest: bytes, offset: int, length: int | None) -> Stream[bytes]:
        return self._session.open(BlobReader(read_request(self._ref, digest, offset, length)))
