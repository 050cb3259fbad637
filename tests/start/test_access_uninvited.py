"""The danger: a token that was taken away goes on, a value takes over a terminal, another user reads key or token."""

from __future__ import annotations

import asyncio
import os
import pty
import queue
import resource
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.status_pb2 import Status
from tests.daemon.framed import MESSAGE, METADATA, FramedConnection
from tests.warm import COLD

from stateward import AsyncClient, Client
from stateward.errors import StatewardError, Unauthenticated, WrongTarget
from stateward.testing import Daemon, run_daemon
from stateward.v1 import (
    blob_service_pb2_grpc,
    call_service_pb2,
    call_service_pb2_grpc,
    checkpoint_service_pb2_grpc,
    thread_service_pb2_grpc,
)
from stateward.v1.blob_service_pb2 import ReadBlobRequest
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.thread_service_pb2 import ListThreadsRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar import errors
from stateward_sidecar.service.admission.callers import LOOK_S, Callers

pytestmark = pytest.mark.usefixtures("begun_warm")

OLD, NEW = "o" * 40, "n" * 40
SEEN_WITHIN_S = 30.0  # the daemon looks at its token file once a second, and a busy machine later
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj"
OTHER = ["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups"]


def token_file(directory: Path, token: str) -> Path:
    """A file with one token."""
    path = directory / "tokens"
    path.touch(mode=0o600)
    path.write_text(f"{token}\n")
    return path


def channel_to(daemon: Daemon) -> grpc.Channel:
    """A connection of its own."""
    return grpc.insecure_channel(daemon.target.replace("unix://", "unix:"))


def save(request_id: str) -> SaveRequest:
    """A save that appends one entry."""
    request = SaveRequest(thread="t", options=WriteOptions(request_id=request_id))
    request.diff.edits.add().append.log = "m"
    request.diff.edits[0].append.entries.add(media_type="text/plain", data=b"x")
    return request


def with_token(token: str) -> list[tuple[str, str]]:
    """The metadata of a call."""
    return [("authorization", f"Bearer {token}")]


def test_a_revoked_token_ends_its_streams(tmp_path: Path) -> None:
    """After new calls are refused, calls on a stream that was opened before are refused, too."""
    tokens = token_file(tmp_path, OLD)
    with run_daemon(tmp_path / "data", token_file=tokens) as daemon, channel_to(daemon) as channel:
        sent: queue.Queue[Any] = queue.Queue()
        stream = call_service_pb2_grpc.CallServiceStub(channel).RunCalls(iter(sent.get, None), metadata=with_token(OLD))

        def save_there(number: int) -> int:
            call = call_service_pb2.StreamedCall(call=number)
            call.save.CopyFrom(save(f"save {number}"))
            sent.put(call_service_pb2.RunCallsRequest(calls=[call]))
            return int(next(stream).answers[0].save.version)

        try:
            assert save_there(1) == 1
            tokens.write_text(f"{NEW}\n")
            threads, end = thread_service_pb2_grpc.ThreadServiceStub(channel), time.monotonic() + 30
            while time.monotonic() < end:
                try:
                    threads.ListThreads(ListThreadsRequest(), metadata=with_token(OLD), timeout=5)
                except grpc.RpcError:
                    break
                time.sleep(0.1)
            try:
                version = save_there(2)
            except grpc.RpcError:
                version = 0
            assert version == 0
        finally:
            sent.put(None)


@pytest.mark.parametrize("wire", ["grpc", "frames"])
@pytest.mark.parametrize("kind", ["watch", "writer"])
def test_a_revoked_token_ends_a_stream_that_nobody_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wire: str, kind: str
) -> None:
    """No call comes after the token was taken away. The stream of another token goes on."""
    monkeypatch.setenv("STATEWARD_WIRE", wire)
    tokens = token_file(tmp_path, OLD)
    tokens.write_text(f"{OLD}\n{NEW}\n")
    with ExitStack() as stack:
        daemon = stack.enter_context(run_daemon(tmp_path / "data", token_file=tokens))
        old, new = (stack.enter_context(Client(daemon.target, token=each)) for each in (OLD, NEW))
        new.thread("t").append("m", 1)
        other = stack.enter_context(new.thread("t").watch())
        if kind == "watch":
            watch = stack.enter_context(old.thread("t").watch())
            end = partial(next, watch)
        else:
            end = wait_for_the_end_of_a_writer(old, stack)
        tokens.write_text(f"{NEW}\n")
        with pytest.raises(Unauthenticated, match=r"taken away|not valid"):
            end_in_time(end)
        new.thread("t").append("m", 2)
        assert next(other)


