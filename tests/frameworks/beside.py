"""Plays a program with StatewardSaver and with LangGraph's own saver, and compares all that a user can read."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from tests.frameworks.programs import THREADS, Action, World, act, look

from stateward.langgraph import StatewardSaver
from stateward.testing import Daemon

NUMBERS = count()


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
