"""A real daemon for each test: what is on its disk is looked at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.trees.yard import TreeWire

from stateward.testing import Daemon, run_daemon


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with run_daemon(sweep_interval=0) as running:
        yield running


@pytest.fixture
def yard(daemon: Daemon) -> Iterator[TreeWire]:
    opened = TreeWire(daemon)
    yield opened
    opened.close()
