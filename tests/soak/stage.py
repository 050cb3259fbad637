"""What the campaign plays on: the disk, the daemon, the agents and the onlookers, and what was counted and found."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.daemon.segments import SmallDaemon
from tests.soak.ledger import Book
from tests.soak.memory import Memory
from tests.soak.onlookers import Tail, Traveller, Watcher
from tests.soak.processes import make_agents
from tests.soak.small_disk import SmallDisk

THREADS_MAX = 6
PROGRESS_EVERY_S = 10.0
SWEEP_S = 5
REOPEN_AFTER = 200  # events, after which the second watcher comes back with its cursor


class CampaignStage:
    """Everything that runs, in a directory of its own; `short` is for the socket. `say` prints a line."""

    def __init__(self, directory: Path, short: Path, seed: int, agents: int, say: Callable[[str], None]) -> None:
        self._say = say
        self.dice = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.findings: list[str] = []
        self.disk = SmallDisk(directory / "disk")
        data = self.disk.directory / "data"
        self.daemon = SmallDaemon(short, data, log_level="warning", sweep_interval=SWEEP_S, **self.disk.flags)
        self.daemon.key_file = directory / "key"  # the disk may be full
        self.memory = Memory()
        self.agents = make_agents(directory, self.daemon.target, agents, seed, THREADS_MAX)
        self.watchers = [Watcher(self.daemon.target, self.find, reopens) for reopens in (0, REOPEN_AFTER)]
        tails = [Tail(agent.tail.path) for agent in self.agents]  # its own: it runs beside this
        self.traveller = Traveller(self.daemon.target, tails, self.find, str(seed))
        self._begun = self._told = time.monotonic()

    def find(self, text: str) -> None:
        """Something is wrong."""
        self.findings.append(text)
        self._say(f"FINDING: {text}")

    def start(self) -> None:
        """Starts everybody; the watchers first, so that they see everything."""
        self.daemon.start()
        for watcher in self.watchers:
            watcher.start()
            watcher.ready.wait(20)
        for agent in self.agents:
            agent.start()
        self.traveller.start()

    def books(self) -> list[Book]:
        """All ledgers as they are now."""
        return [agent.tail.refresh() for agent in self.agents]

    def wait(self, seconds: float) -> None:
        """Waits, and tells how far things are."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            if now - self._told > PROGRESS_EVERY_S:
                self.tell()
            for agent in self.agents:
                if agent.process is not None and agent.process.poll() is not None:
                    self.find(f"agent {agent.number} ended by itself: {agent.stderr.read_text()[-500:]}")
                    agent.start()
            time.sleep(min(0.2, max(end - now, 0)))

    def tell(self) -> None:
        """A line of progress; takes over what the agents complain about."""
        self._told = time.monotonic()
        books = self.books()
        for agent, book in zip(self.agents, books, strict=True):
            while book.failures:
                failure = book.failures.pop(0)
                self.find(f"agent {agent.number}: {failure.get('error')} (pending {failure.get('pending')})")
        counts, seconds = self.counts, int(self._told - self._begun)
        counts["saves answered"] = sum(book.answered for book in books)
        counts["requests refused"] = sum(book.refused for book in books)
        with suppress(RuntimeError):  # it does not run at present
            self.memory.sample(self.daemon.pid)
        self._say(
            f"{seconds // 60:3}:{seconds % 60:02}  {counts['kills']} kills, {counts['kills of agents']} of agents, "
            f"{counts['full phases']} full phases; {counts['saves answered']} saves answered, "
            f"{counts['requests refused']} refused; {self.traveller.compared} travels, {self.watchers[0].events} "
            f"events; daemon {self.memory.last_bytes >> 20} MiB; {len(self.findings)} findings"
        )

    def freeze(self) -> None:
        """Nobody works until `thaw`; what was sent is done."""
        self.traveller.rest()
        for agent in self.agents:
            agent.signal(signal.SIGSTOP)
        time.sleep(0.5)

    def thaw(self) -> None:
        """They go on."""
        for agent in self.agents:
            agent.signal(signal.SIGCONT)
        self.traveller.may_go.set()

    def close(self) -> None:
        """Ends whatever still runs."""
        for agent in self.agents:
            if agent.process is not None and agent.process.poll() is None:
                agent.signal(signal.SIGCONT)
                agent.kill()
        self.daemon.kill()
