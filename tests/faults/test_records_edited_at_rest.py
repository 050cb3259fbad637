"""The danger: somebody edits the disk behind the daemon's back, and it serves what it finds there as true.

The edits are those of agmi-check (PyPI: agent-memory-integrity): T1 to T8 of the draft
draft-khandelwal-bmwg-agent-memory-integrity, and T9, an older copy of the whole disk, which only an archive can tell
from the present.
"""

from __future__ import annotations

import pytest

check = pytest.importorskip(
    "agmi.check", reason="this environment is older than pyproject.toml; `make` brings it up to date"
)


@pytest.mark.parametrize("kind", ["Local", "Archived"])
def test_every_edit_is_rejected(kind: str) -> None:
    """When it is read; its own controls see that each edit landed, and that a whole store is served."""
    rows = check.run(check.load_adapter(f"tests.faults.edited:{kind}"))
    found = {row["edit"].partition(" ")[0]: (row["verdict"], row["detail"]) for row in rows}
    without = {"T9"} if kind == "Local" else set()
    assert set(found) == {f"T{number}" for number in range(1, 10)}
    assert {edit: told for edit, told in found.items() if told[0] != "REJECTED" and edit not in without} == {}
    if kind == "Local":
        assert found["T9"][0] == "NOT EVALUABLE"  # nothing off the disk knows better
