"""Breaks one promise after the other in a copy of the source tree, and prints which test noticed.

python -m tests.mutants [WORD …]
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("client", "sidecar", "proto", "tests", "examples", "docs", "packages", "pyproject.toml")
NPM = "node_modules"
TIMEOUT_S = 600
_HEADER = re.compile(r"Promise: (?P<promise>.+)\nTests: (?P<tests>.+)\n")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_PASSED = re.compile(r"^\d+ passed|, \d+ passed", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """One broken line. Raises ValueError for a patch without its header."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def promise(self) -> str:
        return self._header()["promise"]

    @property
    def tests(self) -> list[str]:
        return self._header()["tests"].split()

    def _header(self) -> re.Match[str]:
        found = _HEADER.match(self.path.read_text())
        if found is None:
            raise ValueError(f"{self.path.name} does not begin with its promise and tests")
        return found

    def apply(self, tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """Applies the patch to a tree that is no git repository."""
        # If the tree is inside a repository, git would not change the files.
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent), "GIT_DIR": "/dev/null"}
        command = ["git", "apply", "--whitespace=nowarn", *options, str(self.path)]
        return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


def load(words: Sequence[str] = ()) -> list[Mutant]:
    """Returns all mutants, or those whose names contain one of the words."""
    found = [Mutant(path) for path in sorted(Path(__file__).parent.glob("*.patch"))]
    return [mutant for mutant in found if not words or any(word in mutant.name for word in words)]


def copy_tree(target: Path) -> None:
    """Copies what the tests need, without caches."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", ".hypothesis", NPM))
        else:
            shutil.copy(source, target / name)
    for installed in ROOT.glob(f"packages/*/{NPM}"):
        (target / installed.relative_to(ROOT)).symlink_to(installed)


def run_tests(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Runs tests on a tree. Returns pytest's exit code and output."""
    path = os.pathsep.join(str(tree / name) for name in ("client", "sidecar"))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "", *tests]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, "FAILED timeout"
    return done.returncode, done.stdout + done.stderr


def judge(mutant: Mutant, tree: Path) -> tuple[bool | None, str]:
    """Returns whether a mutant is killed, and by which test, or why not. None = nobody can tell here."""
    applied = mutant.apply(tree)
    if applied.returncode:
        return False, f"does not apply: {applied.stderr.strip()}"
    try:
        code, output = run_tests(tree, mutant.tests)
    finally:
        mutant.apply(tree, "--reverse")
    if code == 0 and not _PASSED.search(output):
        return None, "its tests are skipped here"
    if code != 1:
        return False, "SURVIVES" if code == 0 else f"pytest ended with {code}: {output[-500:]}"
    found = _FAILED.search(output)
    return True, found[1] if found else "a test"


def main(words: Sequence[str]) -> int:
    """Prints a line for each mutant. Returns the exit code."""
    mutants = load(words)
    if not mutants:
        print(f"no mutant has a name with {' or '.join(words)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        tree = Path(place)
        copy_tree(tree)
        whole = sorted({test for mutant in mutants for test in mutant.tests})
        print(f"{len(mutants)} mutants; first the {len(whole)} groups of tests on the whole tree …", flush=True)
        code, output = run_tests(tree, whole)
        if code:
            print(f"the tests fail without any mutant:\n{output[-3000:]}", file=sys.stderr)
            return 2
        killed = skipped = 0
        for mutant in mutants:
            began = time.monotonic()
            is_killed, told = judge(mutant, tree)
            killed += bool(is_killed)
            skipped += is_killed is None
            word = "skipped" if is_killed is None else "killed " if is_killed else "ALIVE  "
            print(f"{word} {time.monotonic() - began:5.1f} s  {mutant.name}: {told}")
            print(f"                 {mutant.promise}", flush=True)
    print(f"{killed} of {len(mutants)} mutants were killed, {skipped} skipped")
    return 0 if killed + skipped == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
