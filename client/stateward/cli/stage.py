"""The demo's processes: a daemon and an agent that can be killed, and that never outlive the demo.

A handler that raises can raise anywhere: between the start of a process and the line that remembers it, or in the
middle of cleaning up. So on a stage Ctrl-C and SIGTERM raise inside `Signals.heard` only, and only once.
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

from stateward.cli.output import CommandError

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


class Signals:
    """Ctrl-C and SIGTERM: raise in `heard` and not in `held`, wait elsewhere, and are never lost.

    The first one is the last that raises, so that nothing interrupts what it sets going. One that is swallowed all the
    same (Python drops what is raised in a destructor) raises again at the next `check`.
    """

    def __init__(self) -> None:
        self._before: dict[int, Callable[[int, FrameType | None], object]] = {}
        self._caught: int | None = None
        self._raises = False

    def take(self) -> None:
        """From now on they wait; one that is ignored (as for a job in the background) stays so."""
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):
                self._before[number] = handler
                signal.signal(number, self._catch)

    def give_back(self) -> None:
        """Ends it, and raises what waited. After an interruption the process is about to end: nothing more is heard."""
        self.check()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raises what has come so far."""
        if self._caught is not None:
            self._raises = False
            self._before[self._caught](self._caught, None)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Lets them raise, at any moment."""
        with self._switched(raises=True):
            yield

    @contextmanager
    def held(self) -> Iterator[None]:
        """Puts them off to its end."""
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
    """A directory with a daemon in it. Data go to `keep`, or away at the end."""

    def __init__(self, keep: Path | None) -> None:
        missing = next((name for name in NEEDED if importlib.util.find_spec(name) is None), "")
        if missing:
            raise CommandError(
                f"the demo starts a daemon, whose package {missing} is not installed; "
                "run: pip install 'stateward[sidecar,cli]'"
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
        """Another machine: an empty disk, and the same key and bucket. From now on ``daemon`` is the one on it.

        Nothing starts yet. What is to be kept is on the last machine.
        """
        from stateward.testing import Daemon  # noqa: PLC0415  after it is known that there is one

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
        """The machine hangs: its daemon stops dead. Returns what somebody on it had read just before."""
        with self.daemon.client() as client:
            deadline = time.monotonic() + QUIET_WITHIN_S
            while (lag := client.stats().archive) and lag.dirty_threads and time.monotonic() < deadline:
                time.sleep(POLL_S)
            state = client.thread(THREAD).hydrate()
        os.kill(self.daemon.pid, signal.SIGSTOP)
        return state

    def lose(self, daemon: Daemon) -> None:
        """The machine is gone, with its disk."""
        daemon.kill()
        shutil.rmtree(daemon.data_dir)

    def start_daemon(self) -> float:
        """Starts the daemon, again or for the first time; returns the seconds until it was ready."""
        started = time.perf_counter()
        try:
            with self.signals.held():
                self.daemon.start()
        except RuntimeError as error:
            raise CommandError(f"the demo's daemon does not start: {str(error).splitlines()[-1]}") from None
        return time.perf_counter() - started

    def run_agent(
        self, steps: int, *, kill_after: int | None = None, is_archived: bool = False, spares_daemon: bool = False
    ) -> Telling:
        """Lets the agent work: to its end, or until a random moment after step `kill_after`, when both are killed.

        With `spares_daemon` only the agent is killed.
        """
        telling = Telling()
        command = [sys.executable, "-m", "stateward.cli.agent"]
        command += ["--target", self.daemon.target, "--thread", THREAD, "--steps", str(steps)]
        command += ["--durability", "archived" if is_archived else "committed"]
        with self.signals.held():  # a group of its own, so that Ctrl-C reaches only the demo, which then kills it
            agent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)  # noqa: S603
            self._agent = agent
            # A daemon thread: the interpreter's end waits for every other one, and this one takes a minute.
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
        """Hears the agent out, to its last word before a kill."""
        assert agent.stdout is not None
        for line in agent.stdout:
            self.signals.check()
            telling.hear(json.loads(line))
            if kill_after is not None and telling.steps and telling.steps[-1] >= kill_after:
                time.sleep(random.uniform(0, KILL_DELAY_MAX_S))  # noqa: S311  any moment will do
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