def end_in_time(end: Callable[[], object], patience_s: float = 40.0) -> None:
    """Waits in a thread until a call fails, and raises its error: a stream that goes on must not keep the test."""
    found = list[BaseException]()

    def wait() -> None:
        try:
            end()
        except BaseException as error:  # noqa: BLE001  (raised below)
            found.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(patience_s)
    assert not waiting.is_alive(), "it goes on"
    if found:
        raise found[0]


@pytest.mark.parametrize("wire", ["grpc", "frames"])
def test_a_revoked_token_ends_a_stream_whose_reader_is_slow(tmp_path: Path, wire: str) -> None:
    """The daemon waits until its answer is taken when the token goes. The reader learns why the stream has ended."""
    tokens = token_file(tmp_path, OLD)
    tokens.write_text(f"{OLD}\n{NEW}\n")
    with run_daemon(tmp_path / "data", token_file=tokens) as daemon:
        with Client(daemon.target, token=NEW) as client:
            client.thread("t").append("m", 1)
            blob = client.thread("t").blobs.write(os.urandom(32 << 20))
        asked = ReadBlobRequest(thread="t")
        asked.blob.sha256, asked.blob.size_bytes = blob.sha256, blob.size_bytes
        end = (end_of_a_slow_stream if wire == "grpc" else end_of_a_slow_frames)(daemon, asked, tokens)
        assert end == grpc.StatusCode.UNAUTHENTICATED.value[0]


def take_away(daemon: Daemon, tokens: Path) -> None:
    """Returns when calls with the old token are refused."""
    tokens.write_text(f"{NEW}\n")
    end = time.monotonic() + 30
    with channel_to(daemon) as channel:
        threads = thread_service_pb2_grpc.ThreadServiceStub(channel)
        while time.monotonic() < end:
            try:
                threads.ListThreads(ListThreadsRequest(), metadata=with_token(OLD), timeout=5)
            except grpc.RpcError:
                return
            time.sleep(0.1)


def end_of_a_slow_stream(daemon: Daemon, asked: ReadBlobRequest, tokens: Path) -> int:
    """The code with which a stream over gRPC ends."""
    with channel_to(daemon) as channel:
        pieces = blob_service_pb2_grpc.BlobServiceStub(channel).ReadBlob(asked, metadata=with_token(OLD), timeout=60)
        next(pieces)
        take_away(daemon, tokens)
        with pytest.raises(grpc.RpcError) as ended:
            for _ in pieces:
                pass
        return int(ended.value.code().value[0])


def end_of_a_slow_frames(daemon: Daemon, asked: ReadBlobRequest, tokens: Path) -> int:
    """The code with which a stream in frames ends."""
    with FramedConnection(f"{daemon.socket}~", timeout_s=60.0) as made:
        line = f"authorization:Bearer {OLD}".encode()
        body = len(line).to_bytes(2, "little") + line + asked.SerializeToString()
        made.ask("stateward.v1.BlobService.ReadBlob", body, flags=METADATA)
        kind, _, _ = made.receive()
        take_away(daemon, tokens)
        while kind == MESSAGE:
            kind, _, body = made.receive()
        return Status.FromString(body).code


def wait_for_the_end_of_a_writer(client: Client, stack: ExitStack) -> Callable[[], object]:
    """Opens a writer. Returns what saves now and then, and raises the error of its stream."""
    state = client.thread("w").hydrate()
    writer = client.thread("w").writer()
    writer.__enter__()

    @stack.callback
    def close() -> None:
        with suppress(StatewardError):
            writer.close()


    def wait() -> None:
        for number in range(100):
            state.logs["m"].append(number)
            writer.save(state)
            time.sleep(0.1)

    return wait


