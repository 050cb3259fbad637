"""The life of a disk: a recorded daemon works for some agents, dies, and starts again."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.faulty_daemon import FaultyDaemon
from tests.daemon.process import started_with
from tests.daemon.segments import SMALL
from tests.soak.desk import NAMESPACE, made_of
from tests.soak.device import VOLATILE, Device
from tests.soak.ledger import HAS_ARCHIVE, Book, Ledger, hash_state, read_book, read_lines
from tests.soak.recording import MARKS, Mark, Operation, Recording, read_log

AGENTS = 3
THREADS_MAX = 4
PROGRESS_BYTES, PROGRESS_TIMEOUT_S = 4000, 60.0
CROWD = 150  # more threads than the key store has slots for at first
# Where the very first start may die: before and after the key file and the key store are made.
FIRST_DEATHS = ("<storage.files:sync_directory", ">storage.files:create_file", "<storage.keystore:KeyStore._read_slots")


class SmallFaultyDaemon(FaultyDaemon):
    """One that may die at a place, and whose logs have small segments."""

    def start(self) -> None:
        """As of the class."""
        with started_with(SMALL):
            super().start()


@dataclass
class Recorded:
    """A disk's life: all operations in order, and what was promised meanwhile."""

    directory: Path
    root: Path
    operations: list[Operation] = field(repr=False)
    volatile: bytes = field(repr=False)
    has_archive: bool = False

    def books(self, until: Mark) -> list[Book]:
        """What must be there at a place in the order."""
        return [read_book(read_lines(path), until) for path in sorted(self.directory.glob("*.ledger"))]


def make_daemon(
    directory: Path, root: Path, short: Path, *, has_archive: bool = False, data: str = "data"
) -> FaultyDaemon:
    """Its data, its key file and its bucket lie below the root, and it makes all of them. Its logs have segments."""
    archive = (
        {"archive": f"file://{root / 'bucket'}", "archive_interval": "0.2", "archive_lease": "1"} if has_archive else {}
    )
    own = {"key-file": root / "config" / "key"}  # the last one counts; `key_file` would be made by the test
    daemon = SmallFaultyDaemon(short, root / "state" / data, log_level="error", **own, **archive)
    daemon.key_file = directory / "unused.key"
    return daemon


