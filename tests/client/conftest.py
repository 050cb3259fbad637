"""Every test runs on both clients, against the fake and against the real daemon where there is one."""

from __future__ import annotations

import asyncio
import inspect
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
from tests.client.fake_server import FakeServer
from tests.daemon.process import Pair, run_pair, started_with

from stateward import AsyncClient, Client
from stateward.testing import Daemon, missing_daemon, run_daemon


class Blocking:
    """An asynchronous object with its methods made blocking, so that one test body serves both clients."""

    def __init__(self, inner: Any, runner: asyncio.Runner) -> None:
        self._inner, self._runner = inner, runner

    def _finish(self, result: Any) -> Any:
        if inspect.iscoroutine(result):
            result = self._runner.run(result)
        if type(result).__module__.startswith(("stateward._async", "stateward._io.aio")) or inspect.isasyncgen(result):
            return Blocking(result, self._runner)
        return result

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return (lambda *a, **k: self._finish(found(*a, **k))) if inspect.ismethod(found) else self._finish(found)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._inner(*arguments, **options)

    def __iter__(self) -> Blocking:
        return self

    def __next__(self) -> Any:
        try:
            return self._runner.run(_anext(self._inner))
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Self:
        self._runner.run(self._inner.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.run(self._inner.__aexit__(*error))


async def _anext(iterator: Any) -> Any:
    return await iterator.__anext__()


@pytest.fixture(scope="session")
def real_daemon() -> Iterator[Daemon | str]:
    """The real daemon, or why there is none."""
    reason = missing_daemon()
    if reason:
        yield reason
        return
    try:
        with run_daemon() as daemon:
            yield daemon
    except RuntimeError as error:
        yield f"stateward_sidecar cannot be started: {str(error)[-300:]}"


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two sidecars that share an archive, for tests that harm neither."""
    yield from _make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def own_pair(tmp_path: Path) -> Iterator[Pair]:
    """Two sidecars that may be killed, with a bucket that may be harmed."""
    yield from _make_pair(tmp_path)


@pytest.fixture
def impatient_pair(tmp_path: Path) -> Iterator[Pair]:
    """The same, of sidecars that give up a request to the bucket after half a second."""
    with started_with({"ARCHIVE_FAULTS_PATIENCE_S": "0.5"}):
        yield from _make_pair(tmp_path)


def _make_pair(directory: Path) -> Iterator[Pair]:
    if reason := missing_daemon():
        pytest.skip(reason)
    with run_pair(directory) as made:
        yield made


@pytest.fixture
def chosen_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wire that a client takes by itself, also in `make test-grpc`."""
    monkeypatch.delenv("STATEWARD_WIRE", raising=False)


@pytest.fixture(params=["frames", "grpc"])
def each_wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The wire that clients speak; the other tests take frames where there are some."""
    monkeypatch.setenv("STATEWARD_WIRE", request.param)
    return str(request.param)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of a thread that no other test uses."""
    return f"t{abs(hash(request.node.nodeid)) % 10**9}"


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with tempfile.TemporaryDirectory(prefix="sw-", dir="/tmp") as directory:
        server = FakeServer(f"unix://{Path(directory, 's.sock')}")
        yield server
        server.kill()


@pytest.fixture(params=["fake", "real"])
def server(request: pytest.FixtureRequest) -> Any:
    """What the clients talk to: has `target`, `kill()` and `start()`."""
    if request.param == "fake":
        return request.getfixturevalue("fake")
    daemon = request.getfixturevalue("real_daemon")
    if isinstance(daemon, str):
        pytest.skip(daemon)
    return daemon


def streaming(target: str, **options: Any) -> AsyncClient:
    """An asyncio client whose small calls go over a stream from the first one on. The blocking one calls by itself."""
    client = AsyncClient(target, **options)
    client._session.settings = replace(client._session.settings, streams_beside=0)
    return client


def make_opener(kind: str) -> Iterator[Callable[..., Any]]:
    with asyncio.Runner() as runner:
        opened: list[Any] = []

        def open_client(target: str, **options: Any) -> Any:
            client = Client(target, **options) if kind == "blocking" else Blocking(streaming(target, **options), runner)
            opened.append(client)
            return client

        yield open_client
        for client in opened:
            client.close()


@pytest.fixture(params=["blocking", "asyncio"])
def open_client(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Opens clients of one kind, and closes them at the end."""
    yield from make_opener(request.param)


@pytest.fixture
def client(server: Any, open_client: Callable[..., Any], request: pytest.FixtureRequest) -> Any:
    """A client with a namespace of its own."""
    return open_client(server.target, namespace=f"ns{abs(hash(request.node.nodeid)) % 10**9}")


@pytest.fixture
def fake_client(fake: FakeServer, open_client: Callable[..., Any]) -> Any:
    """A client of the fake, for faults that only it can make."""
    return open_client(fake.target)
