"""What a data directory tells about its daemon: `daemon.json`, and the lock of those who use the daemon.

Clients find the daemon through these files (client/stateward/opening/README.md).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DAEMON_FILE = "daemon.json"
USERS_FILE = "users.lock"


def announce(directory: Path, facts: Mapping[str, Any]) -> None:
    """Writes daemon.json by rename, for this user only. Raises OSError.

    The file names the directory itself, so that a copy of the directory does not lead to this daemon.
    """
    found = directory.stat()
    content = json.dumps({**facts, "directory": f"{found.st_dev}:{found.st_ino}"})
    path = directory / DAEMON_FILE
    temporary = directory / f".{DAEMON_FILE}"  # of one process: it holds LOCK
    temporary.unlink(missing_ok=True)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(content + "\n")
        temporary.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def withdraw(directory: Path) -> None:
    """Removes daemon.json: from now on nobody finds this daemon."""
    with contextlib.suppress(OSError):
        (directory / DAEMON_FILE).unlink()


class UsersLock:
    """Whether clients of `stateward.open()` live. Each one holds the lock shared."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / USERS_FILE
        self._descriptor: int | None = None

    def close_door(self) -> bool:
        """Takes the lock exclusively if no client lives, without waiting; returns whether it did. No client begins
        while it is held, and the end of the process releases it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self._path, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        if os.fstat(descriptor).st_ino == self._path.stat().st_ino:
            return True
        self.open_door()  # somebody has removed the file, and clients lock another one
        return False

    def open_door(self) -> None:
        """Releases the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
