"""LangGraph.js: its validation suite and real graphs, with packages/langgraph-js, against a real daemon."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = [f"tests/{name}.test.ts" for name in ("validation", "graph", "names", "pages", "readme", "retries")]


@pytest.mark.slow
def test_the_validation_suite_and_graphs(repository: Path) -> None:
    """All of the package's tests but the kills, which `make test-langgraph-js` also runs."""
    package = repository / "packages/langgraph-js"
    if shutil.which("node") is None:
        pytest.skip("Node is not installed")
    if not (package / "node_modules/.package-lock.json").exists():
        pytest.skip("the npm packages are not installed: make test-langgraph-js installs them")
    build = ["node_modules/typescript/bin/tsc", "--project", "tsconfig.build.json"]
    for command in (["generate.mjs"], build, ["node_modules/vitest/vitest.mjs", "run", "--reporter=dot", *TESTS]):
        done = subprocess.run(
            ["node", *command], cwd=package, env={**os.environ, "STATEWARD_PYTHON": sys.executable},
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
