"""What histories that were found begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.archive_model.test_archive_model import Rules
from tests.daemon import small


@pytest.fixture
def history() -> Iterator[Rules]:
    """Thread `a` with two versions, all archived by the first sidecar; its end is checked like every other."""
    made = Rules()
    try:
        made.first_steps(size=10, archived=True)
        yield made
        made.teardown()
    finally:
        small.restore()
