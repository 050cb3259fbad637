"""The danger: a mutant that no longer breaks anything, because the line it breaks has moved."""

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
    assert all(path.startswith(("sidecar/", "client/", "packages/")) for path in changed)
    assert all(path.partition("/")[0] in COPIED for path in changed)
