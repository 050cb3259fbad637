"""Says what is missing before a release may be built. Exits with 1 if anything is. `make release` runs it first.

    python docs/release.py
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# A domain that can belong to nobody (RFC 2606): whatever ends so is undecided.
PLACEHOLDER = re.compile(r"\b[\w.@-]+\.invalid\b")


def open_points(root: Path) -> Iterator[str]:
    """A line for each thing that is undecided, undated or uncommitted in a tree."""
    version_file = (root / "client/stateward/_version.py").read_text()
    (version,) = re.findall(r'^VERSION = "(.+)"$', version_file, re.MULTILINE)
    urls = tomllib.loads((root / "pyproject.toml").read_text())["project"]["urls"]
    if not urls.get("Repository") or PLACEHOLDER.search(" ".join(urls.values())):
        yield "pyproject.toml: the repository in [project.urls] is a placeholder"
    contact = (root / "SECURITY.md").read_text()
    if PLACEHOLDER.search(contact) or not re.search(r"`[^`\s]+@[^`\s]+`|https://", contact):
        yield "SECURITY.md: the security contact is a placeholder"
    if "IN_REGISTRY = True" not in version_file:
        yield "client/stateward/_version.py: IN_REGISTRY says that no registry has the package"
    elif "No package registry has" in (root / "docs/install.md").read_text():
        yield "docs/install.md: still says that no registry has the package"
    text = (root / "CHANGELOG.md").read_text()
    entry = text.partition(f"\n## {version}")[2].partition("\n## ")[0]
    if not re.search(r"\b20\d\d-\d\d-\d\d\b", entry):
        yield f"CHANGELOG.md: version {version} has no date"
    done = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode or done.stdout:
        yield "the tree has changes that are not committed, or is no clone"


def main() -> int:
    """Prints what is missing."""
    points = list(open_points(ROOT))
    for point in points:
        print(f"no release: {point}", file=sys.stderr)
    return 1 if points else 0


if __name__ == "__main__":
    sys.exit(main())
