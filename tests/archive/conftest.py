"""A fleet on a local bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemon.process import Fleet, fleet
from tests.daemon.town import Town, town


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Fleet]:
    """Sidecars that share a bucket in a directory."""
    with fleet(tmp_path) as made:
        yield made


@pytest.fixture
def driven(tmp_path: Path) -> Iterator[Town]:
    """Sidecars in this process, and a clock that is moved."""
    with town(tmp_path) as made:
        yield made
