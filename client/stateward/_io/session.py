"""What the sessions of both clients share: the settings, the connection and the open streams of one client.

A session is what every part of a client needs to reach the daemon: threads, writers, leases and streams hold the
session, never the client. `aio` and `blocking` have its two forms, which differ in how they wait.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, Protocol, TypeVar

from stateward._io.channel import Settings
from stateward._operations.holder import Holder, Identity
from stateward._operations.ownership import with_take_over
from stateward._operations.steps import Migrating, Operation, ThreadRef, with_retries
from stateward._operations.streams import Reader, Reading
from stateward.blobs import BlobAccess, BlobPolicy

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

T = TypeVar("T")
K = TypeVar("K", bound="ConnectionLike")


class Place(NamedTuple):
    """Where a connection can be used: gRPC's channels belong to one process, and with asyncio to one event loop."""

    pid: int
    loop: AbstractEventLoop | None = None


class ConnectionLike(Protocol):
    """A channel that knows whether it can be used."""

    @property
    def is_open(self) -> bool:
        """Whether calls can be made."""
        ...


class SessionBase(Generic[K]):
    """Settings, connection and open streams. A subclass connects and waits."""

    def __init__(
        self,
        settings: Settings,
        *,
        holder: str | None,
        blob_threshold: int,
        migrations: Migrating | None,
        ephemeral: Iterable[str],
    ) -> None:
        if isinstance(ephemeral, str):
            raise TypeError("ephemeral takes a list of names, not one name")
        self.settings = settings
        self.identity = Identity(holder)
        self.has_met_daemon = False
        self.blob_policy = BlobPolicy(blob_threshold)
        self.migrations = migrations
        self._ephemeral = tuple(ephemeral)
        self._closed = False
        self._lock, self._lock_pid = threading.Lock(), os.getpid()
        self._connections: dict[Place, K] = {}

    @property
    def namespace(self) -> str:
        """The namespace of all threads of the client."""
        return self.settings.namespace

    @property
    def holder(self) -> Holder:
        """Who the client is to leases and claims."""
        return self.identity.holder

    def refer(
        self, name: str, branch: str = "main", migrations: Migrating | Literal[False] | None = False
    ) -> ThreadRef:
        """Names a branch of a thread. `migrations`: None = those of the client, False = none."""
        chosen = self.migrations if migrations is None else (migrations or None)
        blobs = self._blobs_of(name)
        return ThreadRef(self.namespace, name, branch, blobs=blobs, migrations=chosen, ephemeral=self._ephemeral)

    def connected(self) -> K:
        """The connection of this process and event loop. Opens one if there is none."""
        connection = self._connections.get(self._place())
        return connection if connection is not None and connection.is_open else self._reconnected()

    def _reconnected(self) -> K:
        if self._lock_pid != os.getpid():  # in a forked child a thread that does not exist there may hold the lock
            self._lock, self._lock_pid = threading.Lock(), os.getpid()
        with self._lock:
            if self._closed:
                raise RuntimeError("this client is closed")
            # Those of event loops that are closed go. Those of a parent stay: a forked child never closes its channels.
            self._connections = {
                place: each for place, each in self._connections.items() if each.is_open or place.pid != os.getpid()
            }
            if self._place() not in self._connections:
                self._connections[self._place()] = self._connect()
            return self._connections[self._place()]

    @property
    def connection(self) -> K | None:
        """The connection that is open; None if there is none, or the client is being closed."""
        return self._connections.get(self._place())

    def patience_s(self) -> float:
        """For how many seconds a call is tried again while the daemon is away."""
        return self.settings.retry_timeout_s if self.has_met_daemon else self.settings.connect_timeout_s

    def _place(self) -> Place:
        raise NotImplementedError

    def _connect(self) -> K:
        raise NotImplementedError

    def _blobs_of(self, name: str) -> BlobAccess:
        raise NotImplementedError

    def _disconnected(self) -> list[K]:
        """Refuses further calls, and returns the connections that the caller must close."""
        self._closed = True
        with self._lock:
            return [self._connections.pop(place) for place in list(self._connections) if place.pid == os.getpid()]

    def with_retries(self, operation: Operation[T]) -> Operation[T]:
        """The operation with its calls tried again, as the settings say."""
        if self.settings.take_over:  # the client takes a thread that another sidecar holds, and never waits for it
            return with_retries(with_take_over(operation), self.patience_s)
        return with_retries(operation, self.patience_s, lambda: self.settings.retry_timeout_s)

    def reading(self, reader: Reader[T]) -> Reading[T]:
        """A reader that is begun again as long as the settings say."""
        return Reading(reader, self.patience_s)
