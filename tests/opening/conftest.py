"""A home directory of a test's own. Its daemons end with the test: they are nobody's children, and have no mark."""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

END_WITHIN_S = 20.0


@pytest.fixture
def short() -> Iterator[Path]:
    """The path of a socket has a limit."""
    with tempfile.TemporaryDirectory(prefix="sw-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def home(short: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """HOME is a new directory, and nothing else says where anything is."""
    for name in list(os.environ):
        if name.startswith(("STATEWARD_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(short))
    yield short
    for lock in short.rglob("LOCK"):
        end(lock)


def daemon_of(lock: Path) -> int | None:
    """The pid of the daemon that holds the lock of a data directory; None = none does."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(file.read() or "0")
    return None


def end(lock: Path) -> None:
    """Kills a daemon, and waits until it has released its data directory."""
    deadline = time.monotonic() + END_WITHIN_S
    while (pid := daemon_of(lock)) is not None and time.monotonic() < deadline:
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
