"""Runs the demo's processes: a daemon and an agent that can be killed. Neither outlives the demo.

A signal handler that raises can do so anywhere: between the start of a process and the assignment of its variable, or
during the cleanup. So on a stage Ctrl-C, SIGTERM and SIGHUP raise only inside `Signals.heard`, and only once.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from stateward._version import install_command
from stateward.cli.show.output import CommandError

if TYPE_CHECKING:
    from stateward import State
    from stateward.testing import Daemon

THREAD = "survey"
AGENT_TIMEOUT_S = 60.0
KILL_DELAY_MAX_S = 0.02
QUIET_WITHIN_S, POLL_S = 5.0, 0.01
NEEDED = ("lmdb", "zstandard", "cryptography", "grpc_health", "grpc_reflection")


@dataclass
class Telling:
    """What one run of the agent process printed."""

    hydrated_version: int = 0
    hydrate_s: float = 0.0
    steps: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    save_s: list[float] = field(default_factory=list)
    is_done: bool = False

    def hear(self, what: dict[str, Any]) -> None:
        """Takes one line of the agent's output."""
        match what["event"]:
            case "hydrated":
                self.hydrated_version, self.hydrate_s = what["version"], what["seconds"]
            case "saved":
                self.steps.append(what["step"])
                self.versions.append(what["version"])
                self.save_s.append(what["seconds"])
            case "done":
                self.is_done = True


class Signals:
    """Delays Ctrl-C, SIGTERM and SIGHUP: they raise inside `heard`, wait elsewhere and inside `held`, and are not lost.

    Only the first signal raises, so that no other one interrupts the cleanup. If its exception is lost (Python drops
    an exception raised in a destructor), the next `check` raises it again.
    """

    def __init__(self) -> None:
        self._before: dict[int, Callable[[int, FrameType | None], object]] = {}
        self._caught: int | None = None
        self._raises = False

    def take(self) -> None:
        """Starts to delay the signals. A signal that the process ignores (such as in a background job) stays
        ignored."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            handler = signal.getsignal(number)
            if callable(handler):
                self._before[number] = handler
                signal.signal(number, self._catch)

    def give_back(self) -> None:
        """Raises a signal that waits, then restores the handlers. After a signal they stay: the process is about to
        end."""
        self.check()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raises the signal that arrived, if any."""
        if self._caught is not None:
            self._raises = False
            self._before[self._caught](self._caught, None)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Lets signals raise at any moment inside the block."""
        with self._switched(raises=True):
            yield

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delays signals until the end of the block."""
        with self._switched(raises=False):
            yield

    @contextmanager
    def _switched(self, *, raises: bool) -> Iterator[None]:
        before, self._raises = self._raises, raises
        try:
            if raises:
                self.check()
            yield
        finally:
            self._raises = before
            self.check()

    def _catch(self, number: int, _frame: FrameType | None) -> None:
        if self._caught is None:
            self._caught = number
        if self._raises:
            self.check()