def test_a_file_that_is_written_anew_refuses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change counts when it is as old as two looks are apart. A file that is empty then admits nobody; a line that
    is no token changes nothing."""
    now = [1000.0]
    monkeypatch.setattr("stateward_sidecar.service.admission.callers.monotonic", lambda: now[0])
    path = token_file(tmp_path, OLD)
    callers, calls = Callers(path), with_token(OLD)
    steps = [
        ("", LOOK_S, True), (f"{OLD}\n", LOOK_S, True), (f"{OLD}\n\n", LOOK_S, True), ("half", LOOK_S, True),
        (None, LOOK_S, True), (f"{NEW}\n{OLD[:20]}", LOOK_S, True), (f"{NEW}\n{OLD}", LOOK_S / 2, True),
        (None, LOOK_S, True), ("", LOOK_S, True), (None, LOOK_S, False), ("half", LOOK_S, False),
        (None, LOOK_S, False), (f"{OLD}\n", LOOK_S, False), (None, LOOK_S, True),
    ]  # fmt: skip
    for number, (text, later_s, is_valid) in enumerate(steps):
        if text is not None:
            path.write_text(text)
            os.utime(path, ns=(number, number))  # each change is seen, however quick the test is
        now[0] += later_s
        if is_valid:
            callers.identify(calls)
        else:
            with pytest.raises(errors.Unauthenticated):
                callers.identify(calls)


@pytest.mark.parametrize("change", ["emptied", "deleted"])
def test_an_emptied_token_file_opens_nothing(tmp_path: Path, change: str) -> None:
    """Who empties or deletes the file, because a token has leaked, has revoked the token."""
    tokens = token_file(tmp_path, OLD)
    with run_daemon(tmp_path / "data", token_file=tokens) as daemon, channel_to(daemon) as channel:
        stub = checkpoint_service_pb2_grpc.CheckpointServiceStub(channel)
        assert stub.Save(save("first"), metadata=with_token(OLD), timeout=20).version == 1
        if change == "emptied":
            tokens.write_text("")
        else:
            tokens.unlink()
        end, is_refused = time.monotonic() + SEEN_WITHIN_S, False
        while time.monotonic() < end and not is_refused:
            try:
                stub.Save(save("again"), metadata=with_token(OLD), timeout=20)
            except grpc.RpcError:
                is_refused = True
            time.sleep(0.05)
        assert is_refused


@pytest.mark.parametrize(
    "arguments",
    [
        ("records", "get", "t", "k"),
        ("records", "list", "t"),
        ("export", "t", "--versions"),
        ("export", "t", "--versions", "--output", "THE TERMINAL"),
        ("show", "t", "--log", "messages", "--full"),
        ("show", "t", "--slot", "s", "--raw"),
        ("show", "t", "--json"),
    ],
    ids=" ".join,
)
def test_a_terminal_gets_no_escapes(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """A value of unknown origin is shown with escapes in place of control characters, by every command."""
    with run_daemon(tmp_path / "data") as daemon:
        with Client(daemon.target) as client:
            client.thread("t").records.put("k", HOSTILE)
            client.thread("t").append("messages", {"role": "user", "content": HOSTILE})
            state = client.thread("t").hydrate()
            state.slots["s"] = HOSTILE
            client.thread("t").save(state)
        shown = on_a_terminal(daemon, *arguments)
    assert b"gpj" in shown
    raw = (b"\x1b]0;owned", b"\x1b[2J", b"\xc2\x9b31m", "\u202e".encode())
    assert not [each for each in raw if each in shown]


def on_a_terminal(daemon: Daemon, *arguments: str) -> bytes:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    named = [os.ttyname(theirs) if each == "THE TERMINAL" else each for each in arguments]
    command = [sys.executable, "-m", "stateward.cli", "--target", daemon.target, *named]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    out, end = b"", time.monotonic() + 60
    try:
        while time.monotonic() < end:
            if select.select([ours], [], [], 0.3)[0]:
                try:
                    out += os.read(ours, 65536)
                except OSError:
                    break
            elif process.poll() is not None:
                break
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return out


def shared_directory(mode: int) -> Path:
    """A directory that other users may write, on a path that they may walk."""
    home = Path(tempfile.mkdtemp(prefix="uninvited-", dir="/tmp"))
    home.chmod(0o755)
    (home / "shared").mkdir()
    (home / "shared").chmod(mode)
    return home


needs_two_users = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv, to be two users"
)


@needs_two_users
def test_a_new_key_is_written_by_nobody_else() -> None:
    """Another user has made files of the names that the daemon may use; that user must not read the key afterwards."""
    home = shared_directory(0o777)
    try:
        plant = (
            "import os\nhighest = int(open('/proc/sys/kernel/pid_max').read())\n"
            "for pid in range(os.getpid(), os.getpid() + 8000):\n"
            f"  os.close(os.open('{home}/shared/.key.%d' % (pid % highest), os.O_CREAT | os.O_WRONLY, 0o644))"
        )
        subprocess.run([*OTHER, "/usr/bin/env", "python3", "-c", plant], check=True)
        key = home / "shared" / "key"
        command = [sys.executable, "-m", "stateward_sidecar", "--data-dir", str(home / "data")]
        command += ["--listen", f"unix://{home}/s.sock", "--key-file", str(key)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        with subprocess.Popen(command, env=environment, **pipes) as process:
            assert process.stdout is not None
            is_ready = "ready" in process.stdout.readline()
            process.kill()
        if not is_ready:
            return  # the daemon refuses to start
        read = subprocess.run([*OTHER, "cat", str(key)], capture_output=True, text=True, check=False).stdout
        assert len(read.strip()) != 64
    finally:
        shutil.rmtree(home, ignore_errors=True)


IMPOSTOR = """
import json, os, socket, struct, sys, threading, time, grpc
from concurrent import futures
class Any(grpc.GenericRpcHandler):
    def service(self, call):
        def take(request, context):
            print(call.method, dict(call.invocation_metadata).get("authorization"), request, flush=True)
            return b""
        return grpc.unary_unary_rpc_method_handler(take)
