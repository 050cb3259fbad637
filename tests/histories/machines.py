"""The machines of a history: a real daemon each, with its disk and its way to the bucket."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.bucket.conftest import s3_environment
from tests.daemon.process import started_with
from tests.daemon.segments import SEGMENTS
from tests.daemon.wire import Wire
from tests.histories.weather import Weather

from stateward.testing import Daemon

STORM_LASTS_S = 5.0
START_ATTEMPTS = 5
NOTHING: Mapping[str, str] = {}
BLOBS_KEPT_S = "3"  # a blob that nothing names
_starting = threading.Lock()  # a daemon gets its environment from this process


class Machine:
    """A daemon under one name, on one disk after the other. ``weather``: None = its bucket is a directory.

    ``patience_s``: when it gives up a request to the bucket.
    """

    def __init__(
        self, name: str, directory: Path, key: str, weather: Weather | None, patience_s: float,
        flags: dict[str, Any], environment: Mapping[str, str] = NOTHING,
    ) -> None:  # fmt: skip
        self.name, self.weather = name, weather
        self._directory, self._flags = directory / name, flags
        self.archive_url = str(flags.get("archive", ""))
        self._directory.mkdir()
        self._key_file = self._directory / "key"
        self._key_file.touch(mode=0o600)
        self._key_file.write_text(key)
        self._clock, self._slept = self._directory / "clock", self._directory / "slept"
        self._slept_s = 0.0
        self.set_clock(0)
        self._slept.write_text("0")
        self._environment = {"ARCHIVE_FAULTS_PATIENCE_S": str(patience_s), "ARCHIVE_FAULTS_BLOBS_KEPT_S": BLOBS_KEPT_S}
        self._environment |= environment
        self._environment |= {"ARCHIVE_FAULTS_CLOCK": str(self._clock), "ARCHIVE_FAULTS_SLEPT": str(self._slept)}
        if weather is not None:
            self._environment |= s3_environment(weather.url)
        self.complaints: list[str] = []  # what its processes did that they should not
        self._lock = threading.RLock()
        self._disks = 0
        self._losses: Counter[str] = Counter()  # by thread; "" = of all
        self._losing: Counter[str] = Counter()
        self._new_daemon()
        self.wire = Wire(self._daemon.target, frames=ord(name[-1]) % 2 == 0)  # each second machine

    def _new_daemon(self) -> None:
        self._disks += 1
        self._daemon = Daemon(self._directory, self._directory / f"disk-{self._disks}", self._key_file, **self._flags)
        self.is_running = False

    # -- the process ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts it, unless it runs."""
        with self._lock, _starting:
            if not self.is_running:
                with started_with(self._environment):
                    self._start()
                self.is_running = True

    def _start(self) -> None:
        """A busy S3 server may answer nothing but errors for a while, and a start is then refused."""
        for attempt in range(START_ATTEMPTS):
            try:
                self._daemon.start()
                return
            except RuntimeError as error:
                if attempt == START_ATTEMPTS - 1 or "the bucket cannot be used" not in str(error):
                    raise
                time.sleep(attempt)

    def kill(self) -> None:
        """SIGKILL."""
        with self._lock:
            self._look()
            self._daemon.kill()
            self.is_running = False

    def stop(self) -> None:
        """SIGTERM, and waits for the end."""
        with self._lock:
            self._look()
            try:
                code = self._daemon.stop()
            except RuntimeError:  # killed now
                self.complaints.append("did not end on SIGTERM")
            else:
                if code:
                    self.complaints.append(f"ended on SIGTERM with exit code {code}")
            self.is_running = False

    def _look(self) -> None:
        process = self._daemon._process
        if process is not None and process.poll() is not None:
            self.complaints.append(f"ended by itself with exit code {process.returncode}")

    def pause(self) -> None:
        """It stands still, as a process that is swapped out."""
        with self._lock, suppress(RuntimeError, ProcessLookupError):
            os.kill(self._daemon.pid, signal.SIGSTOP)

    def resume(self) -> None:
        with self._lock, suppress(RuntimeError, ProcessLookupError):
            os.kill(self._daemon.pid, signal.SIGCONT)

    def sleep(self, nap: Callable[[], None]) -> None:
        """The machine sleeps during the nap: the process stands still, and so does its monotonic clock."""
        self.pause()
        begun = time.monotonic()
        nap()
        self._slept_s += time.monotonic() - begun
        _write(self._slept, self._slept_s)
        self.resume()

    def set_clock(self, seconds: float) -> None:
        """From now on, the wall clock is off by so much."""
        _write(self._clock, seconds)

    def sweep_no_more(self) -> None:
        """From the next start on, it sweeps nothing by itself."""
        self._daemon._flags["sweep_interval"] = "3600"

    def upgrade(self) -> None:
        """From the next start on, it is of the next format."""
        self._environment["ARCHIVE_FAULTS_NEXT_FORMAT"] = "1"

    @property
    def is_newer(self) -> bool:
        return "ARCHIVE_FAULTS_NEXT_FORMAT" in self._environment

    @property
    def has_segments(self) -> bool:
        """Whether its logs have small segments."""
        return SEGMENTS in self._environment

    @property
    def data_dir(self) -> Path:
        """Its disk."""
        return self._daemon.data_dir

    @property
    def key(self) -> bytes:
        """The key that all machines have."""
        return bytes.fromhex(self._key_file.read_text())

    def close(self) -> None:
        """Ends everything."""
        self.resume()
        self.kill()
        self.wire.close()

    @property
    def log(self) -> str:
        """What its processes said."""
        return self._daemon.stderr

    def is_stormy(self, since: float) -> bool:
        """Whether a request to the bucket met something bad since then, or a little before."""
        return self.weather is not None and self.weather.last_evil > since - STORM_LASTS_S

    # -- its disk -------------------------------------------------------------------------------------------------

    def lose_disk(self) -> None:
        """A machine that comes back with an empty disk."""
        with self._lock:
            self.begin_loss()
            self.kill()
            shutil.rmtree(self._daemon.data_dir, ignore_errors=True)
            self._new_daemon()
            self.end_loss()

    def begin_loss(self, thread: str = "") -> None:
        """From now on, this machine may have lost a thread."""
        self._losing[thread] += 1

    def end_loss(self, thread: str = "") -> None:
        """Now it has."""
        self._losses[thread] += 1

    def disk(self, thread: str) -> int:
        """Which copy of a thread this is: it counts the losses."""
        return self._losses[thread] + self._losses[""]

    def is_losing(self, thread: str) -> int:
        """As ``disk``, with the losses under way."""
        return self._losing[thread] + self._losing[""]


def _write(path: Path, seconds: float) -> None:
    """Replaces what a daemon may be reading."""
    fresh = path.with_suffix(".new")
    fresh.write_text(str(seconds))
    fresh.replace(path)
