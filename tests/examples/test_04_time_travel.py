"""The danger: an example that a new user runs first, and that does not do what it says."""

import sys
from pathlib import Path

from tests import warmcommand


def test_a_run_goes_on_from_step_14(repository: Path) -> None:
    """A branch from step 14 with an edited slot ends elsewhere, and the first run is as it was."""
    command = [sys.executable, repository / "examples" / "04_time_travel.py"]
    done = warmcommand.run(command, nested=True, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the first 14 messages are shared" in done.stdout
