"""Makes the patches that no longer apply anew, by merging each with what changed since it was made.

python -m tests.mutants.renew [WORD …]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.__main__ import ROOT, Mutant, load


def git(*arguments: str, at: Path = ROOT) -> str:
    """What git says. Raises CalledProcessError if it refuses."""
    return subprocess.run(["git", *arguments], cwd=at, capture_output=True, text=True, check=True).stdout


def changed_files(patch: Path) -> list[str]:
    """The files that a patch changes."""
    return [line.removeprefix("--- a/") for line in patch.read_text().splitlines() if line.startswith("--- a/")]


def mutated_before(mutant: Mutant, base: str, files: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Each file as it was at a commit, without and with the mutant. Empty if the patch did not apply there."""
    with tempfile.TemporaryDirectory() as place:
        tree = Path(place)
        for name in files:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(git("show", f"{base}:{name}"))
        whole = {name: (tree / name).read_text() for name in files}
        if mutant.apply(tree).returncode:
            return {}
        return {name: (whole[name], (tree / name).read_text()) for name in files}


def merged(base: str, mutated: str, now: str) -> str | None:
    """The mutant's change in today's file, or None if both changed the same lines."""
    with tempfile.TemporaryDirectory() as place:
        paths = [Path(place) / name for name in ("now", "base", "mutated")]
        for path, text in zip(paths, (now, base, mutated), strict=True):
            path.write_text(text)
        done = subprocess.run(
            ["git", "merge-file", "-p", *map(str, paths)], capture_output=True, text=True, check=False
        )
    return done.stdout if done.returncode == 0 and done.stdout != now else None


def difference(name: str, now: str, mutated: str) -> str:
    """One file's part of a patch."""
    with tempfile.TemporaryDirectory() as place:
        for side, text in (("a", now), ("b", mutated)):
            path = Path(place) / side / name
            path.parent.mkdir(parents=True)
            path.write_text(text)
        command = ["git", "diff", "--no-index", "--no-color", "--no-prefix", f"a/{name}", f"b/{name}"]
        return subprocess.run(command, cwd=place, capture_output=True, text=True, check=False).stdout


def renew(mutant: Mutant) -> bool:
    """Makes one patch anew. False if this needs a person."""
    files = changed_files(mutant.path)
    own = str(mutant.path.relative_to(ROOT))
    # The newest commit at which the patch applied is at or after the one that made it.
    base = git("log", "-1", "--format=%H", "--", own).strip()
    try:
        before = mutated_before(mutant, base, files)
        parts = []
        for name in files:
            now = (ROOT / name).read_text()
            found = merged(*before[name], now) if name in before else None
            if found is None:
                return False
            parts.append(difference(name, now, found))
    except (subprocess.CalledProcessError, OSError):
        return False  # a file that has moved, or a patch that is in no commit
    header = "".join(mutant.path.read_text().splitlines(keepends=True)[:2])
    mutant.path.write_text(header + "".join(parts))
    return mutant.apply(ROOT, "--check").returncode == 0


def main(words: Sequence[str]) -> int:
    """Prints a line for each patch that did not apply. Returns 1 if one needs a person."""
    stale = [mutant for mutant in load(words) if mutant.apply(ROOT, "--check").returncode]
    failed = [mutant.name for mutant in stale if not renew(mutant)]
    for mutant in stale:
        print(f"{'by hand' if mutant.name in failed else 'renewed'}  {mutant.name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
