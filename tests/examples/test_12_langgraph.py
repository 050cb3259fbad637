"""The danger: an example that a new user runs first, and that does not do what it says."""

import sys
from pathlib import Path

import pytest
from tests import warmcommand

pytest.importorskip("langgraph.graph", reason="the extra langgraph is not installed")


def test_a_graph_is_answered_from_the_shell(repository: Path) -> None:
    """Two parts of a question are answered one after the other, and each answer starts the graph."""
    command = [sys.executable, repository / "examples" / "12_langgraph.py"]
    done = warmcommand.run(command, nested=True, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "still open is: Book the Lutetia" in done.stdout
    assert "trip-1 is completed: hotel and seat at the window" in done.stdout
