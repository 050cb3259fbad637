"""The danger: the checkpointer for LangGraph.js fails LangGraph's validation suite or a real graph against today's
daemon."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NAMES = ("graph told", "validation names pages readme retries types options")
STEP_S = 200


@pytest.mark.slow
@pytest.mark.timeout(4 * STEP_S)
@pytest.mark.parametrize("names", NAMES, ids=["graph", "rest"])
def test_the_package(repository: Path, names: str) -> None:
    """Its validation suite and real graphs: all its tests but the kills, which `make test-langgraph-js` also runs."""
    package = repository / "packages/langgraph-js"
    if shutil.which("node") is None:
        pytest.skip("Node is not installed")
    if not (package / "node_modules/.package-lock.json").exists():
        pytest.skip("the npm packages are not installed: make test-langgraph-js installs them")
    tests = [f"tests/{name}.test.ts" for name in names.split()]
    build = ["node_modules/typescript/bin/tsc", "--project", "tsconfig.build.json"]
    with (package / "package.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other one builds in the same folder
        for command in (["generate.mjs"], build, ["node_modules/vitest/vitest.mjs", "run", "--reporter=dot", *tests]):
            done = subprocess.run(
                ["node", *command], cwd=package, env={**os.environ, "STATEWARD_PYTHON": sys.executable},
                capture_output=True, text=True, timeout=STEP_S, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
