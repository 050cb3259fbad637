"""Runs an agent through the phases of `examples/agent.md`, with kills in between, and compares its lines."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

import grpc
from tests.bucket.weed import free_ports
from tests.certificates import Authority
from tests.crash.faulty_daemon import FaultyDaemon
from tests.languages.building import REPOSITORY
from tests.processes import running

from stateward import EffectState, Status
from stateward.v1.effect_pb2 import EFFECT_STATE_IN_PROGRESS
from stateward.v1.effect_service_pb2 import BeginEffectRequest
from stateward.v1.effect_service_pb2_grpc import EffectServiceStub
from stateward.v1.write_pb2 import WriteOptions

D = TypeVar("D", bound=FaultyDaemon)
PHASE_LIMIT_S = 150
CONFORMANCE_LIMIT_S = 600
TREES = ("write-tree/", "write-large/", "write-many/", "read-tree/", "diff-trees/")
"""Scenarios of trees, which an agent may leave out."""
LATE, LATE_TIMES = "s after the one before", 3
COUNT = 400
KILLED_AFTER = ("saved 100", "saved 200", "saved 300")
LOST_ANSWER = "<storage.writer:Writer._finish"
"""Where the daemon dies with a save that it has committed and not answered."""
LOST_COMMIT = 50
CLAIM_TERM_S, POLL_S = 10.0, 0.1

DOCUMENT = b"".join(map(b"%08d".__mod__, range(1 << 19)))
PAGES = [b"%08d" % number * 8192 for number in range(32)]
BYTES = 6 << 20

BEGIN = [
    "created version 1",
    "saved version 2",
    "conflict VERSION_MISMATCH at version 2",
    "resolved as version 3",
    "replayed version 3",
    "refused LEASE_HELD",
    "leased version 4",
    "streamed versions 5 to 14",
    "effect NEW: paid",
    f"wrote {BYTES} bytes as version 15",
    "waiting at version 16",
]
RESUME = [
    re.compile(rf"hydrated version 16 in ([2-9]|[1-9]\d+) pages: {BYTES} bytes, sha256 ([0-9a-f]{{64}})"),
    "effect DONE: receipt 17",
    "answer yes from ana",
    "completed version 17",
]
MESSAGES = ["hello", "message 1", *(f"frame {number}" for number in range(1, 11)), "booked"]


class ForeignAgent:
    """The program of one language, and the thread that it keeps."""

    def __init__(self, program: Path, thread: str, daemon: FaultyDaemon) -> None:
        self._program, self.thread, self.daemon = program, thread, daemon
        self._stderr = daemon.socket.with_name("agent.stderr")

    @contextmanager
    def run(self, phase: str, **more: str) -> Iterator[Iterator[str]]:
        """Runs a phase, with ``more`` in its environment. Yields the lines that it prints, and kills the program when
        the block is left."""
        environment = {**os.environ, "STATEWARD_TARGET": self.daemon.target, "STATEWARD_THREAD": self.thread, **more}
        with self._stderr.open("w") as stderr, running(
            [self._program, phase], cwd=REPOSITORY, env=environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
        ) as process:  # fmt: skip
            limit = threading.Timer(PHASE_LIMIT_S, process.kill)
            limit.start()
            assert process.stdout is not None
            try:
                yield (line.rstrip("\n") for line in process.stdout)
            finally:
                limit.cancel()

    def finish(self, phase: str) -> list[str]:
        """Runs a phase to its end and returns the lines that it prints."""
        with self.run(phase) as lines:
            return list(lines)

    def compare(self, said: list[str], expected: Sequence[str | re.Pattern[str]]) -> None:
        """Compares the lines of a phase with the expected ones. Shows all of them, and stderr, if one differs."""
        if len(said) == len(expected) and all(map(_fits, said, expected)):
            return
        wanted = [each if isinstance(each, str) else each.pattern for each in expected]
        stderr = self._stderr.read_text()[-6000:]
        parts = {"the agent printed": said, "expected": wanted, "stderr": stderr.splitlines()}
        raise AssertionError("\n".join("\n  ".join([f"{name}:", *lines]) for name, lines in parts.items()))


class TcpDaemon(FaultyDaemon):
    """A daemon at a port of this machine, the same one after each start."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._flags["exposed_port"] = True
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port: int = free.getsockname()[1]

    @property
    def target(self) -> str:
        """The daemon's target."""
        return f"127.0.0.1:{self._port}"


