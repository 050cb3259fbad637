"""The danger: an example that a new user runs first, and that does not do what it says."""

import sys
from pathlib import Path

from tests import warmcommand


def test_files_go_back_and_the_talk_stays(repository: Path) -> None:
    """A shell command breaks the files; they go back, forward and back again, and no message is lost."""
    command = [sys.executable, repository / "examples" / "17_workspaces.py"]
    done = warmcommand.run(command, nested=True, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "make 1, replace 1, delete 200" in done.stdout
    assert "the agent still knows: rm: I deleted the wrong file." in done.stdout
    assert "undone and done again: True; .env was never touched: True" in done.stdout
