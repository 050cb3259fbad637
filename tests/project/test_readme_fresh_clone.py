"""The danger: a command of the README that works only where somebody has installed more than it says."""

import json
import os
import subprocess
from pathlib import Path

import pytest

QUICK = "--quick --rounds 2"
TASKS = {"demo": [], "bench": [f"BENCH={QUICK}"]}


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_tasks_of_a_newcomer(repository: Path, tmp_path: Path) -> None:
    """In a fresh clone without any environment, one task after the other ends well."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(repository), str(clone)], check=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    for task, options in TASKS.items():
        done = subprocess.run(
            ["make", task, *options], cwd=clone, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"make {task}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert not list(clone.glob(".venv/lib/python*/site-packages/pytest"))
    found = json.loads((clone / "build/bench/bench.json").read_text())
    assert found["failed"] == {}
    assert "SeaweedFS" not in found["skipped"], "the archive was not measured"
