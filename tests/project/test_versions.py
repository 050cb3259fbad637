"""The danger: a release of which one part says that it is another release."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    chart = (repository / "deploy/helm/stateward/Chart.yaml").read_text()
    assert re.findall(r"^(?:version|appVersion): (\S+)$", chart, re.MULTILINE) == [VERSION, VERSION]
    changelog = (repository / "CHANGELOG.md").read_text()
    assert "## [Unreleased]" in changelog or f"\n## {VERSION}" in changelog


# Formats that cannot read the one place; the test above compares them.
COPIES = {
    "CHANGELOG.md", "client/stateward/_version.py", "deploy/image/stateward.cdx.json", "deploy/image/aws.cdx.json",
    "deploy/image/vault.cdx.json",
    "deploy/kubernetes/sidecar/kustomization.yaml",
    "deploy/helm/stateward/Chart.yaml", "packages/langgraph-js/package.json", "packages/langgraph-js/package-lock.json",
}  # fmt: skip


def test_one_place_has_the_version(repository: Path) -> None:
    """No page, manifest or module repeats the version beside those that cannot read it."""
    command = ["git", "grep", "--name-only", "--fixed-strings", "--untracked", VERSION, "--", "."]
    command += [":!tests", ":!examples", ":!*.lock", ":!*requirements.txt"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        pytest.skip("not a git checkout")
    assert set(done.stdout.split()) - COPIES == set()
