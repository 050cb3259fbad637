"""The danger: a release of which one part says that it is another release."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from stateward._version import VERSION


def test_everything_has_the_version_of_the_distribution(repository: Path) -> None:
    """Commands, npm package and manifests say the one version, and the changelog has a place for it."""
    for module in ("stateward.cli", "stateward_sidecar"):
        said = subprocess.run(
            [sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True
        ).stdout
        assert said.split()[-1] == VERSION
    for name in ("package.json", "package-lock.json"):
        package = json.loads((repository / "packages/langgraph-js" / name).read_text())
        assert package["version"] == VERSION
    for manifest in (repository / "deploy").rglob("*.yaml"):
        for tag in re.findall(r"image: stateward:(\S+)|newTag: \"?([\w.]+)\"?", manifest.read_text()):
            assert VERSION in tag, manifest
    changelog = (repository / "CHANGELOG.md").read_text()
    assert "## [Unreleased]" in changelog or f"## [{VERSION}]" in changelog
