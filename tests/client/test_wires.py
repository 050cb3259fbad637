"""The danger: a client takes the wrong wire, stays on one that its daemon does not speak any more, or loads gRPC for
nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests import warm

from stateward import AsyncClient, Client
from stateward._io import local, token
from stateward.errors import FeatureUnavailable, InvalidRequest, StateTooLarge
from stateward.testing import Daemon, run_daemon

pytestmark = pytest.mark.usefixtures("chosen_wire")


@pytest.fixture
def own() -> Iterator[Daemon]:
    """A daemon that may be replaced."""
    with run_daemon() as daemon:
        yield daemon


def use(client: Any, thread: str) -> str:
    """Works with a thread in each way that a wire has. Returns the wire."""
    here = client.thread(thread)
    here.append("log", 1)
    here.blobs.write(b"x" * 300_000)
    state = here.hydrate()
    state.slots["large"] = "y" * 200_000
    here.save(state)
    assert here.hydrate().slots["large"] == "y" * 200_000
    assert len(list(here.history())) == 2
    with here.writer() as writer:
        state.slots["large"] = "z"
        writer.save(state)
    return str(client.server_info().wire)


def test_frames_are_taken_where_they_are(real_daemon: Daemon, open_client: Any, name: str) -> None:
    assert use(open_client(real_daemon.target), name) == "frames"


def test_an_older_daemon_is_spoken_to_in_grpc(open_client: Any) -> None:
    """Without frames everything works, too."""
    with run_daemon(no_frames=True) as daemon:
        assert use(open_client(daemon.target), "t") == "grpc"


@pytest.mark.parametrize("wire", ["grpc", "frames"])
def test_a_wire_can_be_forced(
    real_daemon: Daemon, open_client: Any, monkeypatch: pytest.MonkeyPatch, name: str, wire: str
) -> None:
    monkeypatch.setenv("STATEWARD_WIRE", wire)
    assert use(open_client(real_daemon.target), name) == wire


def test_frames_that_are_forced_and_not_there(open_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said how to get them."""
    monkeypatch.setenv("STATEWARD_WIRE", "frames")
    with run_daemon(no_frames=True) as daemon:
        with pytest.raises(FeatureUnavailable, match="without --no-frames"):
            open_client(daemon.target).server_info()
        with pytest.raises(ValueError, match="needs a unix socket"):
            open_client("127.0.0.1:1").server_info()


