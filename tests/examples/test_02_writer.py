"""The danger: a writer that was paused, replaced, and goes on writing when it wakes up."""

import sys
from pathlib import Path

from tests import warmcommand


def test_a_writer_that_was_replaced_writes_nothing(repository: Path) -> None:
    """Stopped in mid-flight and resumed after a takeover, the first writer gets LeaseHeld and no entry lands."""
    command = [sys.executable, repository / "examples" / "02_writer.py"]
    done = warmcommand.run(command, nested=True, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wakes up: LeaseHeld" in done.stdout
    assert "and none after that" in done.stdout
