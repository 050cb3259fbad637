"""Daemons that start as an operator starts them, and a short directory: the path of a socket has a limit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.warm import COLD


@pytest.fixture(scope="package", autouse=True)
def cold() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(COLD, "1")
        yield


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sw-", dir="/tmp") as path:
        yield Path(path)
