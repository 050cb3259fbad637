"""Breaks one promise after the other in a copy of the source tree, and prints which test noticed.

python -m tests.mutants [--jobs N] [WORD …]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("client", "sidecar", "proto", "tests", "examples", "deploy", "docs", "packages", "pyproject.toml")
NPM = "node_modules"
# What `make azurite` and `make fake-gcs` have installed.
SERVERS = ("azurite", "fake-gcs")
TIMEOUT_S = 600
WHOLE_TIMEOUT_S = 3600
_HEADER = re.compile(r"Promise: (?P<promise>.+)\nTests: (?P<tests>.+)\n")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?= - |$)", re.MULTILINE)  # an id may have spaces
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
    (target / "build").mkdir(exist_ok=True)
    for name in SERVERS:
        if (ROOT / "build" / name).exists():
            (target / "build" / name).symlink_to(ROOT / "build" / name)


def run_tests(tree: Path, tests: Sequence[str], *options: str, timeout_s: float = TIMEOUT_S) -> tuple[int, str]:
    """Runs tests on a tree. Returns pytest's exit code and output."""
    path = os.pathsep.join(str(tree / name) for name in ("client", "sidecar"))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", *options, *tests]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
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
        code, output = run_tests(tree, mutant.tests, "-x")
    finally:
        mutant.apply(tree, "--reverse")
    if code == 0 and not _PASSED.search(output):
        return None, "its tests are skipped here"
    if code != 1:
        return False, "SURVIVES" if code == 0 else f"pytest ended with {code}: {output[-500:]}"
    found = _FAILED.search(output)
    return True, found[1] if found else "a test"


@contextmanager
def trees(count: int) -> Iterator[list[Path]]:
    """Copies of the source tree, one for each job."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        Path(place).chmod(0o755)  # some tests run programs as other users, who have to reach the tree
        made = [Path(place) / str(number) for number in range(count)]
        for tree in made:
            tree.mkdir()
            copy_tree(tree)
        yield made


def judge_all(mutants: Sequence[Mutant], copies: Sequence[Path]) -> Iterator[tuple[Mutant, float, bool | None, str]]:
    """Yields each mutant as soon as it is judged: how long that took in seconds, and what ``judge`` returned."""
    free = list(copies)

    def run(mutant: Mutant) -> tuple[Mutant, float, bool | None, str]:
        tree, began = free.pop(), time.monotonic()
        try:
            is_killed, told = judge(mutant, tree)
        finally:
            free.append(tree)
        return mutant, time.monotonic() - began, is_killed, told

    with ThreadPoolExecutor(len(copies)) as pool:
        yield from (future.result() for future in as_completed(pool.submit(run, mutant) for mutant in mutants))


def main(arguments: Sequence[str]) -> int:
    """Prints a line for each mutant. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="only mutants whose names contain one of these")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many mutants are tried at once [1]")
    options = parser.parse_args(arguments)
    mutants = load(options.words)
    if not mutants:
        print(f"no mutant has a name with {' or '.join(options.words)}", file=sys.stderr)
        return 2
    with trees(options.jobs) as copies:
        whole = sorted({test for mutant in mutants for test in mutant.tests})
        print(f"{len(mutants)} mutants; first the {len(whole)} groups of tests on the whole tree …", flush=True)
        workers = ["-n", str(options.jobs)] if options.jobs > 1 else []
        code, output = run_tests(copies[0], whole, *workers, timeout_s=WHOLE_TIMEOUT_S)
        broken = {name.partition("::")[0] for name in _FAILED.findall(output)}
        if code:
            print(f"tests fail without any mutant:\n{output[-3000:]}", file=sys.stderr)
        if code and not broken:
            return 2
        provable = [each for each in mutants if not broken.intersection(name.partition("::")[0] for name in each.tests)]
        killed = skipped = 0
        for number, (mutant, took_s, is_killed, told) in enumerate(judge_all(provable, copies), 1):
            killed += bool(is_killed)
            skipped += is_killed is None
            word = "skipped" if is_killed is None else "killed " if is_killed else "ALIVE  "
            print(f"{word} {number:3}/{len(provable)} {took_s:5.1f} s  {mutant.name}: {told}")
            print(f"                 {mutant.promise}", flush=True)
    for mutant in mutants:
        if mutant not in provable:
            print(f"not tried: {mutant.name}, because its tests fail without it", file=sys.stderr)
    print(f"{killed} of {len(mutants)} mutants were killed, {skipped} skipped")
    return 0 if killed + skipped == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
