"""Takes one fix out after the other in a copy of the source tree, and tells after how long the machine of two sidecars
notices.

python -m tests.archive_model.mutants [WORD …] [--minutes M] [--seed S]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.__main__ import Mutant, copy_tree

# What is begun may take so long to end: some histories, and one in which a call hangs.
MARGIN_S = 300
FINDING_MAX = 100


@dataclass(frozen=True)
class Found:
    """What a search came to."""

    told: str
    is_found: bool = False
    seed: int = 0
    histories: int = 0
    seconds: float = 0.0
    story: str = ""


def load(words: Sequence[str] = ()) -> list[Mutant]:
    """All mutants, or those whose names contain one of the words."""
    found = [Mutant(path) for path in sorted(Path(__file__).parent.glob("*.patch"))]
    return [mutant for mutant in found if not words or any(word in mutant.name for word in words)]


def search(tree: Path, minutes: float, seed: int) -> Found:
    """Histories on a tree."""
    path = os.pathsep.join(str(tree / name) for name in ("client", "sidecar"))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "tests.archive_model.mutants.search", "--minutes", str(minutes)]
    command += ["--seed", str(seed)]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=minutes * 60 + MARGIN_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Found("hangs")
    if done.returncode:
        return Found(f"the search ended with {done.returncode}: {done.stderr[-500:]}")
    answer = json.loads(done.stdout)
    finding = answer["finding"]
    return Found(
        finding or "NOT FOUND", bool(finding), answer["seed"], answer["histories"], answer["seconds"], answer["story"]
    )


def judge(mutant: Mutant, tree: Path, minutes: float, seed: int) -> Found:
    """What the machine finds in a tree without the fix."""
    applied = mutant.apply(tree)
    if applied.returncode:
        return Found(f"does not apply: {applied.stderr.strip()}")
    try:
        return search(tree, minutes, seed)
    finally:
        mutant.apply(tree, "--reverse")


def main() -> int:
    """Prints a line for each mutant. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.archive_model.mutants", description=(__doc__ or ""))
    parser.add_argument("words", nargs="*", metavar="WORD", help="only those whose names contain one of these")
    parser.add_argument("--minutes", type=float, default=5, help="for each (default: 5)")
    parser.add_argument("--seed", type=int, default=1, help="of all dice (default: 1)")
    parser.add_argument("--stories", type=Path, help="a directory for the histories that were found")
    options = parser.parse_args()
    mutants = load(options.words)
    if not mutants:
        print(f"no mutant is called {' or '.join(options.words)}", file=sys.stderr)
        return 2
    width, number_found = max(len(mutant.name) for mutant in mutants), 0
    print(f"{'mutant':{width}}  histories  seconds  finding", flush=True)
    with tempfile.TemporaryDirectory(prefix="model-mutants-") as place:
        tree = Path(place)
        copy_tree(tree)
        for mutant in mutants:
            found = judge(mutant, tree, options.minutes, options.seed)
            number_found += found.is_found
            told = f"{found.told[:FINDING_MAX]}{f' (seed {found.seed})' if found.is_found else ''}"
            print(f"{mutant.name:{width}}  {found.histories:9,}  {found.seconds:7.0f}  {told}", flush=True)
            if options.stories is not None and found.story:
                options.stories.mkdir(parents=True, exist_ok=True)
                (options.stories / f"{mutant.name}.txt").write_text(found.story)
    print(f"{number_found} of {len(mutants)} mutants were found")
    return 0 if number_found == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
