"""An S3 server that can be killed and started again, on its directory and its ports."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.bucket import weed

BUCKET = "stateward"


class Server:
    """SeaweedFS; ``url`` stays the same over all starts."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = dict(zip(weed.PORT_FLAGS, weed.free_ports(len(weed.PORT_FLAGS)), strict=True))
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._ports['s3.port']}"

    def start(self) -> None:
        """Returns when it takes objects. Raises WeedMissing."""
        command = [
            weed.find_weed(), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={self._directory}",
            "-master.telemetry=false", "-volume.max=100", "-master.volumeSizeLimitMB=64", "-s3", "-s3.iam=false",
            "-s3.port.iceberg=0", "-s3.port.lance=0", *(f"-{flag}={port}" for flag, port in self._ports.items()),
        ]  # fmt: skip
        environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        log_path = self._directory / "weed.log"
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._directory, env=environment)
        self._wait_until_ready(log_path)

    def _wait_until_ready(self, log: Path) -> None:
        """Until it takes an object into the tests' bucket, which a first start makes."""
        end = time.monotonic() + weed.READY_WITHIN_S
        while time.monotonic() < end:
            with suppress(OSError):  # not there yet, or the bucket is there since the last start
                weed.make_s3_bucket(self.url, BUCKET)
            request = urllib.request.Request(f"{self.url}/{BUCKET}/is-it-ready", data=b"x", method="PUT")
            with suppress(OSError), urllib.request.urlopen(request, timeout=10):
                return
            time.sleep(weed.POLL_S)
        raise RuntimeError(f"weed did not start:\n{log.read_text(errors='replace')[-2000:]}")

    def kill(self) -> None:
        """SIGKILL. What it had acknowledged is in the kernel's hands, and comes back with the next start."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


@contextmanager
def mortal_server(directory: Path) -> Iterator[Server]:
    """Started, with the tests' bucket; killed at the end."""
    server = Server(directory)
    try:
        server.start()
        yield server
    except weed.WeedMissing as error:
        pytest.skip(str(error))
    finally:
        server.kill()
