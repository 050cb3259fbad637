"""The danger: a watch that lives through saves, takeovers and deletions leaves an event out, tells it twice, or tells
one of another line."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.daemon.driven import Driven, append
from tests.daemon.town import Town, town

from stateward.v1.thread_service_pb2 import DeleteThreadRequest, JournalEvent, WatchRequest
from stateward_sidecar.errors import Fenced, HistoryElsewhere, StatewardError, ThreadNotFound
from stateward_sidecar.service.calls.ownership import ROUNDS
from stateward_sidecar.store.read.watch import Watch

SEEDS, STEPS = 24, 40
PLACE = {"namespace": "default", "thread": "job"}


class Follower:
    """Follows the thread on one machine, as the service does, and begins anew when it is told to."""

    def __init__(self, machine: Driven) -> None:
        self._machine = machine
        self.ends = 0
        self._watch: Watch | None = None
        self._told: list[tuple[int, bytes]] = []  # and the entry after which it begins

    def _open(self) -> Watch | None:
        machine = self._machine
        with suppress(ThreadNotFound):
            machine.archive.know("default", "job")
            watch = machine.store.read(machine.store.watcher.open, WatchRequest(**PLACE))
            self._told = [watch.place]
            return watch
        return None

    def look(self, history: Callable[[bytes], dict[int, bytes]], deleted: set[str]) -> None:
        """Reads what is there. ``history``: the entries of a thread that the archive has, by its uid."""
        self._watch = self._watch or self._open()
        watch = self._watch
        if watch is None:
            return
        try:
            while not watch.is_over and (events := self._read(watch)):
                self._take(watch, events, deleted)
        except Fenced:
            sequence, digest = self._told[-1]
            assert history(watch.uid).get(sequence) != digest, f"entry {sequence} is history, and the watch is FENCED"
            self._anew()
        except ThreadNotFound:
            assert not history(watch.uid), "the archive has the thread"
            self._anew()
        if watch.is_over:
            assert watch.uid.hex() in deleted, "the watch ended, and the thread lives"
            self._anew()

    def _anew(self) -> None:
        self._watch, self._told = None, []
        self.ends += 1

    def _read(self, watch: Watch) -> list[JournalEvent]:
        machine = self._machine
        for _ in range(ROUNDS - 1):
            try:
                return machine.store.read(machine.store.watcher.read, watch)
            except HistoryElsewhere:
                machine.archive.complete("default", "job")
            except ThreadNotFound:
                machine.archive.know("default", "job")
        return machine.store.read(machine.store.watcher.read, watch)

    def _take(self, watch: Watch, events: list[JournalEvent], deleted: set[str]) -> None:
        for event in events:
            assert event.thread == "job"
            if event.WhichOneof("what") == "deleted":
                assert event.uid in deleted
                assert event.deleted.cause != "local"
                return
            assert event.sequence == self._told[-1][0] + 1
            self._told.append((event.sequence, event.checkpoint.digest))
        assert watch.cursor >= self._told[-1][0]


class Namespace:
    """Follows all threads on one machine."""

    def __init__(self, machine: Driven) -> None:
        self._machine = machine
        request = WatchRequest(namespace="default", thread="-", after_cursor="n.0")
        self._watch = machine.store.watcher.open(request)
        self._told: dict[str, list[tuple[int, bytes]]] = {}

    def look(self) -> None:
        """Reads what is there: each digest comes once, and sequences rise, except where a line parted."""
        machine = self._machine
        while events := machine.store.read(machine.store.watcher.read, self._watch):
            for event in events:
                if event.WhichOneof("what") == "deleted":
                    self._told.pop(event.uid, None)  # nothing is left here that says what was told
                    continue
                told = self._told.setdefault(event.uid, [])
                digest = event.checkpoint.digest
                assert all(digest != before for _, before in told), f"entry {event.sequence} was told twice"
                told.append((event.sequence, digest))


def line(machine: Driven) -> dict[int, bytes]:
    """The entries of the thread on a machine, by sequence."""
    watch = machine.store.watcher.open(WatchRequest(**PLACE, after_sequence=0))
    found: dict[int, bytes] = {}
    while events := machine.store.read(machine.store.watcher.read, watch):
        found |= {event.sequence: event.checkpoint.digest for event in events}
    return found


class Life:
    """What happens to the thread."""

    def __init__(self, machines: Town, seed: int) -> None:
        self.random = random.Random(seed)
        self.machines = [machines.machine("a"), machines.machine("b")]
        self._town = machines
        self.deleted = set[str]()
        self._histories: dict[bytes, dict[int, bytes]] = {}

    def step(self) -> None:
        """Something, on one of the machines."""
        machine = self.random.choice(self.machines)
        acts = [self.save] * 4 + [self.ship] * 2 + [self.take, self.take, self.drop, self.delete, self.delete_orphan]
        with suppress(StatewardError):  # a machine that finds out that it lost the thread, or has none
            self.random.choice(acts)(machine)
        self._town.time.sleep(self.random.choice([0, 0, 60]))

    def save(self, machine: Driven) -> None:
        machine.put(append())

    def ship(self, machine: Driven) -> None:
        machine.archive.flush("default", "job")
        machine.wire.background()

    def take(self, machine: Driven) -> None:
        machine.archive.own("default", "job", take_over=True)
        machine.put(append())
        self.ship(machine)

    def drop(self, machine: Driven) -> None:
        machine.delete(DeleteThreadRequest(**PLACE, local_only=True))

    def delete(self, machine: Driven) -> None:
        if self.random.random() < 0.3:
            self.deleted.add(machine.delete(DeleteThreadRequest(**PLACE)).receipt.uid)

    def delete_orphan(self, machine: Driven) -> None:
        orphans = [thread.name for thread in machine.threads() if "@@" in thread.name]
        if orphans:
            machine.delete(DeleteThreadRequest(namespace="default", thread=self.random.choice(orphans)))

    def history(self, uid: bytes) -> dict[int, bytes]:
        """What the archive has of a thread: read by a machine that has nothing else."""
        reader = self._town.machine("reader")
        try:
            with suppress(ThreadNotFound):
                reader.archive.know("default", "job")
                if reader.thread().identity.uid == uid:
                    with suppress(HistoryElsewhere):
                        return line(reader)
                    reader.archive.complete("default", "job")
                    return line(reader)
            return {}
        finally:
            self._town.end(reader)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_a_watch_tells_the_line_it_began_in(tmp_path: Path, seed: int) -> None:
    """A watch of the thread tells entry after entry, and ends only with a deletion or with a loss of what it told. A
    watch of the namespace tells each entry once."""
    with town(tmp_path) as machines:
        life = Life(machines, seed)
        followers = [Follower(machine) for machine in life.machines]
        namespaces = [Namespace(machine) for machine in life.machines]
        for _ in range(STEPS):
            life.step()
            for follower in followers:
                if life.random.random() < 0.7:
                    with suppress(HistoryElsewhere):
                        follower.look(life.history, life.deleted)
            for namespace in namespaces:
                if life.random.random() < 0.7:
                    namespace.look()
