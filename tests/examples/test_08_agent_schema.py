"""The danger: an agent that books twice, or decides anew, because its successor does not know what it knew."""

import sys
from pathlib import Path

from tests import warmcommand


def test_a_killed_agent_goes_on_from_its_resume_prompt(repository: Path) -> None:
    """Killed after the booking, it is resumed from the prompt alone: one booking, one decision, the plan done."""
    command = [sys.executable, repository / "examples" / "08_agent_schema.py"]
    done = warmcommand.run(command, nested=True, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "was begun, outcome unknown" in done.stdout
    assert "1 booking, 1 decision" in done.stdout
