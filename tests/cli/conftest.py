"""The command as people run it: a process of its own, against a real daemon."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stateward import Client
from stateward.testing import Daemon, missing_daemon, run_daemon

COMMAND = [sys.executable, "-m", "stateward.cli"]
TIMEOUT_S = 60


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


def run(*arguments: str | Path, **more: str) -> Answer:
    process = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment(**more),
        check=False,
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


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    return request.node.name


@pytest.fixture
def stateward(daemon: Daemon, namespace: str) -> Callable[..., Answer]:
    """Runs the command on the daemon, in a namespace of the test's own."""
    return lambda *arguments: run("--target", daemon.target, "--namespace", namespace, *arguments)


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
