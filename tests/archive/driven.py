"""Sidecars without services, in the test's own process: real stores, a bucket in memory, and a clock that is moved.

Nothing happens by itself: a test says when a thread is shipped. A dozen saves make packs, snapshots and indexes.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.archive_model import small
from tests.archive_model.faults import FakeClock, FaultyBucket, Net, Witness
from tests.archive_model.sidecar import NAMESPACE, Disk, Sidecar

from stateward.v1.checkpoint_service_pb2 import HydrateRequest, HydrateResponse, SaveRequest, SaveResponse
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.store.thread.thread import Thread


def append(text: bytes = b"x", *, after: int | None = None, request_id: str = "") -> SaveRequest:
    """A save that appends one entry to the log ``m`` of the thread ``job``; ``after`` is the version it expects."""
    request = SaveRequest(
        namespace=NAMESPACE, thread="job", options=WriteOptions(request_id=request_id or os.urandom(8).hex())
    )
    if after is not None:
        request.options.expected_version = after
    edit = request.diff.edits.add().append
    edit.log = "m"
    edit.entries.add(media_type="application/octet-stream", data=text)
    return request


class Driven(Sidecar):
    """A sidecar with short names for what tests do most."""

    def put(self, request: SaveRequest) -> SaveResponse:
        """Saves."""
        return self.save(request)

    def ship_now(self) -> None:
        """Ships the thread ``job``."""
        self.ship(self.thread().number)
        self.wire.background()

    def state(self) -> HydrateResponse:
        """Reads the thread ``job``."""
        return self.hydrate(HydrateRequest(namespace=NAMESPACE, thread="job", max_bytes=1 << 20))

    def thread(self) -> Thread:
        """The thread ``job`` on this disk."""
        found = self.find("job")
        assert found is not None
        return found

    @property
    def requests(self) -> int:
        """How many the bucket got from here."""
        return self.wire.traffic.requests


class Town:
    """Machines that share a bucket in memory."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.time, self.net = FakeClock(), Net()
        self._numbers = itertools.count(1)
        self._open: list[Driven] = []

    def machine(self, owner_id: str, path: Path | None = None) -> Driven:
        """A sidecar on an empty disk, or on that of ``path``."""
        number = next(self._numbers)
        return self.start(Disk(number, path or self.home / f"disk-{number}", owner_id))

    def start(self, disk: Disk) -> Driven:
        """A process on a disk."""
        bucket = FaultyBucket(self.net, Witness(lambda: None, lambda *_: None, lambda _: None))
        made = Driven(disk, bucket, self.time, disk.number)
        self._open.append(made)
        return made

    def restart(self, machine: Driven) -> Driven:
        """Kill -9, and a start on the same disk."""
        self.end(machine)
        return self.start(machine.disk)

    def end(self, machine: Driven) -> None:
        """Kill -9."""
        self._open.remove(machine)
        machine.crash()

    def close(self) -> None:
        """Ends all."""
        for machine in list(self._open):
            self.end(machine)


@contextmanager
def town(home: Path) -> Iterator[Town]:
    """Machines that end with the test."""
    small.shrink()
    made = Town(home)
    try:
        yield made
    finally:
        made.close()
        small.restore()
