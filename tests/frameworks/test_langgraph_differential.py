"""The danger: a graph gets back what it did not write: random programs run beside LangGraph's own saver."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from stateward.testing import Daemon, run_daemon

pytest.importorskip("langgraph.graph", reason="the extra langgraph is not installed")
from tests.frameworks.beside import play
from tests.frameworks.programs import program


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("langgraph") / "data") as daemon:
        yield daemon


@pytest.mark.parametrize("seed", range(20))
def test_a_random_program(daemon: Daemon, seed: int) -> None:
    """The same twenty programs each time."""
    play(daemon, program(random.Random(seed).choice))
