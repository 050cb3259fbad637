"""The danger: an example that a new user runs first, and that does not do what it says."""

import sys
from pathlib import Path

from tests import warmcommand


def test_events_are_folded_once(repository: Path) -> None:
    """A kept fold survives a crash and takes only new events; a follower sees each event once."""
    command = [sys.executable, repository / "examples" / "05_event_sourcing.py"]
    done = warmcommand.run(command, nested=True, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "folded from 2 new events" in done.stdout