def test_an_unknown_wire(real_daemon: Daemon, open_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEWARD_WIRE", "pigeon")
    with pytest.raises(ValueError, match="STATEWARD_WIRE=pigeon"):
        open_client(real_daemon.target).server_info()


def test_a_daemon_that_is_replaced_by_an_older_one_and_back(own: Daemon, open_client: Any) -> None:
    """The wire is judged anew at each connection, and work goes on."""
    client = open_client(own.target)
    assert use(client, "a") == "frames"
    for flags, wire in (({"no_frames": True}, "grpc"), ({}, "frames")):
        own.kill()
        own._flags = dict(flags)
        own.start()
        client.thread("a").append("log", 2)
        until = time.monotonic() + 20
        while client.server_info().wire != wire and time.monotonic() < until:
            time.sleep(0.1)
        assert use(client, f"b{wire}") == wire


RESTARTED = """
import sys
from stateward import Client
from stateward._io import local
local.AGAIN_S = 60  # for the socket that the test holds back
with Client(sys.argv[1], retry_timeout=60) as client:
    print(client.server_info().wire, flush=True)
    for _ in sys.stdin:
        break
    print(client.server_info().wire, flush=True)
    assert "grpc" not in sys.modules
"""


def test_a_daemon_whose_second_socket_comes_late_is_waited_for(own: Daemon) -> None:
    """A program that calls across a restart does not load gRPC, with which it could hardly be forked."""
    second = Path(f"{own.socket}~")
    aside = second.with_name("aside")
    command = [sys.executable, "-c", RESTARTED, own.target]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        assert agent.stdout.readline() == "frames\n"
        own.kill()
        own.start()
        second.rename(aside)
        agent.stdin.write("\n")
        agent.stdin.flush()
        time.sleep(0.5)
        aside.rename(second)
        assert agent.stdout.readline() == "frames\n"
    assert agent.returncode == 0


@contextmanager
def stranger(path: Path, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """Somebody who listens where the socket of frames would be."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(path))
        listening.listen()

        def serve() -> None:
            with suppress(OSError):
                while True:
                    made, _ = listening.accept()
                    with made, suppress(OSError):
                        answer(made)

        threading.Thread(target=serve, daemon=True).start()
        yield
        listening.shutdown(socket.SHUT_RDWR)


ANSWERS: dict[str, Callable[[socket.socket], None]] = {
    "noise": lambda made: made.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "nothing": lambda made: None,
    "another version": lambda made: made.sendall((13).to_bytes(4, "little") + bytes(12) + b'{"version":2}'),
    "no greeting": lambda made: made.sendall((4).to_bytes(4, "little") + bytes(12) + b"null"),
}


@pytest.mark.parametrize("how", ANSWERS)
def test_who_does_not_greet_as_a_daemon_is_left_for_grpc(open_client: Any, how: str) -> None:
    """A later daemon may speak a later version."""
    with run_daemon(no_frames=True) as daemon, stranger(Path(f"{daemon.socket}~"), ANSWERS[how]):
        assert use(open_client(daemon.target), "t") == "grpc"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a socket that belongs to somebody else")
def test_a_socket_that_somebody_else_made_is_left_alone(open_client: Any) -> None:
    """In a directory that all may write, anybody can make one beside gRPC's, and would get the calls and the token."""
    asked = list[bytes]()
    with run_daemon(no_frames=True) as daemon:
        path = Path(f"{daemon.socket}~")
        with stranger(path, lambda made: asked.append(made.recv(1000))):
            os.chown(path, 65533, 65533)
            assert use(open_client(daemon.target), "t") == "grpc"
        assert asked == []


AGENTS = {
    "blocking": """
from stateward import Client
with Client(target) as client:
    thread = client.thread(name)
    with thread.writer() as writer:
        state = thread.hydrate()
        state.slots["x"] = 1
        writer.save(state)
    thread.blobs.write(b"x" * 200_000)
    thread.append("log", 1)
    list(thread.history())
    with client.watch() as events:
        thread.append("log", 2)
        next(events)
    try:
        thread.hydrate(at=99)
    except Exception as error:
        assert type(error).__name__ == "VersionNotFound", error
""",
    "asyncio": """
import asyncio
from stateward import AsyncClient
async def work():
    async with AsyncClient(target) as client:
        thread = client.thread(name)
        state = await thread.hydrate()
        state.slots["x"] = 1
        await thread.save(state)
        await asyncio.gather(*(thread.append("log", n) for n in range(20)))
        await thread.blobs.write(b"x" * 200_000)
        async with client.watch() as events:
            await thread.append("log", 2)
            await anext(events)
        async with thread.writer() as writer:
            await writer.save(await thread.hydrate())
asyncio.run(work())
""",
    "saver": """
import asyncio
from langgraph.checkpoint.base import empty_checkpoint
from stateward.langgraph import StatewardSaver
config = {"configurable": {"thread_id": name, "checkpoint_ns": ""}}
with StatewardSaver(target) as saver:
    saved = saver.put(config, empty_checkpoint(), {"source": "input", "step": -1}, {})
    saver.put_writes(saved, [("channel", "value")], "task")
    assert saver.get_tuple(config) is not None
    async def work():
        assert await saver.aget_tuple(config) is not None
        return [each async for each in saver.alist(config)]
    asyncio.run(work())
""",
    "a daemon that is away": """
from stateward import Client, ServerUnavailable
with Client(target + "-away", connect_timeout=0.2) as client:
    try:
        client.server_info()
    except ServerUnavailable:
        pass
""",
}


@pytest.mark.parametrize("how", AGENTS)
def test_grpc_is_not_loaded_by_who_speaks_frames(
    real_daemon: Daemon, monkeypatch: pytest.MonkeyPatch, name: str, how: str
) -> None:
    """It takes a third of an agent's memory and a sixth of its start."""
    monkeypatch.setenv(warm.COLD, "1")
    if how == "saver":
        pytest.importorskip("langgraph.checkpoint.base")
    script = f"import sys\ntarget, name = sys.argv[1:]\n{AGENTS[how]}\nassert 'grpc' not in sys.modules\n"
    command = [sys.executable, "-c", script, real_daemon.target, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_wire_of_other_hosts_is_grpc(name: str) -> None:
    """Over a port there are no frames."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with run_daemon(listen=f"127.0.0.1:{port}", exposed_port=True), Client(f"127.0.0.1:{port}") as client:
        assert client.server_info().wire == "grpc"


def test_calls_of_many_threads_at_once(real_daemon: Daemon, name: str) -> None:
    """Each has a connection of its own, and its own answer."""
    with Client(real_daemon.target, namespace=name) as client:
        found = dict[int, list[int]]()

        def work(number: int) -> None:
            found[number] = [client.thread(f"t{number}").append("log", each).version for each in range(20)]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(24)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert found == {number: list(range(1, 21)) for number in range(24)}


@pytest.mark.parametrize("size_bytes", [9_000, 70_000])
def test_a_token_that_is_too_long(real_daemon: Daemon, open_client: Any, name: str, size_bytes: int) -> None:
    """Its size is named at once, by calls and streams."""
    client = open_client(real_daemon.target, namespace=name, token="a" * size_bytes)
    for each in (client.server_info, lambda: list(client.thread("t").history())):
        with pytest.raises(StateTooLarge, match=rf"have {size_bytes + len('authorization:Bearer ')} bytes.*8190"):
            each()


def test_a_trace_that_is_too_long_is_left_out(
    real_daemon: Daemon, open_client: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call does not fail because of what stands in its trace."""
    spans = (("traceparent", f"00-{1:032x}-{1:016x}-01"), ("tracestate", "a=" + "b" * 9_000))
    monkeypatch.setattr(token, "trace_metadata", lambda: spans)
    thread = open_client(real_daemon.target, namespace=name).thread("t")
    thread.append("log", 1)
    assert len(list(thread.history())) == 1


def test_why_the_daemon_ends_a_connection_is_told(
    real_daemon: Daemon, open_client: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so on no call, and then closes."""
    monkeypatch.setattr(local, "_METADATA_BYTES_MAX", 1 << 14)
    client = open_client(real_daemon.target, namespace=name, token="a" * 9_000)
    with pytest.raises(InvalidRequest, match="metadata do not fit"):
        client.server_info()


MANY_LARGE = """
import asyncio, resource, sys
from stateward import AsyncClient
async def work():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    async with AsyncClient(sys.argv[1], namespace=sys.argv[2]) as client:
        threads = [client.thread(f"t{each}") for each in range(120)]
        saved = await asyncio.gather(*(each.append("log", "x" * 100_000) for each in threads))
        assert [each.version for each in saved] == [1] * 120
asyncio.run(work())
"""
OUT_OF_FILES = """
import asyncio, resource, sys
from contextlib import contextmanager
from stateward import AsyncClient, Client, ServerUnavailable
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
@contextmanager
def no_files():
    taken = []
    try:
        while True:
            taken.append(open("/dev/null"))
    except OSError:
        pass
    try:
        yield
        raise AssertionError("a file was left")
    except ServerUnavailable as error:
        assert "Too many open files" in str(error), error
    finally:
        for each in taken:
            each.close()
async def work():
    async with AsyncClient(sys.argv[1], namespace=sys.argv[2], retry_timeout=0) as client:
        thread = client.thread("t")
        await thread.append("log", 1)
        with no_files():
            await thread.append("log", "x" * 100_000)
        with no_files():
            [each async for each in thread.history()]
        assert len([each async for each in thread.history()]) == 1
asyncio.run(work())
with Client(sys.argv[1], namespace=sys.argv[2], retry_timeout=0) as client:
    thread = client.thread("t")
    thread.append("log", 2)
    with no_files():
        list(thread.history())
    assert len(list(thread.history())) == 2
"""


@pytest.mark.parametrize("script", [MANY_LARGE, OUT_OF_FILES], ids=["many large calls", "no files left"])
def test_a_program_that_may_open_few_files(
    real_daemon: Daemon, name: str, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """Large calls wait for each other, and a connection that cannot be opened is an error of this library."""
    monkeypatch.setenv("STATEWARD_WIRE", "frames")
    command = [sys.executable, "-c", script, real_daemon.target, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def default_timeout_s() -> Iterator[float]:
    """Of the sockets of the program, as a library for HTTP may have set it."""
    socket.setdefaulttimeout(10.0)
    yield 10.0
    socket.setdefaulttimeout(None)


def test_a_default_timeout_of_the_program_is_not_for_these_sockets(
    real_daemon: Daemon, name: str, default_timeout_s: float
) -> None:
    """A look whether the daemon is still there would take that long, before each call."""
    with Client(real_daemon.target, namespace=name) as client:
        began_s = time.monotonic()
        assert [client.thread("t").append("log", entry).version for entry in range(3)] == [1, 2, 3]
        assert time.monotonic() - began_s < default_timeout_s


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_event_loops_that_end_without_a_close(real_daemon: Daemon, name: str) -> None:
    """Neither a warning nor a connection is left. (Warnings are errors here.)"""

    async def work() -> None:
        await AsyncClient(real_daemon.target, namespace=name).thread("t").append("log", 1)

    def abandon() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(work())
        loop.close()

    abandon()
    before = open_files()
    for _ in range(3):
        asyncio.run(work())
        abandon()
    until = time.monotonic() + 10
    while open_files() > before and time.monotonic() < until:
        gc.collect()
        time.sleep(0.05)
    assert open_files() <= before
