"""What `stateward run` does: one command at a time for each thread with signals that wait.

Everything that happens (a signal came, a command ended, a look around, the end) is put into one queue and dealt with on
one thread, so that there is nothing to lock. What decides whether a command is to be started is never what was heard,
but what the daemon says then: what is heard twice, or late, does no harm.
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
# Between tries to reach a daemon that is away for longer than the client's patience.
RECONNECT_S = 2.0
# The archive is asked at every so many looks around: that costs two to four requests for each thread in it.
ARCHIVE_LOOKS = 10
Happening = Callable[[], None]


@dataclass(frozen=True)
class Chosen:
    """Which threads are looked after: those named, if there are any, with all of the labels."""

    threads: frozenset[str]
    labels: Mapping[str, str]

    def has(self, thread: str) -> bool:
        """Whether a thread of the right labels is meant."""
        return not self.threads or thread in self.threads


@dataclass(frozen=True)
class Pauses:
    """How long to wait, in seconds."""

    poll_s: float
    first_s: float


@dataclass
class Agent:
    """A thread's command, as far as it is known here."""

    process: subprocess.Popen[bytes] | None = None
    told: frozenset[str] = frozenset()
    """Ids of the signals that waited when the command was started."""
    failures: int = 0
    """How often in a row it has ended with all of them still waiting."""
    again_at: float = field(default=0.0)
    """Not before this time, of the monotonic clock."""


class Starter:
    """Starts commands until it is told to end."""

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
        self._queued: dict[str, None] = {}  # threads for which no more commands could be started, in order
        self._happened: queue.SimpleQueue[Happening] = queue.SimpleQueue()  # reentrant: a signal handler may put
        self._is_over = False
        self._has_ended = threading.Event()
        self._failure: StatewardError | None = None

    def run(self) -> None:
        """Returns after SIGTERM or Ctrl-C, or with `is_once` when an agent is done. Raises what no waiting mends."""
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

    # -- what is heard ----------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """On a thread of its own: passes on which threads have signals, as long as it takes."""
        while not self._is_over:
            try:
                with self._client.watch_signals(labels=self._chosen.labels) as stream:
                    for wake in stream:
                        if self._chosen.has(wake.thread):
                            self._happened.put(partial(self._look, wake.thread))
            except (Unavailable, OwnershipLost):
                time.sleep(RECONNECT_S)
            except RuntimeError:  # the client was closed: this is the end
                return
            except StatewardError as error:
                self._happened.put(partial(self._fail, error))
                return

    def _fail(self, error: StatewardError) -> None:
        self._failure, self._is_over = error, True

    def _survey(self) -> None:
        """On a thread of its own, as it takes long: passes on which threads in the archive have signals, also those
        that this daemon's disk knows nothing of. Ends where there is no archive."""
        while not self._is_over:
            try:
                with self._client.archive.list() as listing:
                    for each in listing:
                        if self._is_over:
                            return
                        info = each.thread
                        if info is not None and info.status == Status.WAITING and info.pending_signals:
                            self._happened.put(partial(self._look, info.name))
            except (NoArchive, RuntimeError):  # RuntimeError: the client was closed, this is the end
                return
            except StatewardError as error:
                note(f"{error.message}; the archive is asked again later")
            self._has_ended.wait(self._pauses.poll_s * ARCHIVE_LOOKS)

    def _poll(self) -> None:
        """Looks at the threads known here that another sidecar may have got a signal for."""
        names = set(self._chosen.threads)
        if not names:
            found = self._client.threads(status=Status.WAITING, labels=self._chosen.labels)
            names = {info.name for info in found if info.access == Access.REMOTE or info.pending_signals}
        for name in sorted(names):
            self._look(name)

    def _guarded(self, look: Happening) -> None:
        """What fails for a while is done again, at the next look."""
        try:
            look()
        except StatewardError as error:  # one thread that cannot be read stops no other one
            note(f"{error.message}; trying again at the next look")

    def _look(self, name: str) -> None:
        """Has a thread's command started if signals wait and it does not run."""
        agent = self._agents.get(name)
        if agent is None or agent.process is None:
            self._guarded(partial(self._start_if_needed, name))

    def _waiting(self, name: str) -> frozenset[str]:
        """Ids of the signals that wait."""
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
            return  # it has seen them all, and its pause is not over
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
        try:  # a group of its own: a signal for it reaches what the shell started, and Ctrl-C only this process
            process = subprocess.Popen(["/bin/sh", "-c", self._command], env=environment, process_group=0)  # noqa: S603
        except OSError as error:
            raise CommandError(f"--on-signal: {error.strerror or error}") from None
        agent.process, agent.again_at = process, 0.0
        threading.Thread(target=self._await, args=(name, process), daemon=True).start()

    def _await(self, name: str, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        self._happened.put(partial(self._ended, name, code))

    def _ended(self, name: str, code: int) -> None:
        """Looks what is left to do for a thread: a signal that came meanwhile, or the same one again, after a pause."""
        agent = self._agents[name]
        agent.process = None
        try:
            waiting = self._waiting(name)
        except StatewardError:
            waiting = agent.told  # not known: as if nothing was done
        if waiting == agent.told:
            pause_s = min(self._pauses.first_s * 2**agent.failures, PAUSE_MAX_S)
            agent.failures += 1
            agent.again_at = time.monotonic() + pause_s
            note(f"{name}: the command ended with {code} and acknowledged nothing; again in {pause_s:g} s")
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
        """Passes SIGTERM on to what runs, and waits for it."""
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
