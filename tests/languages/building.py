"""Builds the agents of `examples/<language>/`, and knows whether a build is up to date.

A language is a folder with a `build.sh`, which leaves a program at `build/examples/<language>/agent`. Beside the
program lies a digest of all that it was built from.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BUILT = REPOSITORY / "build" / "examples"
MISSING_TOOL = 77
"""The exit code of a `build.sh` that lacks a tool."""
FIRST_LIMIT_S, AGAIN_LIMIT_S = 1800, 100
"""How long a build may take: with libraries to load, and after a change of the sources."""


class ToolMissing(Exception):
    """A language cannot be built here. The message names what is missing."""


class BuildFailed(Exception):
    """A build ended with an error. The message has its output."""


class BuildSlow(BuildFailed):
    """A build took longer than its limit."""


def list_languages() -> list[str]:
    """Returns the names of all languages."""
    return sorted(script.parent.name for script in REPOSITORY.glob("examples/*/build.sh"))


def program(language: str) -> Path:
    """Returns the path of the program, built or not."""
    return BUILT / language / "agent"


def was_built(language: str) -> bool:
    """Returns whether the language was built here before, perhaps from older sources."""
    return _stamp(language).exists() and program(language).exists()


def build(language: str, limit_s: float = FIRST_LIMIT_S) -> Path:
    """Builds the agent, unless it is up to date, and returns its path.

    Raises ToolMissing, BuildFailed or BuildSlow.
    """
    digest = _digest_sources(language)
    if was_built(language) and _stamp(language).read_text() == digest:
        return program(language)
    _stamp(language).unlink(missing_ok=True)
    command = ["sh", str(REPOSITORY / "examples" / language / "build.sh")]
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, env=_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        raise BuildSlow(f"not built within {limit_s:g} s:\n{_tail(late.output or b'')}") from None
    if done.returncode == MISSING_TOOL:
        raise ToolMissing(done.stdout.strip().splitlines()[-1])
    if done.returncode or not program(language).exists():
        raise BuildFailed(f"exit code {done.returncode}:\n{_tail(done.stdout)}")
    _stamp(language).write_text(digest)
    return program(language)


def _environment() -> dict[str, str]:
    """The environment of a build: the protoc of grpcio-tools comes before any other."""
    tools = BUILT / "tools"
    tools.mkdir(parents=True, exist_ok=True)
    protoc = tools / "protoc"
    protoc.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m grpc_tools.protoc "$@"\n')
    protoc.chmod(0o755)
    return {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


def _stamp(language: str) -> Path:
    return BUILT / language / "agent.sources"


def _digest_sources(language: str) -> str:
    """Digests the contract and the folder of the language."""
    files = [*REPOSITORY.glob("proto/**/*.proto"), *(REPOSITORY / "examples" / language).rglob("*")]
    digest = hashlib.sha256()
    for file in sorted(each for each in files if each.is_file()):
        digest.update(f"{file.relative_to(REPOSITORY)}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _tail(output: str | bytes) -> str:
    text = output if isinstance(output, str) else output.decode(errors="replace")
    return text[-6000:]