class TlsDaemon(FaultyDaemon):
    """A daemon with a port whose clients need a certificate, beside its socket."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.authority = Authority(directory)
        own = self.authority.sign("daemon")
        self.port: int = free_ports(1)[0]
        self._flags |= {
            "listen": f"127.0.0.1:{self.port}?tls", "tls_cert": own.cert, "tls_key": own.key,
            "tls_client_ca": self.authority.path,
        }  # fmt: skip


class CertifiedAgent(ForeignAgent):
    """A program that reaches its daemon through that port."""

    def __init__(self, program: Path, thread: str, daemon: TlsDaemon) -> None:
        super().__init__(program, thread, daemon)
        own = daemon.authority.sign("agent", ["spiffe://example.org/agent"])
        self.files = {
            "STATEWARD_TARGET": f"localhost:{daemon.port}", "STATEWARD_TLS_CA": str(daemon.authority.path),
            "STATEWARD_TLS_CERT": str(own.cert), "STATEWARD_TLS_KEY": str(own.key),
        }  # fmt: skip

    def run(self, phase: str, **more: str) -> AbstractContextManager[Iterator[str]]:
        """Does so with the certificate."""
        return super().run(phase, **{**self.files, **more})

    def stderr(self) -> str:
        """What the last run printed there."""
        return self._stderr.read_text()


@contextmanager
def run_daemon(kind: type[D] = FaultyDaemon) -> Iterator[D]:  # type: ignore[assignment]
    """A daemon with a directory of its own, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="sw-", dir="/tmp") as directory:  # a socket's path must be short
        daemon = kind(Path(directory))
        daemon.start()
        try:
            yield daemon
        finally:
            daemon.kill()


def play(agent: ForeignAgent) -> None:
    """Runs the phases `begin`, `answer` and `resume`. Agent and daemon are killed after the first one."""
    with agent.run("begin") as lines:
        agent.compare(lines_until(lines, BEGIN[-1]), BEGIN)
        agent.daemon.kill()
    agent.daemon.start()
    agent.compare(agent.finish("answer"), ["answered approve-room"])
    resumed = agent.finish("resume")
    agent.compare(resumed, RESUME)
    assert resumed[0].endswith(hashlib.sha256(b"".join([DOCUMENT, *PAGES])).hexdigest()), (
        "the pages were joined wrongly"
    )
    check_thread(agent)


def pay_slowly(agent: ForeignAgent) -> None:
    """Runs the phase `begin` with a bank that does not answer: the agent keeps its short claim by renewing it, and
    nobody else pays."""
    bank = agent.daemon.socket.with_name("bank")
    bank.unlink(missing_ok=True)
    os.mkfifo(bank)
    with agent.run("begin", STATEWARD_BANK=str(bank)) as lines:
        agent.compare(lines_until(lines, BEGIN[7]), BEGIN[:8])
        receipt = open_when_read(bank)  # from now on the tool is at work
        with grpc.insecure_channel(agent.daemon.target) as channel:
            watch_renewal(EffectServiceStub(channel), agent.thread)
        os.write(receipt, b"receipt 17")
        os.close(receipt)
        agent.compare(lines_until(lines, BEGIN[8]), BEGIN[8:9])
    with agent.daemon.client() as client:
        (effect,) = client.thread(agent.thread).effects.list("booking")
        assert (effect.state, effect.value, effect.attempts) == (EffectState.DONE, "receipt 17", 1)


def open_when_read(fifo: Path) -> int:
    """Opens a FIFO for writing as soon as somebody reads it."""
    end = time.monotonic() + PHASE_LIMIT_S / 2
    while True:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > end:
                raise
        time.sleep(POLL_S)


