"""The danger: a change of the contract that breaks programs already generated from it."""

import subprocess
import sys
from pathlib import Path

import pytest

SKIPPED = 77


@pytest.mark.timeout(240)
def test_contract_passes_buf(repository: Path) -> None:
    """The .proto files keep the style, and break nothing that was released."""
    command = [sys.executable, "proto/check_contract.py"]
    check = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    if check.returncode == SKIPPED:
        pytest.skip(check.stdout.strip())
    assert check.returncode == 0, check.stdout + check.stderr
