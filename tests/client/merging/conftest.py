"""A thread and a board that several write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stateward.testing import Daemon, run_daemon


@pytest.fixture(scope="module")
def server() -> Iterator[Daemon]:
    """Only the real daemon: the fake knows neither numbers nor pages of logs."""
    with run_daemon() as daemon:
        yield daemon


@pytest.fixture
def thread(client: Any, name: str) -> Any:
    return client.thread(name)


@pytest.fixture
def board(client: Any, name: str) -> Any:
    return client.board(name, agent="ada")
