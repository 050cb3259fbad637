"""The danger: an example that a new user runs first, and that does not do what it says."""

import sys
from pathlib import Path

import pytest
from tests import warmcommand

pytest.importorskip("agent_framework", reason="the extra agent-framework is not installed")


def test_a_person_answers_from_the_shell(repository: Path) -> None:
    """The answer starts the workflow again, which gets it."""
    command = [sys.executable, repository / "examples" / "16_agent_framework.py"]
    done = warmcommand.run(command, nested=True, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the workflow got the answer" in done.stdout
