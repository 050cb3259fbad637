"""Starting the daemon as an operator does, where it is expected to refuse."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests import warm

TIMEOUT_S = 120.0  # a busy machine takes a minute for a start
USAGE = "usage: "


@dataclass(frozen=True)
class Ended:
    """A daemon that did not stay."""

    code: int
    stdout: str
    stderr: str

    @property
    def line(self) -> str:
        """What it says; fails unless that is one clear line."""
        assert self.code not in (0, 70), self
        assert self.stdout == ""
        assert "Traceback" not in self.stderr, self.stderr
        lines = self.stderr.splitlines()
        if self.stderr.startswith(USAGE):  # argparse shows the flags first
            lines = lines[-1:]
        assert len(lines) == 1, self.stderr
        assert lines[0].startswith("stateward-sidecar: ")
        return lines[0]


def write_key(path: Path) -> Path:
    path.write_text(secrets.token_hex(32))
    return path


def start(
    directory: Path, *flags: str, environment: Mapping[str, str] | None = None, timeout: float = TIMEOUT_S
) -> Ended:
    """Starts a daemon in a directory with a key; ``flags`` win over the usual ones. Fails when it stays."""
    if not (directory / "key").exists():
        write_key(directory / "key")
    usual = {
        "--data-dir": directory / "data",
        "--key-file": directory / "key",
        "--listen": f"unix://{directory}/s.sock",
    }
    command = [sys.executable, "-m", "stateward_sidecar"]
    for flag, value in usual.items():
        if flag not in flags:
            command += [flag, str(value)]
    return run([*command, *flags], directory, environment, timeout)


def run(
    command: list[str], directory: Path, environment: Mapping[str, str] | None, timeout: float = TIMEOUT_S
) -> Ended:
    """Runs a command that must end by itself. Settings of the caller's own environment do not reach it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("STATEWARD_")}
    inherited["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    with tempfile.TemporaryFile("w+") as stderr:
        process = warm.popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env={**inherited, **(environment or {})},
            cwd=directory,
        )  # fmt: skip
        try:
            code = process.wait(timeout)
            assert process.stdout is not None
            stdout = process.stdout.read()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        stderr.seek(0)
        return Ended(code, stdout, stderr.read())
