"""Google Cloud Storage for tests: fake-gcs-server on loopback and in memory, behind the front of `gcs_front.py`.

`make fake-gcs` installs it in `build/fake-gcs`.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bucket.gcs_front import Front, running_front
from tests.bucket.weed import free_ports

PROGRAM = Path(__file__).parents[2] / "build" / "fake-gcs" / "fake-gcs-server"
READY_WITHIN_S = 60.0
POLL_S = 0.1


class FakeGcsMissing(Exception):
    """The server is not there; the message says how to get it."""


@contextmanager
def running_gcs(directory: Path) -> Iterator[Front]:
    """Runs the server with a bucket `stateward` until the block is left; gives the front. Raises FakeGcsMissing."""
    if not PROGRAM.exists():
        raise FakeGcsMissing("no fake-gcs-server in build/fake-gcs; run `make fake-gcs`, which needs Go")
    (port,) = free_ports(1)
    place = f"127.0.0.1:{port}"
    command = [
        str(PROGRAM), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory",
        "-public-host", place,
    ]  # fmt: skip
    with (directory / "fake-gcs.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
        try:
            _make_bucket(process, place, directory / "fake-gcs.log")
            with running_front(place) as front:
                yield front
        finally:
            process.kill()
            process.wait()


def gcs_environment(url: str) -> dict[str, str]:
    """What points at the front, or at a proxy before it."""
    return {"GOOGLE_BASE_URL": url, "GOOGLE_BEARER_TOKEN": "any"}


def _make_bucket(process: subprocess.Popen[bytes], place: str, log: Path) -> None:
    end = time.monotonic() + READY_WITHIN_S
    body, headers = json.dumps({"name": "stateward"}).encode(), {"content-type": "application/json"}
    while time.monotonic() < end and process.poll() is None:
        request = urllib.request.Request(f"http://{place}/storage/v1/b?project=p", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=10):
                return
        except OSError:
            time.sleep(POLL_S)
    raise RuntimeError(f"fake-gcs-server did not start:\n{log.read_text(errors='replace')[-2000:]}")
