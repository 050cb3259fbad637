"""The danger: an example that a new user runs first, and that does not do what it says."""

import sys
from pathlib import Path

from tests import warmcommand


def test_runs_are_counted_and_exported(repository: Path) -> None:
    """Counts, failures and tools are those of the runs; the cheap ones are exported, and an old one expires."""
    command = [sys.executable, repository / "examples" / "11_trajectories.py"]
    done = warmcommand.run(command, nested=True, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 runs for training" in done.stdout
