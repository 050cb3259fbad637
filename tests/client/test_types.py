"""The danger: a static tool that sees `Any` where the client knows better, in one client or in both."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_types_are_inferred(repository: Path) -> None:
    """A type checker infers what the clients return, also in the examples, without a cast."""
    examples = sorted(repository.glob("examples/*.py"))
    assert examples
    assert [each.name for each in examples if re.search(r"\bcast\(|# type: ignore", each.read_text())] == []
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "tests/client/typed_surface.py", *map(str, examples)]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
