"""Data of every kind, made once; each test damages copies of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.rig import Judge, Made, make


@pytest.fixture(scope="package")
def made() -> Iterator[Made]:
    with tempfile.TemporaryDirectory(prefix="sw-", dir="/tmp") as path:
        yield make(Path(path) / "data")


@pytest.fixture(scope="package")
def judge(made: Made) -> Iterator[Judge]:
    with tempfile.TemporaryDirectory(prefix="sw-", dir="/tmp") as path:
        yield Judge(made, Path(path) / "copy")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of damaged reads log thousands of lines."""
    caplog.set_level("CRITICAL", logger="stateward")
