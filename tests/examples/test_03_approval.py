"""The danger: an answer that is lost between the machine that asked, a person without daemon, and the next machine."""

import sys
from pathlib import Path

from tests import warmcommand


def test_an_answer_finds_its_way_to_another_machine(repository: Path) -> None:
    """Asked on one machine, approved with no daemon running, booked on another one with an empty disk, once."""
    command = [sys.executable, repository / "examples" / "03_approval.py"]
    done = warmcommand.run(command, nested=True, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "booking-42 waits (costs money): Book the Lutetia" in done.stdout
    assert "'approved by': 'ana'" in done.stdout
    assert "the answer was used once" in done.stdout
