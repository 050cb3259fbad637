"""A fleet on a local bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.archive.rig import Fleet, fleet


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Fleet]:
    """Sidecars that share a bucket in a directory."""
    with fleet(tmp_path) as made:
        yield made
