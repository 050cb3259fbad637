"""The danger: a peer on the second socket sends what no client sends, and takes memory, calls or time of others."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from tests.daemon.framed import (
    ANSWER,
    CANCEL,
    END,
    ERROR,
    HEAD,
    HELLO,
    LAST,
    MESSAGE,
    METADATA,
    REQUEST,
    FramedConnection,
    FramesGone,
    FramesRefused,
)
from tests.daemon.inside import daemon_inside

from stateward.testing import Daemon, run_daemon
from stateward.v1.admin_service_pb2 import GetServerInfoRequest, GetServerInfoResponse
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest, SaveResponse
from stateward.v1.lease_service_pb2 import AcquireLeaseRequest
from stateward.v1.thread_service_pb2 import WatchRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.service.local import connection

MIB = 1 << 20
INFO = "stateward.v1.AdminService.GetServerInfo"
SAVE = "stateward.v1.CheckpointService.Save"
HYDRATE = "stateward.v1.CheckpointService.Hydrate"
WATCH = "stateward.v1.ThreadService.Watch"
LEASE = "stateward.v1.LeaseService.AcquireLease"
WRITE_BLOB = "stateward.v1.BlobService.WriteBlob"
# The lowest limit, and what the process has beside it: the interpreter's own, and what freed memory is still held.
MEMORY_LIMIT, MEMORY_SLACK = 256 * MIB, 64 * MIB


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with run_daemon(max_state_size="16MiB", memory_limit="256MiB", sweep_interval=0) as running:
        yield running


@pytest.fixture
def fresh() -> Iterator[Daemon]:
    """One in which no connections of earlier tests are ending."""
    with run_daemon(max_state_size="16MiB", memory_limit="256MiB", sweep_interval=0) as running:
        yield running


@pytest.fixture
def path(daemon: Daemon) -> Iterator[str]:
    """The second socket. Afterwards the daemon still answers, in the same process."""
    pid = daemon.pid
    yield f"{daemon.socket}~"
    assert daemon.pid == pid
    with FramedConnection(f"{daemon.socket}~") as neighbour:
        answer_to(neighbour, INFO)


def answer_to(connection: FramedConnection, method: str, body: bytes = b"", call: int = 1, **fields: int) -> bytes:
    connection.ask(method, body, call, **fields)
    kind, number, answer = connection.receive()
    assert (kind, number) == (ANSWER, call), Status.FromString(answer)
    return answer


def answer_when_there_is_room(connection: FramedConnection, method: str, body: bytes) -> bytes:
    """Asks again when the daemon says so: its memory was full for twenty seconds."""
    for call in range(1, 10):
        connection.ask(method, body, call)
        kind, _, answer = connection.receive()
        if kind == ANSWER:
            return answer
        assert reason_in(answer) == "QUEUE_FULL", Status.FromString(answer)
    raise AssertionError("there is never room")


def reason_in(body: bytes) -> str:
    status = Status.FromString(body)
    infos = [ErrorInfo.FromString(each.value) for each in status.details if each.Is(ErrorInfo.DESCRIPTOR)]
    return infos[0].reason if infos else ""


def end_of(connection: FramedConnection) -> str:
    """Reads to the end of a connection. Returns the reason of the last error before it; "" = there was none."""
    reason = ""
    with suppress(FramesGone, ConnectionError):
        while True:
            kind, _, body = connection.receive()
            reason = reason_in(body) if kind == ERROR else reason
    return reason


def save(size: int, request_id: str, thread: str = "t") -> bytes:
    request = SaveRequest(thread=thread, options=WriteOptions(request_id=request_id), overwrite=True)
    request.state.slots["s"].data = os.urandom(size)
    return request.SerializeToString()


def memory(daemon: Daemon) -> int:
    """What the process has that is no file's."""
    _, resident, shared, *_ = map(int, Path(f"/proc/{daemon.pid}/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGESIZE")


@contextmanager
def memory_peak(daemon: Daemon) -> Iterator[Callable[[], int]]:
    """Gives how much more memory the process has had since, at most."""
    at = Path(f"/proc/{daemon.pid}")

    def highest() -> int:
        [line] = [each for each in (at / "status").read_text().splitlines() if each.startswith("VmHWM:")]
        return int(line.split()[1]) << 10

    (at / "clear_refs").write_text("5")  # forgets the peak
    before = highest()
    yield lambda: highest() - before


# Frames that end a connection -----------------------------------------------------------------------------------------


def raw(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(20)
    made.connect(path)
    return made


UNGREETED = {
    "noise": os.urandom(4000),
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0",
    "a request first": HEAD.pack(0, 1, REQUEST, 0, 0, 0),
    "a greeting of 4 GiB": HEAD.pack(0xFFFFFFFF, 0, HELLO, 0, 0, 0),
    "a greeting that is none": HEAD.pack(4, 0, HELLO, 0, 0, 0) + b"null",
    "a deep greeting": HEAD.pack(4000, 0, HELLO, 0, 0, 0) + b"[" * 4000,
}


@pytest.mark.parametrize("how", UNGREETED)
def test_who_does_not_greet_is_sent_away(path: str, how: str) -> None:
    """With INVALID_FIELD, and at once."""
    with raw(path) as made:
        with suppress(ConnectionError):
            made.sendall(UNGREETED[how])
        data = b""
        with suppress(ConnectionError):
            while more := made.recv(4096):
                data += more
    length, call, kind, *_ = HEAD.unpack_from(data)
    assert (call, kind, reason_in(data[HEAD.size : HEAD.size + length])) == (0, ERROR, "INVALID_FIELD")


def test_no_common_version_is_said(path: str) -> None:
    """A later client learns that it has to speak gRPC."""
    with raw(path) as made:
        body = json.dumps({"versions": [99]}).encode()
        made.sendall(HEAD.pack(len(body), 0, HELLO, 0, 0, 0) + body)
        length, _, kind, *_ = HEAD.unpack(made.recv(HEAD.size))
        assert (kind, reason_in(made.recv(length))) == (ERROR, "FEATURE_UNAVAILABLE")
        assert made.recv(1) == b""


@pytest.mark.timeout(60)
def test_a_silent_peer_is_sent_away(path: str) -> None:
    """Who sends nothing, or a byte a second, has five seconds to greet."""
    with raw(path) as silent, raw(path) as slow:
        begun = time.monotonic()
        while time.monotonic() - begun < 4:
            slow.sendall(b"\0")
            time.sleep(1)
        for each in (silent, slow):
            each.settimeout(30)
            with suppress(ConnectionError):
                while each.recv(4096):
                    pass


BROKEN: dict[str, Callable[[FramedConnection], None]] = {
    "a second greeting": lambda it: it.send(HELLO, body=b'{"versions":[1]}'),
    "an unknown kind": lambda it: it.send(99),
    "an answer": lambda it: it.send(ANSWER, 1),
    "an unknown method": lambda it: it.send(REQUEST, 1, method=60_000),
    "an unknown flag": lambda it: it.ask(INFO, b"", flags=8),
    "call 0": lambda it: it.ask(INFO, b"", call=0),
    "a message of no stream": lambda it: it.send(MESSAGE, 1, b"x"),
    "a cancel with a body": lambda it: it.send(CANCEL, 1, b"x"),
    "metadata beyond their body": lambda it: it.ask(INFO, b"\xff\xff", flags=METADATA),
    "metadata without a name": lambda it: it.ask(INFO, b"\x02\x00:x", flags=METADATA),
    "metadata that are no text": lambda it: it.ask(INFO, b"\x02\x00\xff\xfe", flags=METADATA),
    "a message before its stream": lambda it: it.ask(WRITE_BLOB, b"x"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_rule_ends_the_connection(path: str, how: str) -> None:
    """With INVALID_FIELD, so that whoever writes a client sees why."""
    with FramedConnection(path) as made:
        BROKEN[how](made)
        assert end_of(made) == "INVALID_FIELD"


def test_a_number_used_twice_ends_the_connection(path: str) -> None:
    """The daemon could not say which of the two calls an answer is of."""
    with FramedConnection(path) as made:
        ask = HydrateRequest(thread="on a worker").SerializeToString()
        made.socket.sendall(2 * (HEAD.pack(len(ask), 7, REQUEST, 0, made.numbers[HYDRATE], 0) + ask))
        assert end_of(made) == "INVALID_FIELD"


def test_the_number_of_a_cancelled_call_is_not_free(path: str) -> None:
    """Its answer may have crossed the CANCEL: whoever uses it at once is told so."""
    with FramedConnection(path) as made:
        ask = HydrateRequest(thread="on a worker").SerializeToString()
        request = HEAD.pack(len(ask), 7, REQUEST, 0, made.numbers[HYDRATE], 0) + ask
        made.socket.sendall(request + HEAD.pack(0, 7, CANCEL, 0, 0, 0) + request)
        assert end_of(made) == "INVALID_FIELD"


def test_a_stream_beside_calls_ends_the_connection(path: str) -> None:
    """A stream's socket is its flow control, so nothing else may be on it."""
    watch = WatchRequest(thread="-").SerializeToString()
    with FramedConnection(path) as made:
        made.ask(WATCH, watch, call=1, flags=LAST)
        made.ask(INFO, b"", call=2)
        assert end_of(made) == "INVALID_FIELD"


def test_what_is_not_there_can_be_cancelled(path: str) -> None:
    """An answer and a CANCEL cross. So do the end of a stream and its last messages."""
    with FramedConnection(path) as made:
        for call in (0, 1, 0xFFFFFFFF):
            made.send(CANCEL, call)
            made.send(END, call)
        answer_to(made, INFO)


def test_a_body_that_is_no_message_is_refused(path: str) -> None:
    """As over gRPC, and the connection goes on."""
    with FramedConnection(path) as made:
        made.ask(INFO, b"\xff\xff\xff")
        kind, _, body = made.receive()
        assert (kind, reason_in(body)) == (ERROR, "INVALID_FIELD")
        answer_to(made, INFO)


# Sizes ----------------------------------------------------------------------------------------------------------------


def test_a_head_of_four_gib_is_refused_without_its_body(path: str, daemon: Daemon) -> None:
    """The answer comes before a byte of the body was sent, and nothing is kept for it."""
    before = memory(daemon)
    with FramedConnection(path) as made:
        made.socket.sendall(HEAD.pack(0xFFFFFFFF, 1, REQUEST, 0, made.numbers[SAVE], 0))
        kind, call, body = made.receive()
        assert (kind, call, reason_in(body)) == (ERROR, 1, "STATE_TOO_LARGE")
    assert memory(daemon) - before < 16 * MIB


def test_calls_go_on_behind_a_message_that_is_too_large(path: str) -> None:
    """Its bytes are thrown away."""
    with FramedConnection(path) as made:
        made.ask(SAVE, bytes(20 * MIB), call=1)
        kind, call, body = made.receive()
        assert (kind, call, reason_in(body)) == (ERROR, 1, "STATE_TOO_LARGE")
        answer_to(made, INFO, call=2)


@pytest.mark.timeout(300)
def test_half_messages_take_no_more_memory_than_there_is(path: str, daemon: Daemon) -> None:
    """Fifty of 16 MiB are begun. Others are served meanwhile, also with large messages."""
    before = memory(daemon)
    with ExitStack() as stack:
        for _ in range(50):
            made = stack.enter_context(FramedConnection(path))
            made.socket.settimeout(0.05)
            made.socket.sendall(HEAD.pack(16 * MIB, 1, REQUEST, 0, made.numbers[SAVE], 0))
            with suppress(TimeoutError):
                made.socket.sendall(bytes(8 * MIB))
        assert memory(daemon) - before < MEMORY_LIMIT
        with FramedConnection(path, 60) as neighbour:
            answer_to(neighbour, INFO)
            answer = answer_when_there_is_room(neighbour, SAVE, save(2 * MIB, "beside half messages", "beside"))
            assert SaveResponse.FromString(answer).version == 1
    assert memory(daemon) < MEMORY_LIMIT + MEMORY_SLACK


@pytest.mark.timeout(120)
def test_unread_answers_take_no_more_memory_than_there_is(path: str, daemon: Daemon) -> None:
    """Two hundred answers of 6 MB are asked for, and nobody reads them."""
    with FramedConnection(path) as made:
        answer_to(made, SAVE, save(6 * MIB, "to be read", "large"))
    ask = HydrateRequest(thread="large", max_bytes=16 * MIB).SerializeToString()
    with ExitStack() as stack:
        for _ in range(20):
            made = stack.enter_context(FramedConnection(path))
            for call in range(1, 11):
                made.ask(HYDRATE, ask, call)
        until = time.monotonic() + 2
        while time.monotonic() < until:
            with FramedConnection(path) as neighbour:
                answer_to(neighbour, INFO)
            assert memory(daemon) < MEMORY_LIMIT + MEMORY_SLACK
            time.sleep(0.1)


@pytest.mark.timeout(120)
def test_small_answers_that_nobody_reads(path: str, daemon: Daemon) -> None:
    """A peer that asks without end and reads nothing is soon not read, either."""
    with FramedConnection(path) as made:
        answer_to(made, SAVE, save(60_000, "to be read often", "small"))
    ask = HydrateRequest(thread="small").SerializeToString()
    with ExitStack() as stack:
        for _ in range(20):
            made = stack.enter_context(FramedConnection(path))
            made.socket.settimeout(0.2)
            call = 0
            with suppress(TimeoutError):
                for call in range(1, 10_000):
                    made.ask(HYDRATE, ask, call)
            assert call < 9_999
        assert memory(daemon) < MEMORY_LIMIT + MEMORY_SLACK


@pytest.mark.timeout(120)
def test_one_write_of_thousands_of_reads_takes_no_more_memory_than_there_is(path: str, daemon: Daemon) -> None:
    """Each of 20 connections asks for 150 MB at once, with bytes that one read brings, and reads nothing."""
    with FramedConnection(path) as made:
        answer_to(made, SAVE, save(60_000, "to be read at once", "at once"))
    ask = HydrateRequest(thread="at once").SerializeToString()
    with ExitStack() as stack, memory_peak(daemon) as peak_bytes:
        for _ in range(20):
            made = stack.enter_context(FramedConnection(path))
            heads = [HEAD.pack(len(ask), call, REQUEST, 0, made.numbers[HYDRATE], 0) for call in range(1, 2500)]
            made.socket.setblocking(False)
            made.socket.send(b"".join(head + ask for head in heads))
            with FramedConnection(path) as neighbour:
                answer_to(neighbour, INFO)
        assert peak_bytes() < MEMORY_SLACK


@pytest.mark.timeout(300)
def test_small_answers_of_calls_that_have_waited(path: str, daemon: Daemon) -> None:
    """Each of 20 connections has 250 calls under way before it gets an answer, and then it reads none of them. These
    are small: those that others hold leave no memory for large ones."""
    with FramedConnection(path) as made:
        answer_to(made, SAVE, save(6 * MIB, "to be read small", "cold"))
    ask = HydrateRequest(thread="cold", max_bytes=16 * MIB).SerializeToString()
    with ExitStack() as stack, memory_peak(daemon) as peak_bytes:
        for _ in range(20):
            made = stack.enter_context(FramedConnection(path))
            made.socket.settimeout(0.2)
            with suppress(TimeoutError):
                for call in range(1, 251):
                    made.ask(HYDRATE, ask, call)
        until = time.monotonic() + 5
        while time.monotonic() < until:
            with FramedConnection(path) as neighbour:
                answer_to(neighbour, INFO)
            time.sleep(0.1)
        assert peak_bytes() < 3 * MEMORY_SLACK // 2


# Many -----------------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_calls_that_wait_take_no_more_memory_than_there_is(path: str, daemon: Daemon) -> None:
    """Twenty-five thousand for a lease, on a hundred connections. Others are served, also on a connection with a call
    that waits."""
    def lease(number: int, wait_s: int) -> bytes:
        request = AcquireLeaseRequest(thread="leased")
        request.options.request_id = request.holder.name = request.holder.incarnation = f"{number}"
        request.term.FromSeconds(600)
        request.wait.FromSeconds(wait_s)
        return request.SerializeToString()

    with ExitStack() as stack, memory_peak(daemon) as peak_bytes:
        holder = stack.enter_context(FramedConnection(path))
        answer_to(holder, LEASE, lease(0, 0))
        for number in range(1, 101):
            made = stack.enter_context(FramedConnection(path))
            made.socket.setblocking(False)
            body = lease(number, 300)
            heads = [HEAD.pack(len(body), call, REQUEST, 0, made.numbers[LEASE], 0) for call in range(1, 251)]
            made.socket.send(b"".join(head + body for head in heads))
        neighbour = stack.enter_context(FramedConnection(path, 60))
        neighbour.ask(LEASE, lease(1000, 300), call=1)
        until = time.monotonic() + 2
        for call in itertools.count(2):
            answer_to(neighbour, INFO, call=call)
            if time.monotonic() > until:
                break
        assert peak_bytes() < MEMORY_SLACK


@pytest.mark.timeout(120)
def test_one_process_has_no_more_than_its_share_of_connections(fresh: Daemon) -> None:
    """Those beyond it are refused with QUEUE_FULL; another process gets one, and the log names who had so many."""
    path, found = f"{fresh.socket}~", list[str]()
    with ExitStack() as stack:
        for _ in range(600):
            made = stack.enter_context(raw(path))
            body = b'{"versions":[1]}'
            with suppress(ConnectionError):
                made.sendall(HEAD.pack(len(body), 0, HELLO, 0, 0, 0) + body)
            length, _, kind, *_ = HEAD.unpack(made.recv(HEAD.size, socket.MSG_WAITALL))
            found.append(reason_in(made.recv(length, socket.MSG_WAITALL)) if kind == ERROR else "")
        assert found.count("QUEUE_FULL") >= 80
        assert set(found[:400]) == {""}
        script = (
            "import sys; from stateward import Client\n"
            "with Client(sys.argv[1]) as client: print(client.server_info().wire)"
        )
        command = [sys.executable, "-c", script, fresh.target]
        other = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert other.stdout.strip() == "frames"
        with fresh.client() as here:
            assert here.server_info().wire == "grpc"
    assert f"{os.getpid()}" in fresh.stderr


# Greets on so many connections, says how many were taken and how many refused with QUEUE_FULL, and keeps them.
CROWD = """
import sys
from tests.daemon.framed import FramedConnection, FramesRefused
taken, refused = [], 0
for _ in range(int(sys.argv[2])):
    try:
        taken.append(FramedConnection(sys.argv[1], timeout_s=60.0))
    except FramesRefused:
        refused += 1
print(len(taken), refused, flush=True)
sys.stdin.read()
"""


@pytest.mark.timeout(180)
def test_two_thousand_connections(fresh: Daemon) -> None:
    """Of four processes: so many as there are places are taken, each other one is refused, memory stays within its
    bound, and who was there before is served as before. When they have gone, the places are free."""
    path = f"{fresh.socket}~"
    with FramedConnection(path) as neighbour, memory_peak(fresh) as peak_bytes:
        crowd = [
            subprocess.Popen(
                [sys.executable, "-c", CROWD, path, "500"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(4)
        ]
        try:
            told = [tuple(map(int, each.stdout.readline().split())) for each in crowd if each.stdout is not None]
            for call in range(1, 100):
                answer_to(neighbour, INFO, call=call)
        finally:
            for each in crowd:
                each.communicate()
        assert sum(taken + refused for taken, refused in told) == 2000
        places = min(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        assert 0.8 * places <= sum(taken for taken, _ in told) < places
        assert peak_bytes() < MEMORY_SLACK
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(FramesRefused), FramedConnection(path) as late:
                answer_to(late, INFO)
                return
        raise AssertionError("no place became free")


def test_a_stopped_peer_harms_no_other(path: str) -> None:
    """Processes that were stopped in the middle of a frame, of a call or of an answer."""
    script = (
        "import os, signal, sys; from tests.daemon.framed import FramedConnection, HEAD, REQUEST\n"
        "made = FramedConnection(sys.argv[1]); made.ask(sys.argv[2], b'')\n"
        "made.socket.sendall(HEAD.pack(100, 2, REQUEST, 0, 0, 0) + bytes(50))\n"
        "print('sent', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    )
    stopped = [
        subprocess.Popen([sys.executable, "-c", script, path, INFO], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    try:
        for each in stopped:
            assert each.stdout is not None
            assert each.stdout.readline() == "sent\n"
        with FramedConnection(path) as neighbour:
            for call in range(1, 50):
                answer_to(neighbour, INFO, call=call)
    finally:
        for each in stopped:
            each.send_signal(signal.SIGKILL)
            each.communicate()


def test_a_byte_at_a_time_is_a_call_as_any_other(path: str) -> None:
    """However slowly and in whatever pieces a frame comes."""
    with FramedConnection(path) as made:
        body = GetServerInfoRequest().SerializeToString()
        frame = HEAD.pack(len(body), 1, REQUEST, 0, made.numbers[INFO], 0) + body
        for byte in frame + frame[:4] + (2).to_bytes(4, "little") + frame[8:]:
            made.socket.sendall(bytes([byte]))
            time.sleep(0.001)
        assert {made.receive()[1] for _ in range(2)} == {1, 2}


def test_many_calls_in_one_write_are_each_answered(path: str) -> None:
    """A thousand, though a connection has at most 256 unanswered ones: the others are read when there is room."""
    with FramedConnection(path) as made:
        number = made.numbers[INFO]
        made.socket.sendall(b"".join(HEAD.pack(0, call, REQUEST, 0, number, 0) for call in range(1, 1001)))
        found = [made.receive() for _ in range(1000)]
        assert {call for _, call, _ in found} == set(range(1, 1001))
        assert {kind for kind, _, _ in found} == {ANSWER}
        assert GetServerInfoResponse.FromString(found[0][2]).wire == "frames"


def test_a_stopped_process_loses_its_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As over gRPC, whose keepalive it does not answer: else it would hold its lease for as long as it is stopped."""
    monkeypatch.setattr(connection, "STOPPED_S", 0.2)
    script = (
        "import os, signal, sys; from stateward import Client\n"
        "with Client(sys.argv[1]) as client, client.thread('t').writer(term=60):\n"
        "    print('holds', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    )
    with daemon_inside(tmp_path) as inside:
        target = inside.settings.listen[0]
        holder = subprocess.Popen([sys.executable, "-c", script, target], stdout=subprocess.PIPE, text=True)
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "holds\n"
            assert inside.parts.server.wires.frames_connections >= 1
            until = time.monotonic() + 30
            while inside.parts.server.open_calls and time.monotonic() < until:
                time.sleep(0.05)
            assert inside.parts.server.open_calls == 0
        finally:
            holder.send_signal(signal.SIGKILL)
            holder.communicate()
