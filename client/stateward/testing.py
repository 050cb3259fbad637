"""A throw-away daemon for tests.

    from stateward.testing import run_daemon

    with run_daemon() as daemon, daemon.client() as client: ...

or, with pytest, the fixture `stateward_daemon`: one daemon for the whole session, so use a different namespace in each
test. Import it in a conftest.py: `from stateward.testing import stateward_daemon`.

The daemon writes only to its directory, which is removed at the end unless the caller named it.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateward import AsyncClient, Client

READY_LINE = "stateward-sidecar ready"
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
KEY_BYTES = 32
# A socket's path may have 104 bytes, and the usual temporary directory can be deep.
_SHORT = Path("/tmp")  # noqa: S108  made with mkdtemp


class Daemon:
    """A daemon process with its own data directory, socket and key."""

    # How the process begins. Stateward's own tests, which start some hundred, have a quicker way.
    _popen: Any = staticmethod(subprocess.Popen)

    def __init__(
        self, directory: Path, data_dir: Path | None = None, key_file: Path | None = None, **flags: Any
    ) -> None:
        self._directory = directory
        self.data_dir = data_dir or directory / "data"
        self.socket = directory / "s.sock"
        self.key_file = key_file or self.data_dir.with_name(self.data_dir.name + ".key")
        """The daemon's key file. Daemons that share an archive share the key."""
        self._flags = flags
        self._process: subprocess.Popen[str] | None = None
        self._stderr = directory / "stderr.log"

    @property
    def target(self) -> str:
        """The daemon's target, for `Client`."""
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        """The daemon's process id. Raises RuntimeError if the daemon does not run."""
        if self._process is None:
            raise RuntimeError("the daemon does not run")
        return self._process.pid

    @property
    def stderr(self) -> str:
        """The daemon's output to stderr so far, of all starts."""
        return self._stderr.read_text() if self._stderr.exists() else ""

    def client(self, **options: Any) -> Client:
        """A client of this daemon."""
        from stateward import Client  # noqa: PLC0415  the client is costly, and may be unwanted

        return Client(self.target, **options)

    def async_client(self, **options: Any) -> AsyncClient:
        """An asyncio client of this daemon."""
        from stateward import AsyncClient  # noqa: PLC0415

        return AsyncClient(self.target, **options)

    def start(self) -> None:
        """Starts the daemon, or starts it again on the same data, and waits until it is ready.

        Raises RuntimeError, with the daemon's stderr, if it is not ready in time.
        """
        if self._process is not None:
            raise RuntimeError("the daemon runs already")
        has_source = "key" in self._flags
        if not has_source and not self.key_file.exists():
            self.key_file.parent.mkdir(parents=True, exist_ok=True)
            self.key_file.touch(mode=0o600)
            self.key_file.write_text(secrets.token_hex(KEY_BYTES))
        command = [sys.executable, "-m", "stateward_sidecar"]
        command += ["--data-dir", str(self.data_dir), "--listen", self.target]
        command += [] if has_source else ["--key-file", str(self.key_file)]
        for name, value in self._flags.items():
            command += [f"--{name.replace('_', '-')}"] if value is True else [f"--{name.replace('_', '-')}", str(value)]
        # The daemon can import everything that this process can, installed or not.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        if "access" in self._flags and "token_file" not in self._flags:
            environment.pop("STATEWARD_TOKEN_FILE", None)  # the program's own token, as a client
        with self._stderr.open("a") as stderr:
            self._process = self._popen(
                command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment, cwd=self._directory
            )
        if not _wait_for_line(self._process.stdout, READY_LINE, READY_TIMEOUT_S):
            self.kill()
            raise RuntimeError(f"the daemon was not ready after {READY_TIMEOUT_S:g} s; its stderr:\n{self.stderr}")

    def kill(self) -> None:
        """Sends SIGKILL, like a crash. Does nothing if the daemon does not run."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Sends SIGTERM, waits for the end, and returns the exit code.

        Raises RuntimeError, and kills the daemon, if it does not end in time.
        """
        return self._end(signal.SIGTERM)

    def _end(self, sign: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(sign)
        try:
            return process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"the daemon did not end on {sign.name}; its stderr:\n{self.stderr}") from None
        finally:
            if process.stdout is not None:
                process.stdout.close()


@contextmanager
def run_daemon(
    data_dir: str | Path | None = None, *, key_file: str | Path | None = None, **flags: Any
) -> Iterator[Daemon]:
    """Runs a daemon. `flags` become command-line flags: `default_durability="committed"`; True = a flag without value.

    If `data_dir` is given, the data stay there, and the key stays beside it in `<data_dir>.key`. Daemons that share an
    archive need the same key: pass the first daemon's `key_file` to the second one. A missing key file is created.
    """
    directory = Path(tempfile.mkdtemp(prefix="sw-", dir=_SHORT if _SHORT.is_dir() else None))
    places = [None if each is None else Path(each).absolute() for each in (data_dir, key_file)]
    daemon = Daemon(directory, *places, **flags)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.kill()
        shutil.rmtree(directory, ignore_errors=True)


def missing_daemon() -> str:
    """Returns the reason why no daemon can be started here; empty if one can."""
    is_there = importlib.util.find_spec("stateward_sidecar") and importlib.util.find_spec("stateward_sidecar.__main__")
    return "" if is_there else "the package stateward_sidecar is not installed"


def _wait_for_line(stream: IO[str] | None, start: str, timeout_s: float) -> bool:
    """Whether a line that begins with `start` comes in time. Continues to read, so that the daemon never blocks."""
    assert stream is not None
    found: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def read() -> None:
        try:
            for line in stream:
                if line.startswith(start):
                    found.put(True)
        except ValueError:  # closed by `_end`
            pass
        found.put(False)

    threading.Thread(target=read, daemon=True).start()
    try:
        return found.get(timeout=timeout_s)
    except queue.Empty:
        return False


try:
    import pytest
except ImportError:  # the daemon can be run without pytest
    pass
else:

    @pytest.fixture(scope="session")
    def stateward_daemon() -> Iterator[Daemon]:
        """One daemon for the whole test session; skips tests if no daemon can be started."""
        reason = missing_daemon()
        if reason:
            pytest.skip(reason)
        with run_daemon() as daemon:
            yield daemon
