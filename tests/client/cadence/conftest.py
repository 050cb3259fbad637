"""A thread that an agent saves step by step."""

from __future__ import annotations

from typing import Any

import pytest
from tests.client.conftest import make_opener

from stateward.testing import Daemon


@pytest.fixture
def target(real_daemon: Daemon | str) -> str:
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return real_daemon.target


@pytest.fixture
def thread(target: str, name: str, open_client: Any) -> Any:
    """Of the blocking and of the asyncio client."""
    return open_client(target).thread(name)


@pytest.fixture
def another(target: str, name: str, open_client: Any) -> Any:
    """The same thread in the hands of another agent."""
    return open_client(target, holder="another").thread(name)


@pytest.fixture
def blocking(target: str, name: str) -> Any:
    opener = make_opener("blocking")
    yield next(opener)(target).thread(name)
    opener.close()
