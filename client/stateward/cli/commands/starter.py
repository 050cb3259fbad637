"""Runs one command at a time for each thread with waiting signals. `stateward run` uses it.

All events (a signal arrived, a command ended, a poll) go into one queue, and one thread handles them, so that nothing
needs a lock. Before it starts a command, that thread asks the daemon which signals wait. A late or repeated event
therefore does no harm, and a thread that waits for a look already is not queued again. The stop alone does not wait in
the queue: a handler notes it, and every loop ends at the next step.

The end of a command says little about its agent: the command may have started the agent elsewhere. Exit code 0 means
that an agent was started, and only an acknowledgement says that it has done its work. So a command that ended with 0 is
not started again for the same signals until they have waited for long. Any other exit code is a failure.

Commands get a session without a terminal. So a terminal cannot stop them, and its end reaches this process alone. At
the end the whole process group of a command is waited for, because a shell ends at once while its agent still saves.
"""

from __future__ import annotations

import errno
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from stateward.cli.commands.processes import has_ended, kill
from stateward.cli.commands.threads import collected
from stateward.cli.show.output import CommandError, note
from stateward.errors import (
    InvalidRequest,
    NoArchive,
    NotFound,
    PermissionDenied,
    StatewardError,
    Unauthenticated,
)
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
# After SIGKILL a command has this long to be gone. One that runs as another user may not be killed.
KILLED_S = 5.0
# Signals that end the supervisor. SIGHUP says that the terminal is gone.
ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
# Errors that no later attempt would mend.
LASTING = (InvalidRequest, PermissionDenied, Unauthenticated)
# The machine has no room for another process at the moment.
NO_ROOM = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
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
    acknowledged_s: float
    """For the acknowledgement, after a command that ended with 0."""


@dataclass
class Agent:
    """The command of a thread."""

    process: subprocess.Popen[bytes] | None = None
    told: frozenset[str] = frozenset()
    """Ids of the signals that were waiting when the command started."""
    failures: int = 0
    """How many times in a row the command failed while all of these signals still waited."""
    is_away: bool = False
    """Whether the command ended with 0, and its agent has not acknowledged the signals yet."""
    looks: int = 0
    """How many times the daemon was asked for this acknowledgement."""
    again_at: float = 0.0
    """Earliest time of the next start for the same signals, on the monotonic clock."""
    look_at: float = 0.0
    """Time of the next look at the thread, on the monotonic clock; 0 = none is planned."""


