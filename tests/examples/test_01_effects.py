"""The danger: an agent that is killed around a paid tool call, and pays twice or never."""

import re
import sys
from pathlib import Path

import pytest
from tests import warmcommand


def run(repository: Path, runs: int) -> dict[str, dict[str, int]]:
    """What the example counted, by kind of bank."""
    command = [sys.executable, repository / "examples" / "01_effects.py", "--runs", str(runs)]
    done = warmcommand.run(command, nested=True, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (line.partition(":") for line in done.stdout.splitlines()[:3])
    return {
        kind: {what: int(number) for number, what in re.findall(r"(\d+) ([a-z ]+)", rest)} for kind, _, rest in lines
    }


def check(counted: dict[str, dict[str, int]], each: int) -> None:
    for kind in ("honours the key", "can be asked"):
        assert counted[kind]["payments"] == counted[kind]["orders"] == each
        assert counted[kind]["uncertain"] == 0
    assert counted["neither"]["payments"] <= each
    assert all(kind["paid twice"] == 0 for kind in counted.values())
    assert sum(kind["kills"] for kind in counted.values()) > each  # or nothing was tried


def test_nobody_pays_twice(repository: Path) -> None:
    """Killed at any point: paid exactly once where that can be had, and at most once everywhere."""
    check(run(repository, 12), 4)


@pytest.mark.soak
def test_nobody_pays_twice_in_many_runs(repository: Path) -> None:
    """The size that was promised."""
    counted = run(repository, 201)
    check(counted, 67)
    assert counted["neither"]["uncertain"] > 0  # kills did meet the moment in which nobody can know
