"""The danger: an example that a new user runs first, and that does not do what it says."""

import sys
from pathlib import Path

import pytest
from tests import warmcommand

pytest.importorskip("google.adk.runners", reason="the extra adk is not installed")


def test_a_person_answers_from_the_shell(repository: Path) -> None:
    """The confirmation starts the agent again, and the tool is called once."""
    command = [sys.executable, repository / "examples" / "15_adk.py"]
    done = warmcommand.run(command, nested=True, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the tool was called once, after the confirmation" in done.stdout
