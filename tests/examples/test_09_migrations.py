"""The danger: a migration beside agents at work that loses what they save, or leaves a thread behind."""

import sys
from pathlib import Path

import pytest
from tests import warmcommand


def run(repository: Path, *options: str) -> str:
    command = [sys.executable, repository / "examples" / "09_migrations.py", *options]
    done = warmcommand.run(command, nested=True, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_threads_are_migrated_while_the_daemon_serves(repository: Path) -> None:
    """100 threads, an agent at work on some of them: all in the new schema, nothing lost, version 1 as it was."""
    assert "100 of 100 threads are right" in run(repository, "--threads", "100")


@pytest.mark.soak
def test_a_thousand_threads_are_migrated(repository: Path) -> None:
    """The size that was promised."""
    assert "1,000 of 1,000 threads are right" in run(repository)
