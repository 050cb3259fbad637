"""The danger: work that is handed over is done twice, or by nobody."""

import sys
from pathlib import Path

from tests import warmcommand


def test_one_of_twenty_takes_over(repository: Path) -> None:
    """Twenty processes ask at once: one gets it, dies, gets it again, and finishes what was pending."""
    command = [sys.executable, repository / "examples" / "07_handoff.py"]
    done = warmcommand.run(command, nested=True, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 writers asked, 1 got it" in done.stdout
    assert "started again, it got the same work" in done.stdout