class Starter:
    """Starts commands until it is stopped."""

    def __init__(
        self,
        client: Client,
        command: str,
        chosen: Chosen,
        pauses: Pauses,
        *,
        at_most: int,
        is_once: bool,
        is_detached: bool,
    ) -> None:
        self._client = client
        self._command = command
        self._chosen = chosen
        self._pauses = pauses
        self._at_most = at_most
        self._is_once = is_once
        self._is_detached = is_detached
        self._agents: dict[str, Agent] = {}
        self._queued: dict[str, None] = {}  # threads that wait for a free place, in order
        self._announced: set[str] = set()  # threads whose look is an event of the queue
        self._happened: queue.SimpleQueue[Happening] = queue.SimpleQueue()  # reentrant: a signal handler may call put
        self._is_over = False
        self._is_patient = False  # the terminal is gone: running commands may end by themselves
        self._has_ended = threading.Event()
        self._failure: StatewardError | None = None

    def run(self) -> None:
        """Returns after SIGTERM, SIGHUP or Ctrl-C, or, with `is_once`, when an agent is done. Raises lasting errors."""
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
                    self._look_due(now)
                    self._start_queued()
                    self._handle_until(self._next_due(next_poll))
            finally:
                self._end_agents()
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        before = {each: signal.getsignal(each) for each in (*ENDINGS, signal.SIGCHLD)}
        # A command that began under `nohup` goes on without a terminal.
        heard = [each for each in ENDINGS if each != signal.SIGHUP or before[each] != signal.SIG_IGN]
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, every exit code would be read as 0
            for each in heard:
                signal.signal(each, self._hang_up if each == signal.SIGHUP else self._stop)
            yield
        finally:
            for each in (*heard, signal.SIGCHLD):
                signal.signal(each, before[each])

    # Both are called between two steps of the thread that handles the events, and then wake it if it waits.

    def _stop(self, *_: object) -> None:
        self._is_over, self._is_patient = True, False
        self._happened.put(_do_nothing)

    def _hang_up(self, *_: object) -> None:
        self._is_patient = self._is_patient or not self._is_over
        self._is_over = True
        self._happened.put(_do_nothing)

    def _handle_until(self, end: float) -> None:
        """Waits for an event until a time of the monotonic clock, and handles it."""
        with suppress(queue.Empty):
            self._happened.get(timeout=max(end - time.monotonic(), 0))()

    def _announce(self, name: str) -> None:
        """Queues a look at a thread, from any thread. Does nothing if one is queued that has not begun."""
        if name not in self._announced:
            self._announced.add(name)
            self._happened.put(partial(self._look_announced, name))

    def _look_announced(self, name: str) -> None:
        self._announced.discard(name)  # before the look: what comes from now on may come too late for it
        self._look(name)

    # -- events -----------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Runs in its own thread. Watches signals and queues a look at their threads until the end."""
        while not self._is_over:
            try:
                with self._client.watch_signals(labels=self._chosen.labels) as stream:
                    for wake in stream:
                        if self._chosen.has(wake.thread):
                            self._announce(wake.thread)
            except LASTING as error:
                self._happened.put(partial(self._fail, error))
                return
            except StatewardError as error:
                if not error.retryable:  # such as a damaged thread: the others are watched again
                    _tell(f"{error.message}; signals are watched again")
            except RuntimeError as error:  # no room for a thread, or the client was closed, which is the end
                if not self._is_over:
                    _tell(f"{error}; signals are watched again")
            self._has_ended.wait(RECONNECT_S)

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
                            self._announce(info.name)
            except NoArchive:
                return
            except (StatewardError, RuntimeError) as error:  # RuntimeError: no room for a thread, or the end
                if not self._is_over:
                    _tell(f"{error}; the archive is read again later")
            self._has_ended.wait(self._pauses.poll_s * ARCHIVE_LOOKS)

    def _poll(self) -> None:
        """Looks at the threads for which another sidecar may have received a signal."""
        names = set(self._chosen.threads)
        if not names:
            found, problem = collected(self._client.threads(status=Status.WAITING, labels=self._chosen.labels))
            if problem is not None:  # the others are looked at
                _tell(problem.message)
            names = {info.name for info in found if info.access == Access.REMOTE or info.pending_signals}
        for name in sorted(names):
            self._look(name)

    def _guarded(self, look: Happening) -> None:
        """Runs `look`. Prints an error of the daemon instead of raising it, because the next poll tries again."""
        try:
            look()
        except StatewardError as error:  # one unreadable thread must not stop the others
            _tell(f"{error.message}; trying again at the next poll")

    def _look(self, name: str) -> None:
        """Starts a thread's command if signals wait and the command is not running. After an error, looks again at the
        time of the next poll: a poll itself passes over threads that do not wait for an answer."""
        agent = self._agents.get(name)
        if self._is_over or (agent is not None and agent.process is not None):
            return
        try:
            self._start_if_needed(name)
        except StatewardError as error:
            _tell(f"{error.message}; trying again at the next poll")
            self._agents.setdefault(name, Agent()).look_at = time.monotonic() + self._pauses.poll_s

    def _waiting(self, name: str) -> frozenset[str]:
        """Returns the ids of the waiting signals. Empty if the labels do not match or the thread does not exist."""
        try:
            thread = self._client.thread(name)
            labels = thread.info().labels if self._chosen.labels else {}
            if any(labels.get(key) != value for key, value in self._chosen.labels.items()):
                return frozenset()
            return frozenset(each.id for each in thread.signals.list())
        except NotFound:
            return frozenset()

    # -- commands ---------------------------------------------------------------------------------------------------

    def _look_due(self, now: float) -> None:
        for name, agent in list(self._agents.items()):
            if agent.process is None and 0 < agent.look_at <= now:
                agent.look_at = 0.0
                self._look(name)

    def _next_due(self, next_poll: float) -> float:
        return min([next_poll, *(each.look_at for each in self._agents.values() if each.look_at)])

    def _start_if_needed(self, name: str) -> None:
        waiting = self._waiting(name)
        agent = self._agents.get(name)
        if not waiting:
            self._agents.pop(name, None)
            if self._is_once and agent is not None and agent.is_away:
                self._is_over = True
            return
        if agent is not None and self._must_wait(agent, waiting):
            self._plan_look(agent)
            return
        if self._is_full(besides=agent):
            self._queued[name] = None
            return
        agent = self._agents.setdefault(name, Agent())
        if agent.told != waiting:
            agent.told, agent.failures = waiting, 0
        agent.is_away, agent.looks, agent.again_at, agent.look_at = False, 0, 0.0, 0.0
        self._start(name, agent)

    def _must_wait(self, agent: Agent, waiting: frozenset[str]) -> bool:
        """Whether a command ended, and it is too early for the next one."""
        if time.monotonic() >= agent.again_at:
            return False
        if not (agent.is_away and self._is_detached):
            return waiting <= agent.told  # no new signals
        left = waiting & agent.told
        if left and left != agent.told:  # the agent is at work
            agent.told, agent.again_at = left, time.monotonic() + self._pauses.acknowledged_s
        return bool(left)

    def _plan_look(self, agent: Agent) -> None:
        """Plans the next look: when the pause ends. An acknowledgement is no signal, so it is looked for at times."""
        agent.look_at = agent.again_at
        if agent.is_away:
            pause_s = min(self._pauses.first_s * 2 ** min(agent.looks, 30), self._pauses.poll_s)
            agent.looks += 1
            agent.look_at = min(agent.again_at, time.monotonic() + pause_s)

    def _start(self, name: str, agent: Agent) -> None:
        environment = {
            **os.environ,
            "STATEWARD_TARGET": self._client.target,
            "STATEWARD_NAMESPACE": self._client.namespace,
            "STATEWARD_THREAD": name,
        }
        started: queue.SimpleQueue[subprocess.Popen[bytes] | None] = queue.SimpleQueue()
        try:  # the waiting thread first: without it, nobody would notice the end of the command
            threading.Thread(target=self._await, args=(name, started), daemon=True).start()
        except RuntimeError as error:
            self._fall_behind(name, agent, str(error))
            return
        try:
            # Its own session: SIGTERM reaches the shell's children too, and Ctrl-C only this process. A command in this
            # session would be stopped for ever by a read from the terminal.
            agent.process = subprocess.Popen(  # noqa: S603
                ["/bin/sh", "-c", self._command], env=environment, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise CommandError(f"--on-signal: {error.strerror or error}") from None
            self._fall_behind(name, agent, error.strerror or str(error))
        except ValueError as error:  # this locale cannot write the name of the thread
            self._fall_behind(name, agent, str(error))
        finally:
            started.put(agent.process)

    def _await(self, name: str, started: queue.SimpleQueue[subprocess.Popen[bytes] | None]) -> None:
        process = started.get()
        if process is not None:
            code = process.wait()
            self._happened.put(partial(self._ended, name, code))

    def _ended(self, name: str, code: int) -> None:
        """Handles the end of a command. Starts it again for new signals, or after a pause for the same ones."""
        agent = self._agents[name]
        agent.process = None
        if self._is_over:
            return
        try:
            waiting = self._waiting(name)
        except StatewardError:
            waiting = agent.told  # unknown: assume that nothing was acknowledged
        if not waiting:
            del self._agents[name]
            if self._is_once:
                self._is_over = True
        elif code == 0 and (waiting == agent.told or (self._is_detached and waiting & agent.told)):
            self._wait_for_agent(name, agent, waiting)
        elif waiting == agent.told:
            self._fall_behind(name, agent, f"the command ended with {code} and acknowledged nothing")
        else:
            self._look(name)

    def _wait_for_agent(self, name: str, agent: Agent, waiting: frozenset[str]) -> None:
        """Leaves the signals to the agent that a command has started."""
        pause_s = self._pauses.acknowledged_s
        if waiting == agent.told and not self._is_detached:
            _tell(f"{name}: the command ended with 0 and acknowledged nothing yet; starts again in {pause_s:g} s")
        agent.told, agent.is_away, agent.failures = waiting & agent.told, True, 0
        agent.again_at = time.monotonic() + pause_s
        self._plan_look(agent)

    def _fall_behind(self, name: str, agent: Agent, why: str) -> None:
        """Plans the next start after a failure."""
        pause_s = min(self._pauses.first_s * 2 ** min(agent.failures, 30), PAUSE_MAX_S)
        agent.failures += 1
        agent.again_at = agent.look_at = time.monotonic() + pause_s
        _tell(f"{name}: {why}; starts again in {pause_s:g} s")

    def _start_queued(self) -> None:
        while self._queued and not self._is_full() and not self._is_over:
            name = next(iter(self._queued))
            del self._queued[name]
            self._look(name)

    def _is_full(self, besides: Agent | None = None) -> bool:
        """Whether --at-most commands run; with --detached, or agents work that they have started. With --once a second
        agent would be told to end as soon as the first is done."""
        counts_away, most = (self._is_detached or self._is_once), (1 if self._is_once else self._at_most)
        busy = [each for each in self._agents.values() if each.process or (counts_away and each.is_away)]
        return sum(each is not besides for each in busy) >= most

    def _end_agents(self) -> None:
        """Sends SIGTERM to the running commands and waits for them. Kills them after GRACE_S. If the terminal is gone,
        they first have GRACE_S to end by themselves: nobody has asked for their end."""
        self._is_over = True
        self._has_ended.set()
        end = time.monotonic() + GRACE_S
        while self._is_patient and self._running() and time.monotonic() < end:
            self._handle_until(end)
        running = self._running()
        for process in running:
            kill(process, signal.SIGTERM)
        end = time.monotonic() + GRACE_S
        left = [process for process in running if not has_ended(process, end)]
        for process in left:
            kill(process, signal.SIGKILL)
        end = time.monotonic() + KILLED_S
        for process in left:
            if not has_ended(process, end):
                _tell(f"process group {process.pid} could not be ended, and goes on")

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [agent.process for agent in self._agents.values() if agent.process is not None]


def _do_nothing() -> None:
    """An event that only wakes the thread that handles events."""


def _tell(message: str) -> None:
    """Prints a note. A terminal that is gone must not end the supervisor."""
    with suppress(OSError):
        note(message)