@contextmanager
def short_directory() -> Iterator[Path]:
    """For the socket, whose path must be short."""
    path = Path(tempfile.mkdtemp(prefix="sw-", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Life:
    """Records a daemon that works, dies and starts again."""

    def __init__(self, directory: Path, library: Path, seed: str, short: Path, *, has_archive: bool = False) -> None:
        self.directory, self.root, self.seed, self.has_archive = directory, directory / "root", seed, has_archive
        self.dice = random.Random(seed)
        self.root.mkdir(parents=True)
        self.recording = Recording(library, self.root, directory / "logs")
        self.daemon = make_daemon(directory, self.root, short, has_archive=has_archive)
        self.start: Callable[[], None] = self.daemon.start
        self._device = Device(self.root)
        self._operations: list[Operation] = []

    def begin(self) -> None:
        """Starts the daemon, recorded."""
        with self.recording.next_log():
            self.start()

    def end(self, *, by_kill: bool) -> None:
        """Ends it, and takes its log. A kill can come between a call and its record: what is missing is added."""
        (self.daemon.kill if by_kill else self.daemon.stop)()
        log = max(self.recording.logs.iterdir())
        new = list(read_log(log))
        for operation in new:
            self._device.apply(operation)
        end = int(log.name), log.stat().st_size
        missing = [Operation(each.kind, each.file, end, each.path, each.other, each.offset, each.length, data=each.data)
                   for each in self._device.differences(self.root)]  # fmt: skip
        assert by_kill or not missing, f"the recorder missed {missing}"
        for operation in missing:
            self._device.apply(operation)
        self._operations += new + missing

    def die_first(self) -> None:
        """The very first start dies at a bad moment."""
        where, nth = self.dice.choice(FIRST_DEATHS), self.dice.randint(1, 2)
        with self.recording.next_log(), suppress(RuntimeError):
            self.daemon.start_faulty(where, nth)
        self.end(by_kill=True)

    def make_crowd(self) -> None:
        """Many threads, so that the key store grows."""
        with (self.directory / "crowd.ledger").open("a") as file, self.daemon.client(namespace=NAMESPACE) as client:
            ledger = Ledger(file)
            for number in range(CROWD):
                name, entry = f"crowd-{number}", f"one of many: {number}"
                part = {"thread": name, "branch": "main", "hash": hash_state({}, {"notes": [entry]}), "head": 0}
                ledger.write("asked", name, op="save", parts=[part])
                made = client.thread(name).append("notes", entry, request_id=name)
                ledger.write("answered", name, made=[made_of(made)])

    def work(self, seconds: float) -> None:
        """Lets the agents work so long, and until each got on: a busy machine may take its time to start them."""
        ledgers = [self.directory / f"{number}.ledger" for number in range(AGENTS)]

        def sizes() -> list[int]:
            return [ledger.stat().st_size if ledger.exists() else 0 for ledger in ledgers]

        before, begun = sizes(), time.monotonic()
        while (spent := time.monotonic() - begun) < PROGRESS_TIMEOUT_S:
            has_progress = all(new > old + PROGRESS_BYTES for old, new in zip(before, sizes(), strict=True))
            if spent >= seconds and has_progress:
                return
            time.sleep(0.01)
        raise AssertionError(f"after {spent:.0f} s some agent did not get on")

    def finish(self) -> Recorded:
        """What was recorded."""
        mapped = {Path(path).name for path in self._device.mapped}
        assert mapped <= {VOLATILE}, f"{mapped} are written through a mapping, which this model cannot see"
        volatile = (self.daemon.data_dir / VOLATILE).read_bytes()
        return Recorded(self.directory, self.root, self._operations, volatile, self.has_archive)

    @contextmanager
    def agents(self) -> Iterator[None]:
        """Agents at work; they end after the block, for which the daemon must run."""
        processes = []
        for number in range(AGENTS):
            path = self.directory / f"{number}.ledger"
            command = [sys.executable, "-m", "tests.soak.agent", self.daemon.target, str(number), self.seed, str(path)]
            more = {HAS_ARCHIVE: "1"} if self.has_archive else {}
            options = {"stdin": subprocess.PIPE, "env": {**os.environ, **more}}
            processes.append(subprocess.Popen([*command, str(THREADS_MAX)], **options))
        try:
            yield
            for process in processes:
                process.communicate(timeout=60)
        finally:
            for process in processes:
                process.kill()
                process.wait()


def record(
    directory: Path,
    library: Path,
    seed: str,
    work_s: float,
    lives: int,
    *,
    program: str = "",
    has_archive: bool = False,
) -> Recorded:
    """A daemon that is started `lives` times, killed or stopped in between, with agents at work all the time.

    `program` takes the daemon's place. With one life nothing dies, and there is no crowd. The archive is a directory
    of the same disk.
    """
    with short_directory() as short:
        life = Life(directory, library, seed, short, has_archive=has_archive)
        if program:
            life.start = lambda: life.daemon.start_as([sys.executable, "-m", program])
        os.environ[MARKS] = str(life.recording.logs)
        try:
            if lives > 1 and life.dice.random() < 0.5:
                life.die_first()
            life.begin()
            if lives > 1 and life.dice.random() < 0.4:
                life.make_crowd()
            with life.agents():
                for number in range(lives):
                    life.work(work_s / lives)
                    if number < lives - 1:
                        life.end(by_kill=life.dice.random() < 0.7)
                        life.begin()
            life.end(by_kill=False)
            return life.finish()
        finally:
            life.daemon.kill()
            del os.environ[MARKS]
