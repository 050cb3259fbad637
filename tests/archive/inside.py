"""A sidecar inside the test's own process, for what a daemon cannot be asked to do: a clock that is moved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.archive.rig import Fleet

from stateward.testing import Daemon
from stateward_sidecar.archive.archive import Archive
from stateward_sidecar.archive.objects.shared import Options
from stateward_sidecar.archive.objects.start import fetch_root, join
from stateward_sidecar.archive.requests.metered import Wire
from stateward_sidecar.bucket.open import open_bucket
from stateward_sidecar.clock import Clock
from stateward_sidecar.storage.secretfiles import read_key_file
from stateward_sidecar.store.store import Store, StoreOptions
from stateward_sidecar.store.thread.context import Limits


class MovedClock(Clock):
    """The wall clock, some seconds ahead."""

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s = ahead_s

    def now_us(self) -> int:
        return super().now_us() + int(self.ahead_s * 1e6)


def _fail(error: BaseException) -> None:
    raise error


@contextmanager
def sidecar_inside(machines: Fleet, directory: Path, like: Daemon, clock: Clock) -> Iterator[Archive]:
    """Shares archive and key of a daemon, on an empty disk."""
    key = read_key_file(like.key_file)
    bucket = open_bucket(machines.archive, {}, clock)
    wire = Wire(bucket, clock)
    options = StoreOptions(directory, key, 64 << 20, 4 << 20, Limits(), fetch_root(wire))
    store = Store(options, lambda _: None, _fail, clock)
    archive = Archive(store, wire, Options(url=machines.archive, owner_id="inside"))
    store.start()
    try:
        join(store, wire, bucket, key)
        archive.start()
        yield archive
    finally:
        archive.close()
        store.close()