class Stage:
    """A directory with a daemon. Its data are stored in `keep`; without `keep` they are deleted at the end."""

    def __init__(self, keep: Path | None) -> None:
        missing = next((name for name in NEEDED if importlib.util.find_spec(name) is None), "")
        if missing:
            raise CommandError(
                f"the demo starts a daemon, which needs the package {missing}; it is not installed; "
                f"run: {install_command('sidecar,cli')}"
            )
        self._keep = _prepare(keep)
        self._machines: list[Daemon] = []
        self._agent: subprocess.Popen[str] | None = None
        self.signals = Signals()

    def __enter__(self) -> Self:
        self.signals.take()
        self._directory = Path(tempfile.mkdtemp(prefix="sw-demo-"))
        self.bucket = (self._keep or self._directory) / "bucket"
        self.add_machine("first")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end_agent()
            if error is None:
                self.daemon.stop()
        finally:
            for daemon in self._machines:
                daemon.kill()
            shutil.rmtree(self._directory, ignore_errors=True)
            self.signals.give_back()

    def add_machine(self, owner: str, *, is_last: bool = False) -> Daemon:
        """Adds a machine: an empty disk, with the same key and bucket. ``daemon`` becomes its daemon, not started yet.

        The last machine stores its data in `keep`.
        """
        from stateward.testing import Daemon  # noqa: PLC0415  only after the check that the daemon is installed

        place = self._directory / owner
        place.mkdir()
        data_dir = self._keep / "data" if is_last and self._keep is not None else None
        key_file = (self._keep or self._directory) / "data.key"
        self.daemon: Daemon = Daemon(
            place, data_dir, key_file, archive=self.bucket.as_uri(), owner_id=owner, log_format="text"
        )
        self._machines.append(self.daemon)
        return self.daemon

    def freeze(self) -> State:
        """Freezes the machine: stops its daemon. Returns the state that an agent on it read just before."""
        with self.daemon.client() as client:
            deadline = time.monotonic() + QUIET_WITHIN_S
            while (lag := client.stats().archive) and lag.dirty_threads and time.monotonic() < deadline:
                time.sleep(POLL_S)
            state = client.thread(THREAD).hydrate()
        os.kill(self.daemon.pid, signal.SIGSTOP)
        return state

    def lose(self, daemon: Daemon) -> None:
        """Kills the machine's daemon and deletes its disk."""
        daemon.kill()
        shutil.rmtree(daemon.data_dir)

    def start_daemon(self) -> float:
        """Starts or restarts the daemon. Returns the seconds until it was ready. Raises CommandError if it fails."""
        started = time.perf_counter()
        try:
            with self.signals.held():
                self.daemon.start()
        except RuntimeError as error:
            raise CommandError(f"the demo's daemon failed to start: {str(error).splitlines()[-1]}") from None
        return time.perf_counter() - started

    def run_agent(
        self, steps: int, *, kill_after: int | None = None, is_archived: bool = False, spares_daemon: bool = False
    ) -> Telling:
        """Runs the agent to its end, or kills agent and daemon at a random moment after step `kill_after`.

        `spares_daemon` kills only the agent.
        """
        telling = Telling()
        command = [sys.executable, "-m", "stateward.cli.demo.agent"]
        command += ["--target", self.daemon.target, "--thread", THREAD, "--steps", str(steps)]
        command += ["--durability", "archived" if is_archived else "committed"]
        with self.signals.held():  # its own process group: Ctrl-C reaches only the demo, which kills the agent
            agent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)  # noqa: S603
            self._agent = agent
            # A daemon thread: at exit the interpreter waits for all other threads, and this one lasts a minute.
            watchdog = threading.Timer(AGENT_TIMEOUT_S, agent.kill)
            watchdog.daemon = True
            watchdog.start()
        try:
            self._listen(agent, telling, kill_after, spares_daemon=spares_daemon)
        finally:
            watchdog.cancel()
        with self.signals.held():
            self._end_agent()
        return telling

    def _listen(
        self, agent: subprocess.Popen[str], telling: Telling, kill_after: int | None, *, spares_daemon: bool
    ) -> None:
        """Reads the agent's output to its end, also after a kill."""
        assert agent.stdout is not None
        for line in agent.stdout:
            self.signals.check()
            telling.hear(json.loads(line))
            if kill_after is not None and telling.steps and telling.steps[-1] >= kill_after:
                time.sleep(random.uniform(0, KILL_DELAY_MAX_S))  # noqa: S311  needs no secure randomness
                with self.signals.held():
                    self._kill(agent, spares_daemon=spares_daemon)
                kill_after = None
        agent.wait()

    def _kill(self, agent: subprocess.Popen[str], *, spares_daemon: bool) -> None:
        kills = [agent.kill] if spares_daemon else [agent.kill, self.daemon.kill]
        random.shuffle(kills)
        for kill in kills:
            kill()

    def _end_agent(self) -> None:
        if self._agent is not None:
            self._agent.kill()
            self._agent.communicate()  # closes the pipe, and waits
            self._agent = None


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