def watch_renewal(effects: EffectServiceStub, thread: str) -> None:
    """Asks for the claim of another agent until that one renews it, before its term of ten seconds is over."""
    request = BeginEffectRequest(thread=thread, anchor="booking", key="pay", options=WriteOptions(request_id="0"))
    request.holder.name, request.holder.incarnation = "another", "1"
    left_s, end = 0.0, time.monotonic() + PHASE_LIMIT_S / 2
    while True:
        request.options.request_id = str(int(request.options.request_id) + 1)
        begun = effects.BeginEffect(request)
        assert begun.state == EFFECT_STATE_IN_PROGRESS, "the claim was not renewed while its tool was at work"
        before_s, left_s = left_s, begun.retry_after.ToTimedelta().total_seconds()
        assert left_s <= CLAIM_TERM_S, "the term is long: who follows a dead agent waits for it"
        if before_s and left_s > before_s:
            return
        assert time.monotonic() < end, "the claim was not renewed"
        time.sleep(POLL_S)


def check_thread(agent: ForeignAgent) -> None:
    """The thread has what the phases saved, once, whatever the agent says."""
    with agent.daemon.client() as client:
        thread = client.thread(agent.thread)
        state = thread.hydrate()
        assert (state.version, thread.checkpoints.get().status) == (17, Status.COMPLETED)
        assert list(state.logs["messages"]) == MESSAGES
        assert {name: state.slots[name] for name in ("goal", "lease")} == {"goal": "a room in Paris", "lease": "held"}
        assert state.slots["document"] == DOCUMENT
        assert list(state.logs["pages"]) == PAGES
        assert thread.signals.list() == []
        (effect,) = thread.effects.list("booking")
        assert (effect.key, effect.state, effect.value, effect.attempts) == ("pay", EffectState.DONE, "receipt 17", 1)
        with thread.lease():  # the agent gave it back
            pass


def count(agent: ForeignAgent) -> None:
    """Runs the phase `count`. The daemon dies with an answer that it owes, and is killed three times more."""
    daemon = agent.daemon
    daemon.kill()
    daemon.start_faulty(LOST_ANSWER, LOST_COMMIT)
    with agent.run("count") as lines:
        daemon.wait_until_dead()
        daemon.start()
        said = []
        for line in lines:
            said.append(line)
            if line in KILLED_AFTER:
                daemon.kill()
                daemon.start()
    expected = [
        *(f"saved {number}" for number in range(100, COUNT + 1, 100)),
        re.compile(rf"counted {COUNT}, replayed [1-4]"),
    ]
    agent.compare(said, expected)
    with daemon.client() as client:
        state = client.thread(f"{agent.thread}-count").hydrate()
        assert (state.slots["count"], state.version) == (COUNT, COUNT)


def conform(program: Path, *patterns: str) -> int:
    """Plays the scenarios of `stateward conformance` that the patterns name; none = all. Returns how many there are.

    All must pass. Those of trees may be left out.
    """
    for _ in range(LATE_TIMES):
        passed, failed = _conform(program, *patterns)
        # A machine that is busy can make a client late. One that does not keep the time is late each time.
        if not failed or not all(LATE in each for each in failed):
            break
    assert failed == [], "\n".join(failed)
    return passed


def _conform(program: Path, *patterns: str) -> tuple[int, list[str]]:
    chosen = [word for pattern in patterns for word in ("--scenario", pattern)]
    command = [sys.executable, "-m", "stateward.cli", "conformance", "--json", *chosen, "--", str(program)]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=CONFORMANCE_LIMIT_S, check=False
    )
    assert done.returncode in {0, 1}, done.stderr
    found = json.loads(done.stdout)
    failed = [
        f"{each['scenario']}: {each['problem'] or each['outcome']}"
        for each in found["scenarios"]
        if each["outcome"] != "passed"
        and not (each["outcome"] == "left out" and each["scenario"].startswith(TREES))
    ]
    return found["passed"], failed


def lines_until(lines: Iterator[str], last: str) -> list[str]:
    """Returns the lines up to this one, or all."""
    said = []
    for line in lines:
        said.append(line)
        if line == last:
            break
    return said


def _fits(line: str, expected: str | re.Pattern[str]) -> bool:
    return line == expected if isinstance(expected, str) else expected.fullmatch(line) is not None
