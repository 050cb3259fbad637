"""The command as people run it, against a real daemon.

`run` calls its entry point in this process with streams of its own, which saves each test the start of an interpreter;
`run_process` makes a process for what needs one (a pipe, a terminal, signals, an environment read at the start). It
begins warm (tests/warmcommand.py).
"""

import contextlib
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests import warmcommand
from tests.daemon.process import Pair, run_pair
from tests.processes import running

from stateward import Client
from stateward.testing import Daemon, missing_daemon, run_daemon

COMMAND = [sys.executable, "-m", "stateward.cli"]
TIMEOUT_S = 180


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line of stderr; fails where there is another, or a stack trace."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("stateward: ")
        return lines[0].removeprefix("stateward: ")

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STATEWARD_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}


class Person:
    """Stands in for the terminal: does something while a question is open, and then says yes."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.meanwhile = meanwhile
        self.questions = 0

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        self.questions += 1
        self.meanwhile()
        return "y\n"


def run(*arguments: str | Path, person: Person | None = None, **more: str) -> Answer:
    """Runs the command here. Its stdin is no terminal, unless a person sits there."""
    from stateward.cli.app import run as run_command

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    variables = dict(os.environ)
    try:
        os.environ.clear()
        os.environ.update(environment(**more))
        with (
            Path(os.devnull).open() as nothing,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            sys.stdin, stdin = person or nothing, sys.stdin
            try:
                code = run_command(list(map(str, arguments)))
            finally:
                sys.stdin = stdin
    finally:
        os.environ.clear()
        os.environ.update(variables)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return Answer(code, *(_written(stream) for stream in (out, err)))


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode(errors="surrogateescape")


def run_on_terminal(*arguments: str, typed: str = "", **more: str) -> tuple[int, str]:
    """Runs the command in a process on a terminal, and types; returns exit code and all that was shown.

    Not `pty.fork`: a process with gRPC's threads may hang in it for ever.
    """
    terminal, inside = pty.openpty()
    shown, end = b"", time.monotonic() + TIMEOUT_S
    variables = environment(**{"TERM": "xterm-256color", "COLUMNS": "100", **more})
    options = dict.fromkeys(("stdin", "stdout", "stderr"), inside)
    try:
        command = [*COMMAND, *arguments]
        with running(command, begin=warmcommand.Popen, env=variables, start_new_session=True, **options) as process:
            os.close(inside)
            os.write(terminal, typed.encode())
            with contextlib.suppress(OSError):  # nobody has the other end any more
                while select.select([terminal], [], [], max(end - time.monotonic(), 0))[0]:
                    shown += os.read(terminal, 1 << 16)
            return process.wait(max(end - time.monotonic(), 1)), shown.decode()
    finally:
        os.close(terminal)


def run_process(*arguments: str | Path, **more: str) -> Answer:
    """Runs the command in a process of its own, in a pipe."""
    process = warmcommand.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        env=environment(**more),
    )
    return Answer(process.returncode, process.stdout, process.stderr)


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    """One daemon for all tests that do not kill it."""
    if reason := missing_daemon():
        pytest.skip(reason)
    with run_daemon() as running:
        yield running


@pytest.fixture
def own_daemon() -> Iterator[Daemon]:
    """A daemon that may be killed."""
    if reason := missing_daemon():
        pytest.skip(reason)
    with run_daemon() as running:
        yield running


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two daemons that share an archive, for tests that harm neither."""
    if reason := missing_daemon():
        pytest.skip(reason)
    with run_pair(tmp_path_factory.mktemp("pair")) as running:
        yield running


@pytest.fixture
def own_pair(tmp_path: Path) -> Iterator[Pair]:
    """Two daemons that may be killed, with a bucket that may be harmed."""
    if reason := missing_daemon():
        pytest.skip(reason)
    with run_pair(tmp_path) as running:
        yield running


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    return request.node.name


@pytest.fixture
def stateward(daemon: Daemon, namespace: str) -> Callable[..., Answer]:
    """Runs the command on the daemon, in a namespace of the test's own."""
    return lambda *arguments, **more: run("--target", daemon.target, "--namespace", namespace, *arguments, **more)


@pytest.fixture
def client(daemon: Daemon, namespace: str) -> Iterator[Client]:
    with daemon.client(namespace=namespace) as opened:
        yield opened


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes runs as JSON Lines."""

    def write_runs(name: str, *runs: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(each) + "\n" for each in runs))
        return path

    return write_runs


def make_run(run_id: str, count: int, **more: Any) -> dict[str, Any]:
    """A run of `count` messages."""
    messages = [{"role": "assistant", "content": f"{run_id} says {number}"} for number in range(count)]
    return {"run_id": run_id, **more, "messages": messages}
