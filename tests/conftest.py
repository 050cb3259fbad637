"""What every test shares: where the repository is, and how hypothesis behaves on a busy machine."""

from pathlib import Path

import pytest
from hypothesis import settings

# Two shared cores: how long one example takes says nothing. Failures print the line that reproduces them.
settings.register_profile("stateward", deadline=None, print_blob=True)
settings.load_profile("stateward")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return Path(__file__).resolve().parents[1]
