"""`open` and `open_async`: a client whose daemon is started if none runs."""

from __future__ import annotations

import asyncio
import difflib
import os
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from types import NoneType
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, TypeVar, Unpack

from stateward._frames import AT_THE_CALLER, at_the_caller, ends_at_the_caller
from stateward.durations import Duration, seconds
from stateward.opening.keeper import Keeper
from stateward.opening.places import find_place
from stateward.opening.settings import read_asked

if TYPE_CHECKING:
    import grpc

    from stateward._async.client import AsyncClient
    from stateward._sync.client import Client
    from stateward.migrations import Migrations

C = TypeVar("C", "Client", "AsyncClient")
IDLE_EXIT = timedelta(minutes=15)
START_S = 30.0
"""How long `open` waits for the daemon, unless `connect_timeout` says otherwise. A start takes about half a second."""
RETRY_S = 30.0


class ClientOptions(TypedDict, total=False):
    """The options of a client, as `Client` takes them."""

    connect_timeout: Duration | None
    call_timeout: Duration
    retry_timeout: Duration
    credentials: grpc.ChannelCredentials | None
    tls_ca: str | os.PathLike[str] | None
    tls_cert: str | os.PathLike[str] | None
    tls_key: str | os.PathLike[str] | None
    token: str | None
    take_over: bool
    blob_threshold: int
    migrations: Migrations | None
    ephemeral: Iterable[str]
    holder: str | None


def open(  # noqa: A001  the name that programs use, as with `gzip.open`
    target: str | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    namespace: str = "default",
    idle_exit: Duration = IDLE_EXIT,
    archive: str | os.PathLike[str] | None = None,
    start: bool = True,
    **client_options: Unpack[ClientOptions],
) -> Client:
    """Returns a client of the daemon of a data directory, and starts the daemon if it does not run.

    With a `target`, or STATEWARD_TARGET, it starts nothing, and is `Client(target)`.

    Otherwise there is one daemon for each data directory: `data_dir`, else STATEWARD_DATA_DIR, else
    `$XDG_DATA_HOME/stateward`. All processes that open it have the same daemon, whoever started it. The daemon keeps
    running when this process ends, and ends by itself when no client of `open` lives and no call ran for `idle_exit`
    (0 = never). If it is killed, the next call starts it again, once, and succeeds within `retry_timeout`.

    `archive` is the URL or directory of the archive. What the first start asks for is kept in
    `<data_dir>/daemon.toml`. A later `open` may leave `archive` out, and raises OtherSettings if it names another one.

    `start=False` uses a daemon that runs, and raises ServerUnavailable if there is none.

    `client_options` are those of `Client`. `connect_timeout` is also how long `open` waits for the daemon, 30 s by
    default. Close the client, or use it as a context manager: while it is open, it keeps the daemon from ending.

    Raises CannotStart with one line that says why the daemon cannot be started or used.
    """
    from stateward._sync.client import Client  # noqa: PLC0415  `import stateward` must not load it

    with AT_THE_CALLER:
        _check_names("open", client_options)
        if target or os.environ.get("STATEWARD_TARGET"):
            return Client(target, namespace=namespace, **client_options)
        keeper = _make_keeper(data_dir, idle_exit, archive, start, client_options)
        keeper.begin()
        return keep_for(keeper, lambda: Client(keeper.target, namespace=namespace, **client_options))


def open_async(
    target: str | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    namespace: str = "default",
    idle_exit: Duration = IDLE_EXIT,
    archive: str | os.PathLike[str] | None = None,
    start: bool = True,
    **client_options: Unpack[ClientOptions],
) -> Opening:
    """Does for asyncio what `open` does: `async with stateward.open_async() as client`, or
    `client = await stateward.open_async()`."""
    with AT_THE_CALLER:
        _check_names("open_async", client_options)
    has_target = bool(target or os.environ.get("STATEWARD_TARGET"))
    keeper = None if has_target else _make_keeper(data_dir, idle_exit, archive, start, client_options)
    return Opening(keeper, target, namespace, client_options)


@ends_at_the_caller
class Opening:
    """An AsyncClient that is about to be made."""

    def __init__(self, keeper: Keeper | None, target: str | None, namespace: str, options: ClientOptions) -> None:
        self._keeper, self._target, self._namespace, self._options = keeper, target, namespace, options
        self._client: AsyncClient | None = None

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncClient:
        self._client = await self._open()
        return self._client

    def __enter__(self) -> NoReturn:
        raise TypeError("open_async is for asyncio: use `async with stateward.open_async()`, or stateward.open()")

    def __exit__(self, *error: object) -> None:
        """Only for the error of `__enter__`."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            raise AttributeError(
                f"this is no client yet: `async with stateward.open_async() as client`, or `client = await "
                f"stateward.open_async()`; then use client.{name}"
            )

    async def __aexit__(self, *error: object) -> None:
        if self._client is not None:
            await self._client.close()

    @at_the_caller
    async def _open(self) -> AsyncClient:
        from stateward._async.client import AsyncClient  # noqa: PLC0415

        keeper = self._keeper
        if keeper is None:
            return AsyncClient(self._target, namespace=self._namespace, **self._options)
        beginning = asyncio.ensure_future(asyncio.to_thread(keeper.begin))
        try:
            await asyncio.shield(beginning)
        except asyncio.CancelledError:
            beginning.add_done_callback(lambda done: _forget(done, keeper))
            raise
        return keep_for(keeper, lambda: AsyncClient(keeper.target, namespace=self._namespace, **self._options))


_OWN = ("target", "data_dir", "namespace", "idle_exit", "archive", "start")


def _check_names(function: str, options: ClientOptions) -> None:
    """Raises TypeError for an option that neither `open` nor a client has. The error names what was called, and the
    option that may be meant."""
    names = (*_OWN, *ClientOptions.__optional_keys__)
    for name in options:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            raise TypeError(f"{function}() has no option {name!r}" + (f"; did you mean {near[0]}?" if near else ""))


def _forget(beginning: asyncio.Future[None], keeper: Keeper) -> None:
    with suppress(BaseException):
        beginning.exception()
    keeper.release()


def _make_keeper(
    data_dir: str | os.PathLike[str] | None,
    idle_exit: Duration,
    archive: str | os.PathLike[str] | None,
    start: bool,
    options: ClientOptions,
) -> Keeper:
    for name, given in {"data_dir": data_dir, "archive": archive}.items():
        if not isinstance(given, (str, os.PathLike, NoneType)):
            raise TypeError(f"{name} takes a path{' or a URL' if name == 'archive' else ''}, not {given!r:.100}")
    connect_timeout = options.get("connect_timeout")
    return Keeper(
        find_place(data_dir),
        read_asked(archive),
        idle_exit_s=seconds(idle_exit, "idle_exit"),
        may_start=start,
        patience_s=seconds(START_S if connect_timeout is None else connect_timeout, "connect_timeout"),
        revive_s=seconds(options.get("retry_timeout", RETRY_S), "retry_timeout"),
        has_credentials=options.get("credentials") is not None,
    )


def keep_for(keeper: Keeper, make: Callable[[], C]) -> C:
    """Returns the client that `make` makes, with its keeper."""
    try:
        client = make()
    except BaseException:
        keeper.release()
        raise
    session = client._session
    session.settings = replace(session.settings, keeper=keeper, waits_for_socket=True)
    return client
