"""The danger: tasks, people and kills in an order that nobody thought of: an answer reaches another question."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from stateward import Client
from stateward.errors import StatewardError
from stateward.models import Status
from stateward.signals import AnswerRefused
from stateward.testing import Daemon, run_daemon

pytest.importorskip("langgraph.graph", reason="the extra langgraph is not installed")
from langgraph.types import interrupt
from tests.frameworks.test_answers_used_twice import CONFIG, Killed, Said, graph_of

from stateward.langgraph import StatewardSaver, resume_command
from stateward.langgraph._answers import ANSWERS

ROUNDS, CALM_ROUNDS = 8, 15
"""Runs with faults, and at most so many without any until the graph has to have ended."""
PAUSE_S = 0.01


@dataclass
class Story:
    """A graph of tasks that ask, and what happens to it."""

    dice: random.Random
    client: Client
    daemon: Daemon
    prompts: dict[str, list[str]] = field(default_factory=dict)
    inner: set[str] = field(default_factory=set)
    is_calm: bool = False
    is_dead: bool = False
    fails: float = 0.0

    def __post_init__(self) -> None:
        for name in "bcde"[: self.dice.choice([2, 3, 4])]:
            self.prompts[name] = [f"{name}{at}?" for at in range(self.dice.choice([0, 1, 1, 2, 3]))]
            if self.prompts[name] and self.dice.random() < 0.25:
                self.inner.add(name)

    def stumble(self) -> None:
        """A task takes its time, fails or dies with the process."""
        if self.is_dead:
            raise Killed
        if not self.is_calm:
            time.sleep(self.dice.random() * PAUSE_S)
            if self.dice.random() < self.fails:
                raise ValueError

    def node(self, prompts: list[str]) -> Any:
        """A node that asks one thing after the other."""

        def run(_: Said) -> Said:
            said: list[list[Any]] = []
            self.stumble()
            for prompt in prompts:
                said.append([prompt, interrupt(prompt)])
                self.stumble()
            return {"said": said}

        return run

    def graph(self, saver: StatewardSaver) -> Any:
        """The graph; some of its nodes are graphs of their own."""
        nodes: dict[str, Any] = {"a": lambda _: {}}
        for name, prompts in self.prompts.items():
            node = self.node(prompts)
            nodes[name] = graph_of(None, {"a": node}) if name in self.inner else node
        return graph_of(saver, nodes, *(("a", name) for name in self.prompts))

    def answer(self) -> None:
        """A person reads the question and answers some of its parts, each with what only its prompt can get."""
        thread = self.client.thread("trip")
        with suppress(StatewardError, AnswerRefused):  # somebody was quicker
            info = thread.info()
            if info.status == Status.WAITING and info.question is not None:
                parts = [each for each in info.question.parts if self.is_calm or self.dice.random() < 0.6]
                chosen = parts or info.question.parts[:1]
                thread.answer({each.name: each.prompt + "!" for each in chosen}, wait_id=info.wait_id)

    def answer_meanwhile(self, stop: threading.Event) -> None:
        for _ in range(3):
            if not stop.wait(self.dice.random() * PAUSE_S * 5):
                self.answer()

    def run(self, at: int) -> list[list[Any]] | None:
        """One process. What the graph said, if it has ended."""
        self.is_dead, self.fails = False, self.dice.choice([0, 0, 0.2, 0.4])
        dies_at = None if self.is_calm else self.dice.choice([None, None, 3, 5, 8, 12])
        if self.dice.random() < 0.5:
            ANSWERS._given.clear()
        with StatewardSaver(self.daemon.target, namespace=self.client.namespace) as saver:
            graph = self.graph(saver)
            status = next((each.status for each in self.client.threads()), None)
            is_there = status is not None
            if status == Status.COMPLETED:
                return sorted(graph.get_state(CONFIG).values["said"])
            if is_there and (self.is_calm or self.dice.random() < 0.7):
                self.answer()
            command = resume_command(saver.thread("trip")) if is_there else {"said": []}
            if command is None and status == Status.WAITING:
                return None
            self.kill(saver, dies_at)
            stop = threading.Event()
            person = threading.Thread(target=self.answer_meanwhile, args=(stop,))
            person.start()
            try:
                with suppress(Killed, ValueError, StatewardError):
                    graph.invoke(command, CONFIG)
            finally:
                stop.set()
                person.join()
        return None

    def kill(self, saver: StatewardSaver, dies_at: int | None) -> None:
        """Makes writes slow, and kills the process before one of them."""
        session, count, lock = saver._blocking._session, 0, threading.Lock()
        perform = session.perform

        def performed(step: Any) -> Any:
            nonlocal count
            if step.method in ("Save", "PutEffects"):
                with lock:
                    count += 1
                    self.is_dead = self.is_dead or (dies_at is not None and count >= dies_at)
                if self.is_dead:
                    raise Killed
                if not self.is_calm:
                    time.sleep(self.dice.random() * PAUSE_S)
            return perform(step)

        session.perform = performed  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("random") / "data") as daemon:
        yield daemon


@pytest.mark.parametrize("seed", range(16))
def test_each_question_gets_its_own_answer_once(daemon: Daemon, seed: int) -> None:
    """Whatever happens, the graph ends, and nobody's answer is given to anything else."""
    with daemon.client(namespace=f"seed-{seed}") as client:
        story = Story(random.Random(seed), client, daemon)
        for at in range(ROUNDS + CALM_ROUNDS):
            story.is_calm = at >= ROUNDS
            said = story.run(at)
            if said is not None:
                assert said == sorted([each, each + "!"] for some in story.prompts.values() for each in some)
                return
        info = client.thread("trip").info()
        signals = client.thread("trip").signals.list()
        raise AssertionError(f"the graph does not end: {info.status}, {info.question}, {signals}")
