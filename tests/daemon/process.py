"""Daemons as processes: machines on one archive, each with a data directory and a socket, and what tests do to them.

A daemon alone is `stateward.testing.run_daemon`.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.bucket.weed import s3_environment
from tests.warm import PATCHED

from stateward import Client, Durability
from stateward.testing import Daemon, run_daemon

FAST = {"archive_interval": "0.1", "archive_lease": "1"}
CALM = {"archive_interval": "0.2", "archive_lease": "2"}
# Long enough for a request on a busy machine, short enough to be cut off often.
PATIENCE_S = 1.5


class Fleet:
    """Machines that share a key and a bucket."""

    def __init__(self, directory: Path, archive: str | None = None, **flags: str) -> None:
        self.directory = directory
        self.bucket = directory / "bucket"
        self.archive = archive or f"file://{self.bucket}"
        self.flags = {**FAST, **flags}
        self._key = secrets.token_hex(32)
        self._stack = ExitStack()
        self._count = 0
        self._environments: dict[Path, dict[str, str]] = {}

    def machine(self, owner: str, **flags: str) -> Daemon:
        """A sidecar on an empty disk."""
        self._count += 1
        data_dir = self.directory / f"{owner}-{self._count}"
        key_file = data_dir.with_name(data_dir.name + ".key")
        key_file.touch(mode=0o600)
        key_file.write_text(self._key)
        given = {**self.flags, **flags}
        daemon = run_daemon(data_dir, archive=self.archive, owner_id=owner, **given)
        return self._stack.enter_context(daemon)

    def machine_on(
        self, owner: str, via: str | None = None, patience_s: float | None = PATIENCE_S, clock: Path | None = None,
        **flags: str,
    ) -> Daemon:  # fmt: skip
        """A sidecar on an empty disk, with an environment of its own.

        ``via``: the URL of the S3 endpoint, a gate's as a rule. ``patience_s``: when it gives up a request; ``clock``:
        a file with what its wall clock is off by.
        """
        environment = s3_environment(via) if via else {}
        if patience_s is not None:
            environment["ARCHIVE_FAULTS_PATIENCE_S"] = str(patience_s)
        if clock is not None:
            environment["ARCHIVE_FAULTS_CLOCK"] = str(clock)
        with started_with(environment):
            daemon = self.machine(owner, **flags)
        self._environments[daemon.socket] = environment
        return daemon

    def start(self, daemon: Daemon) -> None:
        """Starts one again, in its environment."""
        with started_with(self._environments[daemon.socket]):
            daemon.start()

    def client(self, daemon: Daemon, **options: object) -> Client:
        """A client that is closed at the end."""
        return self._stack.enter_context(daemon.client(**options))

    def objects(self) -> dict[str, bytes]:
        """What lies in a local bucket."""
        return {
            str(path.relative_to(self.bucket)): path.read_bytes()
            for path in sorted(self.bucket.rglob("*"))
            if path.is_file() and not path.name.startswith(".")
        }

    def close(self) -> None:
        """Kills all machines."""
        self._stack.close()


class Pair(Fleet):
    """Two machines, and ways to harm the bucket between them."""

    first: Daemon
    second: Daemon

    @contextmanager
    def slow(self) -> Iterator[None]:
        """The bucket answers reads and no write: each waits for a lock that is held here."""
        with ExitStack() as held:
            for directory in [self.bucket, *(path for path in self.bucket.rglob("*") if path.is_dir())]:
                descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
                held.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield

    def go_away(self) -> None:
        """From here on the bucket answers nothing."""
        self.bucket.rename(self._aside)
        self.bucket.symlink_to(self.bucket)  # leads to itself: an error that is neither "missing" nor "denied"

    def come_back(self) -> None:
        """As it was."""
        self.bucket.unlink()
        self._aside.rename(self.bucket)

    @property
    def _aside(self) -> Path:
        return self.bucket.with_name("aside")

    def settled(self) -> dict[str, bytes]:
        """What is in the bucket when uploads and deletions in the background seem to have ended."""
        seen = self.objects()
        while True:
            time.sleep(0.3)
            now = self.objects()
            if now.keys() == seen.keys():
                return now
            seen = now


@contextmanager
def fleet(directory: Path, archive: str | None = None, **flags: str) -> Iterator[Fleet]:
    """Machines that are killed at the end."""
    made = Fleet(directory, archive, **flags)
    try:
        yield made
    finally:
        made.close()


def write_steps(client: Client, name: str, count: int, *, size: int = 100, archived: bool = False) -> bytes:
    """Appends so many messages to a thread, one a version. Returns the last digest."""
    thread = client.thread(name)
    state = thread.hydrate()
    begun = len(state.logs["messages"]) if "messages" in state.logs else 0
    digest = b""
    for number in range(begun, begun + count):
        text = os.urandom(size // 2).hex() if size > 200 else "x" * size
        state.logs["messages"].append({"number": number, "text": text})
        state.slots["count"] = number + 1
        options = {"durability": Durability.ARCHIVED} if archived else {}
        digest = thread.save(state, step=number, **options).digest
    return digest


LONG = 60


def write_long(client: Client, name: str, count: int = LONG) -> None:
    """A thread as after long work: its history lies in several packs and snapshots, and all of it is archived.

    Few versions and large ones. Objects are made by size, and a version costs more than its bytes.
    """
    for _ in range(0, count, 10):
        write_steps(client, name, 10, size=8000)
        client.thread(name).archive.wait(client.thread(name).info().sequence)


def eventually(check: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Waits until a check holds."""
    end = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.02)


def until_written_down(daemon: Daemon) -> None:
    """Waits until the daemon has written down what it knows of the archive, which it does once a second."""
    store, begun = daemon.data_dir / "data.mdb", time.monotonic()
    first = last = store.stat().st_mtime_ns
    since_s = begun
    while time.monotonic() < begun + 5:  # else it was written before
        if (now := store.stat().st_mtime_ns) != last:
            last, since_s = now, time.monotonic()
        if last != first and time.monotonic() > since_s + 0.5:  # the commit has ended
            return
        time.sleep(0.02)


@contextmanager
def run_pair(directory: Path) -> Iterator[Pair]:
    """Two machines, "first" and "second", that are killed at the end."""
    made = Pair(directory, **CALM)
    try:
        made.first, made.second = made.machine("first"), made.machine("second")
        yield made
    finally:
        made.close()


def archive_flags(bucket: Path, owner_id: str) -> dict[str, str]:
    """Flags of a third machine on the bucket of a pair."""
    return {"archive": f"file://{bucket}", "owner_id": owner_id, **CALM}


@contextmanager
def started_with(environment: dict[str, str]) -> Iterator[None]:
    """Daemons that are started meanwhile have this in their environment, and the patches on their path."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(sys, "path", [str(PATCHED), *sys.path])
        yield


def new_archive() -> str:
    """A prefix of its own on the S3 server."""
    return f"s3://stateward/{secrets.token_hex(8)}"
