"""The danger: writes of several agents that get lost, or land twice, when the daemon is killed among them."""

import sys
from pathlib import Path

import pytest
from tests import warmcommand


def run(repository: Path, *options: str) -> str:
    command = [sys.executable, repository / "examples" / "06_board.py", *options]
    done = warmcommand.run(command, nested=True, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_nothing_is_lost_on_a_board(repository: Path) -> None:
    """8 processes × 100 appends and increments with a kill among them: 800 findings, 800 counted."""
    assert "800 findings, 800 of them different; counted 800 " in run(repository, "--each", "100")


@pytest.mark.soak
def test_nothing_is_lost_on_a_full_board(repository: Path) -> None:
    """The size that was promised: 8 processes × 500."""
    assert "4,000 findings, 4,000 of them different; counted 4,000 " in run(repository)
