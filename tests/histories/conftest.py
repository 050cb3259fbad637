"""The checker, built once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.histories.checker import NoChecker, build_checker


@pytest.fixture(scope="session")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that checks histories; skipped where it cannot be built."""
    try:
        return build_checker(tmp_path_factory.mktemp("checker"))
    except NoChecker as reason:
        pytest.skip(str(reason))
