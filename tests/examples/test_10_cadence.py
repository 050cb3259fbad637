"""The danger: an example that a new user runs first, and that does not do what it says."""

import sys
from pathlib import Path

from tests import warmcommand


def test_a_stopped_agent_is_carried_on(repository: Path) -> None:
    """SIGTERM in a step loses nothing, a risky step is made once, and a drained machine is replaced at once."""
    command = [sys.executable, repository / "examples" / "10_cadence.py"]
    done = warmcommand.run(command, nested=True, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "charged 1 time(s)" in done.stdout
    assert "0 on this machine alone" in done.stdout
