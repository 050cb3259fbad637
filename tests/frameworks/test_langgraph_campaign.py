"""The danger: a graph gets back what it did not write, in a program that the twenty fixed ones of
test_langgraph_differential.py do not contain."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from stateward.testing import Daemon, run_daemon

pytest.importorskip("langgraph.graph", reason="the extra langgraph is not installed")
from tests.frameworks.beside import play
from tests.frameworks.programs import Action, programs


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("langgraph") / "data") as daemon:
        yield daemon


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=500, suppress_health_check=list(HealthCheck))
@given(made=programs())
def test_random_programs(daemon: Daemon, made: list[tuple[Action, list[int]]]) -> None:
    """A program that fails is made smaller."""
    play(daemon, made)
