"""The danger: a static tool that sees `Any` where the client knows better, in one client or in both."""

import re
import tomllib
from pathlib import Path


def test_types_are_inferred(repository: Path) -> None:
    """A type checker infers what the clients return, also in the examples, without a cast. `make test` runs it."""
    examples = sorted(repository.glob("examples/*.py"))
    assert examples
    assert [each.name for each in examples if re.search(r"\bcast\(|# type: ignore", each.read_text())] == []
    checked = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["mypy"]["files"]
    assert {"examples/*.py", "tests/client/typed_surface.py"} <= set(checked)
