"""What both clients are made of, apart from waiting."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, Unpack

from stateward._blobs import DEFAULT_THRESHOLD_BYTES, BlobAccess, BlobPolicy
from stateward._channel import Settings, grpc
from stateward._holder import Identity
from stateward._operations import Operation, ThreadRef, with_retries
from stateward._ownership import with_take_over
from stateward._saving import PreparedSave, SaveOptions
from stateward._streams import Reader, Reading
from stateward._target import resolve_target
from stateward.state import State

if TYPE_CHECKING:
    from stateward.migrations import Migrations

T = TypeVar("T")
C = TypeVar("C")
K = TypeVar("K", bound="ConnectionLike")


class ConnectionLike(Protocol):
    """A channel that knows whose it is."""

    def is_ours(self) -> bool:
        """Whether this process (and event loop) made it."""
        ...


class ClientShell(Generic[K]):
    """Settings, the connection, and open streams. A subclass says how to connect."""

    _connect: Callable[[Settings], K]

    def __init__(
        self,
        target: str | None = None,
        *,
        namespace: str = "default",
        timeout: float = 10.0,
        deadline: float = 60.0,
        retry_timeout: float = 30.0,
        credentials: grpc.ChannelCredentials | None = None,
        take_over: bool = False,
        blob_threshold: int = DEFAULT_THRESHOLD_BYTES,
        migrations: Migrations | None = None,
        ephemeral: Iterable[str] = (),
        holder: str | None = None,
    ) -> None:
        self._settings = Settings(
            resolve_target(target), namespace, timeout, deadline, retry_timeout, credentials, take_over
        )
        self._blob_policy = BlobPolicy(blob_threshold)
        if isinstance(ephemeral, str):
            raise TypeError("ephemeral takes a list of names, not one name")
        self._migrations, self._ephemeral = migrations, tuple(ephemeral)
        self._identity = Identity(holder)
        self._has_met_daemon = False
        self._closed = False
        self._lock = threading.Lock()
        self._connection: K | None = None
        self._inherited: list[K] = []  # a forked child never closes what its parent uses
        self._streams: weakref.WeakSet[Any] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.target!r}, namespace={self.namespace!r})"

    @property
    def target(self) -> str:
        """Where the daemon is dialled."""
        return self._settings.target

    @property
    def namespace(self) -> str:
        """The namespace of all threads of this client."""
        return self._settings.namespace

    def _ref(
        self, name: str, branch: str, blobs: BlobAccess, migrations: Migrations | Literal[False] | None
    ) -> ThreadRef:
        """Names a branch of a thread; `migrations` None = those of the client, False = none."""
        chosen = self._migrations if migrations is None else (migrations or None)
        return ThreadRef(self.namespace, name, branch, blobs=blobs, migrations=chosen, ephemeral=self._ephemeral)

    def _connected(self) -> K:
        """The connection of this process (and event loop), made if there is none."""
        connection = self._connection
        if connection is not None and connection.is_ours():
            return connection
        if connection is not None:
            # After a fork the lock may be held by a thread that does not exist here.
            self._lock, self._streams = threading.Lock(), weakref.WeakSet()
            self._inherited.append(connection)
            self._connection = None
        with self._lock:
            if self._closed:
                raise RuntimeError("this client is closed")
            if self._connection is None:
                self._connection = type(self)._connect(self._settings)
            return self._connection

    def _disconnected(self) -> K | None:
        """Closes the client for further calls, and gives out the connection that is to be closed."""
        self._closed = True
        with self._lock:
            connection, self._connection = self._connection, None
        return connection if connection is not None and connection.is_ours() else None

    def _patience_s(self) -> float:
        """For how long to try while the daemon is away."""
        return self._settings.retry_timeout_s if self._has_met_daemon else self._settings.ready_timeout_s

    def _with_retries(self, operation: Operation[T]) -> Operation[T]:
        if self._settings.take_over:  # what another sidecar holds is taken, and never waited for
            return with_retries(with_take_over(operation), self._patience_s)
        return with_retries(operation, self._patience_s, lambda: self._settings.retry_timeout_s)

    def _reading(self, reader: Reader[T]) -> Reading[T]:
        return Reading(reader, self._patience_s)


class ThreadShell(Generic[C]):
    """A client and the name of a branch."""

    def __init__(self, client: C, ref: ThreadRef) -> None:
        self._client = client
        self._ref = ref

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, branch={self._ref.branch!r})"

    @property
    def name(self) -> str:
        """Name of the thread."""
        return self._ref.thread

    def prepare(self, state: State, **options: Unpack[SaveOptions]) -> PreparedSave:
        """The same as `save`, to be made together with others by the client's `save_all`."""
        return PreparedSave(self._ref, state, options)


def documented_as(twin: type) -> Callable[[type[T]], type[T]]:
    """Gives the methods of a class the docstrings that its twin's have, so that each is written once."""

    def copy(kind: type[T]) -> type[T]:
        for name, method in vars(kind).items():
            if inspect.isfunction(method) and not method.__doc__:
                method.__doc__ = getattr(getattr(twin, name, None), "__doc__", None)
        return kind

    return copy
