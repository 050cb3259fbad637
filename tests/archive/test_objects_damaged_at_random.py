"""The danger: stored bytes that are damaged in any way are read as something, or end in an error nobody foresaw."""

from __future__ import annotations

from pathlib import Path

from tests.daemon.town import town
from tests.soak import stored


def test_random_damage(tmp_path: Path) -> None:
    """The short form of `python -m tests.soak.stored`: every answer is as before, or an error of the contract."""
    with town(tmp_path) as made:
        stored.run(stored.Objects(made), 150)
