"""What the sessions of both clients share: the settings, the connections and the open streams of one client.

Every part of a client reaches the daemon through the session: threads, writers, leases and streams hold the session,
never the client. `aio.session` has the asyncio form; the blocking form is generated from it.
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
    """Where a connection can be used. A gRPC channel belongs to one process, and with asyncio to one event loop."""

    pid: int
    loop: AbstractEventLoop | None = None


class ConnectionLike(Protocol):
    """A channel that can say whether it is open."""

    @property
    def is_open(self) -> bool:
        """Whether calls can be made."""
        ...


class SessionBase(Generic[K]):
    """Settings, connections and open streams. The subclasses connect and wait."""

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
        """The name under which the client holds leases and claims."""
        return self.identity.holder

    def refer(
        self, name: str, branch: str = "main", migrations: Migrating | Literal[False] | None = False
    ) -> ThreadRef:
        """Returns the reference to a branch of a thread. `migrations`: None = those of the client, False = none."""
        chosen = self.migrations if migrations is None else (migrations or None)
        blobs = self._blobs_of(name)
        return ThreadRef(self.namespace, name, branch, blobs=blobs, migrations=chosen, ephemeral=self._ephemeral)

    def connected(self) -> K:
        """Returns the connection of this process and event loop, and opens one if there is none."""
        connection = self._connections.get(self._place())
        return connection if connection is not None and connection.is_open else self._reconnected()

    def _reconnected(self) -> K:
        if self._lock_pid != os.getpid():  # a thread that exists only in the parent may hold the lock of a forked child
            self._lock, self._lock_pid = threading.Lock(), os.getpid()
        with self._lock:
            if self._closed:
                raise RuntimeError("this client is closed")
            # Connections of closed event loops go. Those of a parent process stay: a forked child never closes them.
            self._connections = {
                place: each for place, each in self._connections.items() if each.is_open or place.pid != os.getpid()
            }
            if self._place() not in self._connections:
                self._connections[self._place()] = self._connect()
            return self._connections[self._place()]

    @property
    def connection(self) -> K | None:
        """The open connection; None if there is none or the client is being closed."""
        return self._connections.get(self._place())

    def patience_s(self) -> float:
        """Returns for how many seconds a call is retried while the daemon is away."""
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
        """Returns the operation with its calls retried as the settings say."""
        if self.settings.take_over:  # the client takes a thread that another sidecar holds, and never waits for it
            return with_retries(with_take_over(operation), self.patience_s)
        return with_retries(operation, self.patience_s, lambda: self.settings.retry_timeout_s)

    def reading(self, reader: Reader[T]) -> Reading[T]:
        """Returns the state of a stream that is reopened for as long as the settings say."""
        return Reading(reader, self.patience_s)
