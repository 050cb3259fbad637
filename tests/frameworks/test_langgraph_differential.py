"""Random programs beside LangGraph's own saver. The danger: a graph gets back what it did not write."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from stateward.testing import Daemon, run_daemon

pytest.importorskip("langgraph.graph", reason="the extra langgraph is not installed")
from langgraph.checkpoint.memory import InMemorySaver
from tests.frameworks.programs import THREADS, Action, World, act, look, program, programs

from stateward.langgraph import StatewardSaver

NUMBERS = count()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("langgraph") / "data") as daemon:
        yield daemon


def play(daemon: Daemon, made: list[tuple[Action, list[int]]]) -> None:
    """Plays a program on both sides. Raises AssertionError at the first difference."""
    namespace = f"p{next(NUMBERS)}"

    def restart() -> None:
        daemon.kill()
        daemon.start()

    with ExitStack() as stack, daemon.client(namespace=namespace) as client:

        def make(**options: Any) -> StatewardSaver:
            return stack.enter_context(StatewardSaver(daemon.target, namespace=namespace, **options))

        memory = InMemorySaver()
        ours, theirs = World(make, restart), World(lambda: memory, writes_on=True)
        for action, lookers in made:
            assert act(ours, action) == act(theirs, action), action
            for worker in lookers:
                assert look(ours, worker, action[1]) == look(theirs, worker, action[1]), (action, worker)
        fresh = World(lambda: make(cache_bytes=0))
        for thread in THREADS:
            expected = look(theirs, 0, thread)
            for world, worker in ((ours, 0), (ours, 1), (fresh, 0)):
                assert look(world, worker, thread) == expected, (thread, worker)
        is_there = {thread for thread in THREADS if any(memory.storage.get(thread, {}).values())}
        assert {info.name for info in client.threads()} == is_there


@pytest.mark.parametrize("seed", range(20))
def test_a_random_program(daemon: Daemon, seed: int) -> None:
    """The same twenty programs each time."""
    play(daemon, program(random.Random(seed).choice))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=500, suppress_health_check=list(HealthCheck))
@given(made=programs())
def test_random_programs(daemon: Daemon, made: list[tuple[Action, list[int]]]) -> None:
    """Others each time."""
    play(daemon, made)
