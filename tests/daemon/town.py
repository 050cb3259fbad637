"""Driven machines that share a bucket in memory, and the time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.daemon import small
from tests.daemon.between import Between
from tests.daemon.clocks import FakeClock
from tests.daemon.driven import LEASE_S, Disk, Driven

from stateward_sidecar.bucket.memory import MemoryBucket


class Town:
    """Machines that share a bucket in memory, and the time."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.time, self.bucket = FakeClock(), MemoryBucket()
        self._numbers = itertools.count(1)
        self._open: list[Driven] = []
        self._backup: dict[str, bytes] = {}

    def machine(self, owner_id: str, path: Path | None = None) -> Driven:
        """A process on an empty disk, or on that of ``path``."""
        number = next(self._numbers)
        disk, way = Disk(number, path or self.home / f"disk-{number}", owner_id), Between(self.bucket)
        made = Driven(disk, way, self.time, number)
        self._open.append(made)
        return made

    def end(self, machine: Driven) -> None:
        """Kill -9."""
        self._open.remove(machine)
        machine.crash()

    def wait_for_lease(self) -> None:
        """Whoever writes nothing meanwhile may be replaced."""
        self.time.sleep(LEASE_S + 1)

    def before_head(self, act: Callable[[], None]) -> None:
        """Does something, once, while a HEAD is on its way to the bucket."""

        def look(method: str, key: str) -> None:
            if method == "replace" and key.endswith("/HEAD"):
                self.mend()
                act()

        self.bucket.before = look

    def mend(self) -> None:
        """Requests are answered again."""
        self.bucket.before = self.bucket.after = lambda _method, _key: None

    def back_up(self) -> None:
        """Remembers what is in the bucket."""
        self._backup = dict(self.bucket.objects)

    def set_back(self) -> None:
        """Puts the bucket back to what was remembered."""
        self.bucket.objects = dict(self._backup)

    def close(self) -> None:
        """Ends all."""
        for machine in list(self._open):
            self.end(machine)


class Twins(Town):
    """Two machines."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.a, self.b = self.machine("a"), self.machine("b")


@contextmanager
def town(home: Path) -> Iterator[Town]:
    """Machines that end with the test. Their limits are small: a dozen saves make packs, snapshots and indexes."""
    small.shrink()
    made = Town(home)
    try:
        yield made
    finally:
        made.close()
        small.restore()


@contextmanager
def twins(home: Path) -> Iterator[Twins]:
    """Two machines that end with the test, with the usual limits."""
    made = Twins(home)
    try:
        yield made
    finally:
        made.close()
