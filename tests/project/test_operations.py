"""The danger: in an emergency, somebody types a command from the page, and it does not work."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bucket.weed import WeedMissing, make_s3_bucket, running_weed, s3_environment

from stateward import Client

COMMAND = re.compile(r"^    (stateward(?:-sidecar)? .+)$", re.MULTILINE)
# What has happened before somebody needs the command.
BEFORE = {"stateward import all.jsonl.gz": "stateward rm booking-42 --yes"}


@pytest.fixture
def machine() -> Iterator[tuple[Path, dict[str, str]]]:
    """A home, a runtime directory and a bucket `my-bucket`, without settings of this machine."""
    with tempfile.TemporaryDirectory(prefix="sw-", dir="/tmp") as name:
        place = Path(name)
        for folder in ("etc", "weed"):
            (place / folder).mkdir()
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "STATEWARD_", "XDG_"))}
        kept |= {"HOME": name, "XDG_RUNTIME_DIR": name, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        kept["PATH"] = f"{Path(sys.executable).parent}:{kept['PATH']}"
        try:
            with running_weed(place / "weed") as url:
                make_s3_bucket(url, "my-bucket")
                yield place, kept | s3_environment(url)
        except WeedMissing as error:
            pytest.skip(str(error))


@pytest.mark.slow
def test_every_command_of_the_page_works(repository: Path, machine: tuple[Path, dict[str, str]]) -> None:
    """From the first key to the last look, one command after the other ends well, on a real S3 server."""
    place, environment = machine
    lines = COMMAND.findall((repository / "docs/operations.md").read_text())
    assert len(lines) > 15
    daemon: subprocess.Popen[bytes] | None = None

    def run(line: str) -> None:
        done = subprocess.run(
            shlex.split(line.replace("/etc/stateward", f"{place}/etc")), cwd=place, env=environment,
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"

    try:
        for line in lines:
            if line.endswith(" &"):
                command = shlex.split(line.removesuffix(" &").replace("/etc/stateward", f"{place}/etc"))
                daemon = subprocess.Popen(command, cwd=place, env=environment, stderr=subprocess.DEVNULL)
                socket, end = place / "stateward/stateward.sock", time.monotonic() + 30
                while not socket.exists():
                    assert daemon.poll() is None, line
                    assert time.monotonic() < end, line
                    time.sleep(0.1)
                with Client(f"unix://{socket}") as client:
                    client.thread("booking-42").append("messages", "a room", durability="archived")
                continue
            if line in BEFORE:
                run(BEFORE[line])
            run(line)
    finally:
        if daemon is not None:
            daemon.terminate()
            assert daemon.wait(30) == 0
