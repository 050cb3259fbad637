"""A short directory, because the path of a socket has a limit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sw-", dir="/tmp") as path:
        yield Path(path)
