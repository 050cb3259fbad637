"""Runs one command at a time for each thread with waiting signals. `stateward run` uses it.

All events (a signal arrived, a command ended, a poll, the stop) go into one queue, and one thread handles them, so that
nothing needs a lock. Before it starts a command, that thread asks the daemon which signals wait. A late or repeated
event therefore does no harm.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from stateward.cli.output import CommandError, note
from stateward.errors import NoArchive, NotFound, OwnershipLost, StatewardError, Unavailable
from stateward.models import Access, Status

if TYPE_CHECKING:
    from stateward import Client

PAUSE_MAX_S = 60.0
# How long commands may take to end after SIGTERM, before they are killed.
GRACE_S = 20.0
# Pause between attempts to reach a daemon, after the client's own retries have failed.
RECONNECT_S = 2.0
# The archive is listed once in this many polls: a list costs two to four requests for each archived thread.
ARCHIVE_LOOKS = 10
Happening = Callable[[], None]


@dataclass(frozen=True)
class Chosen:
    """Selects threads: by name, if names are given, and by labels, all of which must match."""

    threads: frozenset[str]
    labels: Mapping[str, str]

    def has(self, thread: str) -> bool:
        """Whether a thread with matching labels is selected."""
        return not self.threads or thread in self.threads


@dataclass(frozen=True)
class Pauses:
    """How long to wait, in seconds."""

    poll_s: float
    first_s: float


@dataclass
class Agent:
    """The command of a thread."""

    process: subprocess.Popen[bytes] | None = None
    told: frozenset[str] = frozenset()
    """Ids of the signals that were waiting when the command started."""
    failures: int = 0
    """How many times in a row the command ended while all of these signals still waited."""
    again_at: float = field(default=0.0)
    """Earliest time of the next start, on the monotonic clock; 0 = no start is planned."""


class Starter:
    """Starts commands until it is stopped."""

    def __init__(
        self, client: Client, command: str, chosen: Chosen, pauses: Pauses, *, at_most: int, is_once: bool
    ) -> None:
        self._client = client
        self._command = command
        self._chosen = chosen
        self._pauses = pauses
        self._at_most = at_most
        self._is_once = is_once
        self._agents: dict[str, Agent] = {}
        self._queued: dict[str, None] = {}  # threads that wait for a free place, in order
        self._happened: queue.SimpleQueue[Happening] = queue.SimpleQueue()  # reentrant: a signal handler may call put
        self._is_over = False
        self._has_ended = threading.Event()
        self._failure: StatewardError | None = None

    def run(self) -> None:
        """Returns after SIGTERM or Ctrl-C, or, with `is_once`, when an agent is done. Raises permanent errors."""
        with self._stopped_by_signals():
            threading.Thread(target=self._listen, daemon=True).start()
            if not self._chosen.threads:
                threading.Thread(target=self._survey, daemon=True).start()
            next_poll = 0.0
            try:
                while not self._is_over:
                    now = time.monotonic()
                    if now >= next_poll:
                        next_poll = now + self._pauses.poll_s
                        self._guarded(self._poll)
                    self._start_due(now)
                    with suppress(queue.Empty):
                        self._happened.get(timeout=max(self._next_due(next_poll) - time.monotonic(), 0))()
            finally:
                self._end_agents()
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            for each in before:
                signal.signal(each, lambda *_: self._happened.put(self._stop))
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _stop(self) -> None:
        self._is_over = True

    # -- events -----------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Runs in its own thread. Watches signals and queues a look at their threads until the end."""
        while not self._is_over:
            try:
                with self._client.watch_signals(labels=self._chosen.labels) as stream:
                    for wake in stream:
                        if self._chosen.has(wake.thread):
                            self._happened.put(partial(self._look, wake.thread))
            except (Unavailable, OwnershipLost):
                time.sleep(RECONNECT_S)
            except RuntimeError:  # the client was closed: stop
                return
            except StatewardError as error:
                self._happened.put(partial(self._fail, error))
                return

    def _fail(self, error: StatewardError) -> None:
        self._failure, self._is_over = error, True

    def _survey(self) -> None:
        """Runs in its own thread, because it takes long. Queues a look at each archived thread that has signals, also
        at threads that are not on this daemon's disk. Returns if there is no archive.
        """
        while not self._is_over:
            try:
                with self._client.archive.list() as listing:
                    for each in listing:
                        if self._is_over:
                            return
                        info = each.thread
                        if info is not None and info.status == Status.WAITING and info.pending_signals:
                            self._happened.put(partial(self._look, info.name))
            except (NoArchive, RuntimeError):  # RuntimeError: the client was closed
                return
            except StatewardError as error:
                note(f"{error.message}; the archive is read again later")
            self._has_ended.wait(self._pauses.poll_s * ARCHIVE_LOOKS)

    def _poll(self) -> None:
        """Looks at the threads for which another sidecar may have received a signal."""
        names = set(self._chosen.threads)
        if not names:
            found = self._client.threads(status=Status.WAITING, labels=self._chosen.labels)
            names = {info.name for info in found if info.access == Access.REMOTE or info.pending_signals}
        for name in sorted(names):
            self._look(name)

    def _guarded(self, look: Happening) -> None:
        """Runs `look`. Prints an error of the daemon instead of raising it, because the next poll tries again."""
        try:
            look()
        except StatewardError as error:  # one unreadable thread must not stop the others
            note(f"{error.message}; trying again at the next poll")

    def _look(self, name: str) -> None:
        """Starts a thread's command if signals wait and the command is not running."""
        agent = self._agents.get(name)
        if agent is None or agent.process is None:
            self._guarded(partial(self._start_if_needed, name))

    def _waiting(self, name: str) -> frozenset[str]:
        """Returns the ids of the waiting signals. Empty if the labels do not match or the thread does not exist."""
        try:
            thread = self._client.thread(name)
            labels = thread.info().labels if self._chosen.labels else {}
            if any(labels.get(key) != value for key, value in self._chosen.labels.items()):
                return frozenset()
            return frozenset(each.id for each in thread.signals())
        except NotFound:
            return frozenset()

    # -- commands ---------------------------------------------------------------------------------------------------

    def _start_due(self, now: float) -> None:
        for name, agent in list(self._agents.items()):
            if agent.process is None and 0 < agent.again_at <= now:
                agent.again_at = 0.0
                self._look(name)

    def _next_due(self, next_poll: float) -> float:
        return min([next_poll, *(each.again_at for each in self._agents.values() if each.again_at)])

    def _start_if_needed(self, name: str) -> None:
        waiting = self._waiting(name)
        if not waiting:
            self._agents.pop(name, None)
            return
        agent = self._agents.get(name)
        if agent is not None and agent.again_at > time.monotonic() and waiting <= agent.told:
            return  # no new signals, and the pause is not over
        if self._is_full():
            self._queued[name] = None
            return
        agent = self._agents.setdefault(name, Agent())
        if agent.told != waiting:
            agent.told, agent.failures = waiting, 0
        environment = {
            **os.environ,
            "STATEWARD_TARGET": self._client.target,
            "STATEWARD_NAMESPACE": self._client.namespace,
            "STATEWARD_THREAD": name,
        }
        try:  # its own process group: SIGTERM reaches the shell's children too, and Ctrl-C only this process
            process = subprocess.Popen(["/bin/sh", "-c", self._command], env=environment, process_group=0)  # noqa: S603
        except OSError as error:
            raise CommandError(f"--on-signal: {error.strerror or error}") from None
        agent.process, agent.again_at = process, 0.0
        threading.Thread(target=self._await, args=(name, process), daemon=True).start()

    def _await(self, name: str, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        self._happened.put(partial(self._ended, name, code))

    def _ended(self, name: str, code: int) -> None:
        """Handles the end of a command. Starts it again for new signals, or after a pause for the same ones."""
        agent = self._agents[name]
        agent.process = None
        try:
            waiting = self._waiting(name)
        except StatewardError:
            waiting = agent.told  # unknown: assume that nothing was acknowledged
        if waiting == agent.told:
            pause_s = min(self._pauses.first_s * 2**agent.failures, PAUSE_MAX_S)
            agent.failures += 1
            agent.again_at = time.monotonic() + pause_s
            note(f"{name}: the command ended with {code} and acknowledged nothing; starts again in {pause_s:g} s")
        elif self._is_once and not waiting:
            self._is_over = True
        elif waiting:
            self._guarded(partial(self._start_if_needed, name))
        else:
            del self._agents[name]
        while self._queued and not self._is_full() and not self._is_over:
            queued = next(iter(self._queued))
            del self._queued[queued]
            self._look(queued)

    def _is_full(self) -> bool:
        return sum(each.process is not None for each in self._agents.values()) >= self._at_most

    def _end_agents(self) -> None:
        """Sends SIGTERM to the running commands and waits for them. Kills them after GRACE_S."""
        self._is_over = True
        self._has_ended.set()
        running = [agent.process for agent in self._agents.values() if agent.process is not None]
        for process in running:
            _kill(process, signal.SIGTERM)
        end = time.monotonic() + GRACE_S
        for process in running:
            try:
                process.wait(max(end - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                _kill(process, signal.SIGKILL)
                process.wait()


def _kill(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
