"""The demo's processes: a daemon and an agent that can be killed, and that never outlive the demo."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from stateward.cli.output import CommandError

if TYPE_CHECKING:
    from stateward.testing import Daemon

THREAD = "survey"
AGENT_TIMEOUT_S = 60.0
KILL_DELAY_MAX_S = 0.02
NEEDED = ("lmdb", "zstandard", "cryptography", "grpc_health", "grpc_reflection")


@dataclass
class Telling:
    """What one life of the agent told."""

    hydrated_version: int = 0
    hydrate_s: float = 0.0
    steps: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    save_s: list[float] = field(default_factory=list)
    is_done: bool = False

    def hear(self, what: dict[str, Any]) -> None:
        """Takes one line."""
        match what["event"]:
            case "hydrated":
                self.hydrated_version, self.hydrate_s = what["version"], what["seconds"]
            case "saved":
                self.steps.append(what["step"])
                self.versions.append(what["version"])
                self.save_s.append(what["seconds"])
            case "done":
                self.is_done = True


class Stage:
    """A directory with a daemon in it. Data go to `keep`, or away at the end."""

    def __init__(self, keep: Path | None) -> None:
        missing = next((name for name in NEEDED if importlib.util.find_spec(name) is None), "")
        if missing:
            raise CommandError(
                f"the demo starts a daemon, whose package {missing} is not installed; "
                "run: pip install 'stateward[sidecar,cli]'"
            )
        self._keep = _prepare(keep)

    def __enter__(self) -> Self:
        from stateward.testing import Daemon  # noqa: PLC0415  after it is known that there is one

        self._directory = Path(tempfile.mkdtemp(prefix="sw-demo-"))
        data_dir = None if self._keep is None else self._keep / "data"
        self.daemon: Daemon = Daemon(self._directory, data_dir, log_format="text")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.daemon.stop()
            else:
                self.daemon.kill()
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)

    def start_daemon(self) -> float:
        """Starts the daemon, again or for the first time; returns the seconds until it was ready."""
        started = time.perf_counter()
        try:
            with uninterrupted():
                self.daemon.start()
        except RuntimeError as error:
            raise CommandError(f"the demo's daemon does not start: {str(error).splitlines()[-1]}") from None
        return time.perf_counter() - started

    def run_agent(self, steps: int, *, kill_after: int | None = None) -> Telling:
        """Lets the agent work: to its end, or until a random moment after step `kill_after`, when both are killed."""
        telling = Telling()
        command = [sys.executable, "-m", "stateward.cli.agent"]
        command += ["--target", self.daemon.target, "--thread", THREAD, "--steps", str(steps)]
        agent: subprocess.Popen[str] | None = None
        try:
            with uninterrupted():  # a group of its own, so that Ctrl-C reaches only the demo, which then kills it
                agent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)  # noqa: S603
            self._listen(agent, telling, kill_after)
        finally:
            if agent is not None:
                agent.kill()
                agent.communicate()  # closes the pipe, and waits
        return telling

    def _listen(self, agent: subprocess.Popen[str], telling: Telling, kill_after: int | None) -> None:
        """Hears the agent out, to its last word before a kill."""
        watchdog = threading.Timer(AGENT_TIMEOUT_S, agent.kill)
        watchdog.start()
        try:
            assert agent.stdout is not None
            for line in agent.stdout:
                telling.hear(json.loads(line))
                if kill_after is not None and telling.steps and telling.steps[-1] >= kill_after:
                    time.sleep(random.uniform(0, KILL_DELAY_MAX_S))  # noqa: S311  any moment will do
                    self._kill_both(agent)
                    kill_after = None
            agent.wait()
        finally:
            watchdog.cancel()

    def _kill_both(self, agent: subprocess.Popen[str]) -> None:
        kills = [agent.kill, self.daemon.kill]
        random.shuffle(kills)
        for kill in kills:
            kill()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Puts off Ctrl-C and SIGTERM to its end, so that no process is started and then forgotten."""
    caught: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: caught.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if caught:
            signal.raise_signal(caught[0])


def _prepare(keep: Path | None) -> Path | None:
    if keep is None:
        return None
    try:
        keep.mkdir(parents=True, exist_ok=True)
        is_empty = not any(keep.iterdir())
    except OSError as error:
        raise CommandError(f"--keep {keep}: {error.strerror or error}") from None
    if not is_empty:
        raise CommandError(f"--keep {keep}: the directory is not empty; give another one")
    return keep.absolute()
