"""Two sidecars that share an archive, as two machines would, and ways to harm the bucket between them."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateward.testing import Daemon, run_daemon

INTERVAL_S = 0.2
LEASE_S = 2


@dataclass
class Pair:
    first: Daemon
    second: Daemon
    bucket: Path

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

    def objects(self) -> dict[str, bytes]:
        """What is in the bucket, by name."""
        found = (path for path in self.bucket.rglob("*") if path.is_file() and not path.name.startswith("."))
        return {str(path.relative_to(self.bucket)): path.read_bytes() for path in found}

    def settled(self) -> dict[str, bytes]:
        """What is in the bucket when uploads and deletions in the background seem to have ended."""
        seen = self.objects()
        while True:
            time.sleep(0.3)
            now = self.objects()
            if now.keys() == seen.keys():
                return now
            seen = now


def archive_flags(bucket: Path, owner_id: str) -> dict[str, Any]:
    """Flags of a daemon that archives there, quickly."""
    return {
        "archive": f"file://{bucket}",
        "archive_interval": INTERVAL_S,
        "archive_lease": LEASE_S,
        "owner_id": owner_id,
    }


@contextmanager
def run_pair(directory: Path, **flags: Any) -> Iterator[Pair]:
    """Two daemons with one archive and one key: "first" and "second"."""
    bucket = directory / "bucket"
    with (
        run_daemon(**archive_flags(bucket, "first"), **flags) as first,
        run_daemon(key_file=first.key_file, **archive_flags(bucket, "second"), **flags) as second,
    ):
        yield Pair(first, second, bucket)