def take_frames(listener):
    while True:
        made = listener.accept()[0]
        print(made.recv(65536), flush=True)
        told = json.dumps({"version": 1, "methods": [[name, 1 << 20] for name in sys.argv[3].split(",")]}).encode()
        made.sendall(struct.pack("<IIBBHI", len(told), 0, 0, 0, 0, 0) + told)
        print(made.recv(65536), flush=True)
os.umask(0)
if sys.argv[2] == "frames":
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1] + "~")
    listener.listen()
    threading.Thread(target=take_frames, args=(listener,), daemon=True).start()
server = grpc.server(futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((Any(),))
server.add_insecure_port("unix:" + sys.argv[1])
server.start()
print("listening", flush=True)
time.sleep(60)
"""


@pytest.fixture(params=["grpc", "frames"])
def impostor(request: pytest.FixtureRequest) -> Iterator[tuple[Path, Path]]:
    """Another user listens where the daemon should: the socket, and the file with all that this user hears."""
    home = shared_directory(0o1777)
    path, seen = home / "shared" / "stateward.sock", home / "seen"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [*OTHER, sys.executable, "-c", IMPOSTOR, str(path), request.param, METHODS]
    with seen.open("w") as heard:
        process = subprocess.Popen(command, stdout=heard, stderr=subprocess.STDOUT, env=environment)
    try:
        end = time.monotonic() + 60
        while "listening" not in seen.read_text():
            if time.monotonic() > end or process.poll() is not None:
                pytest.skip(f"no other user can listen here: {seen.read_text()[-200:]}")
            time.sleep(0.1)
        yield path, seen
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(home, ignore_errors=True)


METHODS = "stateward.v1.CheckpointService.Save"
SECRETS = "t" * 40, "secret of an agent"


@needs_two_users
def test_a_client_knows_whose_socket_it_is(impostor: tuple[Path, Path]) -> None:
    """Another user listens where the daemon should: that user gets neither the token nor the state."""
    path, seen = impostor
    client = Client(f"unix://{path}", token=SECRETS[0], retry_timeout=1)
    with client, pytest.raises(WrongTarget, match="65533"):
        client.thread("t").append("messages", f"the {SECRETS[1]}")
    found = seen.read_text()
    assert not [part for part in SECRETS if part in found]


@needs_two_users
async def test_an_asyncio_client_knows_whose_socket_it_is(impostor: tuple[Path, Path]) -> None:
    """Also for the stream of many calls at once."""
    path, seen = impostor
    async with AsyncClient(f"unix://{path}", token=SECRETS[0], retry_timeout=1) as client:
        calls = [client.thread("t").append("messages", f"the {SECRETS[1]}") for _ in range(20)]
        found = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(each) for each in found} == {WrongTarget}
    assert not [part for part in SECRETS if part in seen.read_text()]


@needs_two_users
@pytest.mark.parametrize("where", ["a directory", "a link"])
def test_a_way_to_the_socket_that_others_can_change_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A link leads to a true daemon, and its owner can let it lead elsewhere at any moment."""
    monkeypatch.setenv("STATEWARD_WIRE", "grpc")
    home = shared_directory(0o1777)
    try:
        with run_daemon(tmp_path / "data") as daemon:
            place = home / "shared"
            if where == "a directory":
                place = place / "theirs"
                place.mkdir()
                os.chown(place, 65533, 65533)
            (place / "s").symlink_to(daemon.socket)
            if where == "a link":
                os.lchown(place / "s", 65533, 65533)
            with Client(f"unix://{place}/s", retry_timeout=1) as client, pytest.raises(WrongTarget, match="65533"):
                client.server_info()
            own = tmp_path / "s"
            own.symlink_to(daemon.socket)
            with Client(f"unix://{own}") as client:
                assert client.server_info().wire == "grpc"
    finally:
        shutil.rmtree(home, ignore_errors=True)


@needs_two_users
@pytest.mark.parametrize("wire", ["grpc", "frames"])
def test_whose_socket_it_should_be_can_be_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wire: str
) -> None:
    """As the number or the name of a user. A name that nobody has is an error of its own."""
    monkeypatch.setenv("STATEWARD_WIRE", wire)
    home = shared_directory(0o1777)
    try:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), COLD: "1"}
        path = home / "shared" / "s.sock"
        command = [*OTHER, sys.executable, "-m", "stateward_sidecar", "--data-dir", f"{home}/shared/data"]
        command += ["--listen", f"unix://{path}", "--key-file", f"{home}/shared/key"]
        before = os.umask(0)
        daemon = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        os.umask(before)
        try:
            assert daemon.stdout is not None
            if "ready" not in daemon.stdout.readline():
                pytest.skip("no other user can run a daemon here")
            for owner, refused in (("", "65533"), ("65532", "65533"), ("nobody-has-it", "no user"), ("65533", "")):
                monkeypatch.setenv("STATEWARD_SOCKET_OWNER", owner)
                with Client(f"unix://{path}", retry_timeout=1) as client:
                    if refused:
                        with pytest.raises(WrongTarget, match=refused):
                            client.server_info()
                    else:
                        assert client.server_info().wire == wire
        finally:
            daemon.kill()
            daemon.communicate()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.mark.slow
def test_idle_connections_lock_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More connections than the daemon may have files send nothing; an agent that comes later is still served."""
    monkeypatch.setenv(COLD, "1")  # a process of its own, whose limit is nobody else's
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    tokens, held = token_file(tmp_path, OLD), list[socket.socket]()
    try:
        with run_daemon(tmp_path / "data", token_file=tokens) as daemon:
            resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (1024, 1024))
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
            with suppress(OSError):
                for _ in range(1100):
                    held.append(socket.socket(socket.AF_UNIX))
                    held[-1].settimeout(2)
                    held[-1].connect(str(daemon.socket))
            with channel_to(daemon) as channel:
                stub = checkpoint_service_pb2_grpc.CheckpointServiceStub(channel)
                # Sooner than those are ended that have greeted and make no calls, after 54 s at the soonest.
                asked = {"metadata": with_token(OLD), "timeout": 45, "wait_for_ready": True}
                assert stub.Save(save("late"), **asked).version == 1
    finally:
        for each in held:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
