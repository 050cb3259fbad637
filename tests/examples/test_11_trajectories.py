"""The danger: an example that a new user runs first, and that does not do what it says."""

import subprocess
import sys
from pathlib import Path


def test_runs_are_counted_and_exported(repository: Path) -> None:
    """Counts, failures and tools are those of the runs; the cheap ones are exported, and an old one expires."""
    command = [sys.executable, repository / "examples" / "11_trajectories.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 runs for training" in done.stdout
