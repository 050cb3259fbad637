"""Several sidecars on one archive, each with its own machine: a data directory and a socket."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from stateward import Client, Durability
from stateward.testing import Daemon, run_daemon

FAST = {"archive_interval": "0.1", "archive_lease": "1"}


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
