"""Builds and runs the checker, a Go program beside this file. It shares nothing with the daemon or its model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("checker")
MODULES_WITHIN_S = 30.0
CHECK_WITHIN_S = 300.0


class NoChecker(Exception):
    """The checker cannot be built here; the message says why."""


@dataclass(frozen=True)
class Violation:
    """A promise that a history breaks. ``picture``: where Porcupine drew it; empty if order is not the matter."""

    rule: str
    thread: str
    text: str
    picture: str = ""

    def __str__(self) -> str:
        return f"{self.rule}: thread {self.thread!r}: {self.text}" + (f"; see {self.picture}" if self.picture else "")


def build_checker(directory: Path) -> Path:
    """Builds the program into a directory. Raises NoChecker where Go or its one module is missing."""
    go = shutil.which("go")
    if go is None:
        raise NoChecker("no go in the path; the checker of histories is written in Go")
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off"}
    try:
        modules = subprocess.run(
            [go, "mod", "download"], cwd=SOURCE, env=environment, capture_output=True, text=True,
            timeout=MODULES_WITHIN_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NoChecker("the module of the checker cannot be downloaded: no answer in time") from None
    if modules.returncode:
        raise NoChecker(f"the module of the checker cannot be downloaded: {modules.stderr.strip()[-300:]}")
    program = directory / "histories"
    command = [go, "build", "-trimpath", "-buildvcs=false", "-o", str(program), "."]
    subprocess.run(command, cwd=SOURCE, env=environment, check=True, timeout=CHECK_WITHIN_S)
    return program


def check_history(program: Path, history: Path) -> list[Violation]:
    """What a history breaks. Pictures are drawn beside it."""
    command = [str(program), str(history)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_WITHIN_S, check=False)
    if answer.returncode not in (0, 1):
        raise RuntimeError(f"the checker failed on {history}: {answer.stderr[-2000:]}")
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    found = [Violation(**line) for line in lines if "rule" in line]
    assert [line["violations"] for line in lines if "file" in line] == [len(found)], answer.stdout
    return found


def write_history(path: Path, records: Sequence[dict[str, object]]) -> Path:
    """Writes records as JSON lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
