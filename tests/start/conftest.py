"""Daemons that start as an operator starts them, and a short directory: the path of a socket has a limit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.warm import COLD


# Of the module: a folder without __init__.py is no package, so that a fixture of one lasts until the end of the run.
@pytest.fixture(scope="module", autouse=True)
def cold() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(COLD, "1")
        yield


@pytest.fixture
def begun_warm() -> Iterator[None]:
    """For tests of what a daemon finds on its disk, or is told: it looks at both when it has imported everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(COLD)
        yield


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sw-", dir="/tmp") as path:
        yield Path(path)
