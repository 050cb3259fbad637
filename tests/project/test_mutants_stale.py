"""The danger: a mutant that no longer breaks anything, because the line it breaks has moved."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.archive_model.mutants.__main__ import load as load_of_model
from tests.mutants.__main__ import COPIED, Mutant, load


@pytest.mark.parametrize("mutant", [*load(), *load_of_model()], ids=lambda mutant: mutant.name)
def test_the_patch_applies(mutant: Mutant, repository: Path) -> None:
    """It changes the product and names tests that are there."""
    checked = mutant.apply(repository, "--check")
    assert checked.returncode == 0, checked.stderr
    assert mutant.promise
    for test in mutant.tests:
        path, _, name = test.partition("::")
        assert not name or f"def {name.partition('[')[0]}(" in (repository / path).read_text(), test
        assert (repository / path).exists(), test
    changed = [line.split("\t")[-1] for line in mutant.apply(repository, "--numstat").stdout.splitlines()]
    assert changed
    assert all(path.startswith(("sidecar/", "client/", "deploy/", "packages/")) for path in changed)
    assert all(path.partition("/")[0] in COPIED for path in changed)


def test_the_tests_they_name_are_there(repository: Path) -> None:
    """With their parameters: one name that is not there, and a run of all mutants does not begin."""
    named = {test for mutant in [*load(), *load_of_model()] for test in mutant.tests}
    files = sorted({test.partition("::")[0] for test in named})
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", "--collect-only", *files]
    collected = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    found = set(collected.stdout.splitlines())
    whole = found | {test.partition("[")[0] for test in found} | set(files)
    assert named - whole == set(), collected.stderr
