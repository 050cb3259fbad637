"""The danger: a question or a failure is over, and no command shows it any more, or another answer beside it."""

from __future__ import annotations

import json
import operator
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, TypedDict
from uuid import UUID

import pytest
from tests.cli.conftest import Answer, run

from stateward import Client
from stateward.testing import Daemon, run_daemon

pytest.importorskip("langgraph.graph", reason="the extra langgraph is not installed")
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from tests.frameworks.saved_steps import wait_for_version

from stateward._telling import prompt_of
from stateward.langgraph import StatewardSaver, resume_command
from stateward.models import Status

CONFIG: Any = {"configurable": {"thread_id": "pay"}}
TIMEOUT_S = 120
ASKED = ("asked", "answered", "failed")


class Said(TypedDict, total=False):
    a: str


class Both(TypedDict, total=False):
    said: Annotated[list[str], operator.add]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("vanished") / "data") as daemon:
        yield daemon


@pytest.fixture
def client(daemon: Daemon, request: pytest.FixtureRequest) -> Iterator[Client]:
    with daemon.client(namespace=request.node.name) as opened:
        yield opened


@pytest.fixture
def saver(daemon: Daemon, client: Client) -> Iterator[StatewardSaver]:
    with StatewardSaver(daemon.target, namespace=client.namespace) as opened:
        yield opened


@pytest.fixture
def stateward(daemon: Daemon, client: Client) -> Callable[..., Answer]:
    return lambda *arguments: run(*arguments, "--target", daemon.target, "--namespace", client.namespace)


def graph_of(saver: StatewardSaver, node: Callable[[], str]) -> Any:
    def slow(_: Said, config: RunnableConfig) -> Said:
        wait_for_version(saver, config)
        return {"a": node()}

    builder = StateGraph(Said)
    builder.add_node("n", slow)
    builder.add_edge(START, "n")
    return builder.compile(checkpointer=saver)


def told(happened: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """The lines of questions, answers and failures: what each says."""
    names = {"asked": "prompt", "answered": "sender", "failed": "detail"}
    return [(each["what"], each[names[each["what"]]]) for each in happened if each["what"] in names]


def all_told(answer: Answer) -> list[tuple[str, Any]]:
    return told([each for version in reversed(answer.json) for each in version["happened"]])


READABLE = {
    "amount": (Decimal("1200.50"), "1200.50"), "on": (date(2026, 5, 1), "2026-05-01"),
    "at": (datetime(2026, 5, 1, 12, tzinfo=UTC), "2026-05-01T12:00:00+00:00"), "from": (time_of_day(9, 30), "09:30:00"),
    "within": (timedelta(days=1), "1 day, 0:00:00"), "file": (Path("/tmp/bill.pdf"), "/tmp/bill.pdf"),
    "seats": ({2, 10, 1}, [1, 2, 10]), "order": (UUID(int=5), str(UUID(int=5))),
}  # fmt: skip


def test_a_person_sees_amounts_and_dates(client, saver, stateward):
    """The question has them as texts, and so has what `show` prints of the same values; also as keys and alone."""
    asked = {name: value for name, (value, _) in READABLE.items()}
    graph = graph_of(saver, lambda: str(interrupt({**asked, "rates": {date(2026, 5, 1): 7}})))
    graph.invoke({"a": ""}, CONFIG)
    question = client.thread("pay").info().question
    expected: dict[str, Any] = {name: text for name, (_, text) in READABLE.items()}
    assert json.loads(question.prompt) == {**expected, "rates": {"2026-05-01": 7}}
    assert prompt_of(date(2026, 5, 1)) == "2026-05-01"
    effects = stateward("effects", "pay", "--json").json
    (shown,) = [each["value"][0]["value"] for each in effects if each["name"] == "__interrupt__"]
    assert {**shown, "seats": sorted(shown["seats"]), "order": str(UUID(shown["order"]))} == {
        **expected, "rates": {"2026-05-01": 7},
    }  # fmt: skip


@pytest.mark.parametrize("levels", [90, 400, 900])
def test_a_person_sees_what_is_deep(levels):
    """The question has all of a value that JSON can hold; of one that JSON cannot hold, its type."""
    asked: Any = date(2026, 5, 1)
    for level in range(levels):
        asked = [asked] if level % 2 else {"k": asked}
    ends = ('[{"k": ', "}]")
    assert prompt_of(asked) == '"2026-05-01"'.join(end * (levels // 2) for end in ends)
    for _ in range(100_000):
        asked = [asked]
    assert prompt_of(asked) == "<list>"
    asked = {"k": 1}
    asked["again"] = [asked, asked]
    assert prompt_of(asked) == "<dict>"


def test_a_question_that_was_answered(client, saver, stateward):
    """Every reader shows what was asked and who answered, in this order, also while the answer is not used yet."""
    graph = graph_of(saver, lambda: str(interrupt("Pay 1,200?")))
    graph.invoke({"a": ""}, CONFIG)
    assert all_told(stateward("history", "pay", "--json")) == [("asked", "Pay 1,200?")]
    version = str(client.thread("pay").info().version)
    client.thread("pay").approve(sender="ana")
    graph.invoke(resume_command(saver.thread("pay")), CONFIG)
    assert all_told(stateward("history", "pay", "--json")) == [("asked", "Pay 1,200?"), ("answered", "ana")]
    listed = stateward("history", "pay").out
    assert "Pay 1,200?" in listed
    assert "approve by ana" in listed
    shown = stateward("show", "pay", "--at", version)
    assert 'asked     "Pay 1,200?"' in shown.out
    assert told(stateward("show", "pay", "--at", version, "--json").json["told"]) == [
        ("asked", "Pay 1,200?"), ("answered", "ana"),
    ]  # fmt: skip
    walk = stateward("replay", "pay").out
    assert walk.count('asked     "Pay 1,200?"') == walk.count("answered  approve by ana") == 1
    assert walk.index("Pay 1,200?") < walk.index("approve by ana")
    assert "status    running → waiting" in walk
    # From the next version on the answer stands with the version that used it: its question is not shown.
    rest = stateward("replay", "pay", "--from", str(int(version) + 1)).out
    assert ("asked" in rest, rest.count("answered  approve by ana")) == (False, 1)


def test_two_questions_in_one_node(client, saver, stateward):
    """Each answer follows its own question."""
    graph = graph_of(saver, lambda: f"{interrupt('First?')}{interrupt('Second?')}")
    graph.invoke({"a": ""}, CONFIG)
    expected = []
    for prompt, sender in (("First?", "ana"), ("Second?", "bob")):
        client.thread("pay").approve(sender=sender)
        expected += [("asked", prompt), ("answered", sender)]
        graph.invoke(resume_command(saver.thread("pay")), CONFIG)
    assert all_told(stateward("history", "pay", "--json")) == expected
    walk = stateward("replay", "pay").out
    places = [walk.index(text) for text in ("First?", "by ana", "Second?", "by bob")]
    assert places == sorted(places)


def test_a_failure_after_which_the_run_went_on(client, saver, stateward):
    """`failures THREAD` shows it, and so do the walk and the list."""
    left = ["once"]

    def node() -> str:
        if left:
            left.pop()
            raise ValueError("the bank is closed")
        return "paid"

    graph = graph_of(saver, node)
    with pytest.raises(ValueError, match="bank"):
        graph.invoke({"a": ""}, CONFIG)
    (now,) = stateward("failures", "--json").json
    version = now["version"]
    assert (now["is_overcome"], "bank is closed" in now["status_detail"]) == (False, True)
    graph.invoke(None, CONFIG)
    detail = "ValueError: the bank is closed"
    assert all_told(stateward("history", "pay", "--json")) == [("failed", detail)]
    assert f"failed    {detail}" in stateward("replay", "pay").out
    assert f"failed    {detail}" in stateward("show", "pay", "--at", str(version)).out
    assert detail in stateward("history", "pay").out
    (found,) = stateward("failures", "pay", "--json").json
    assert (found["version"], found["status_detail"], found["is_overcome"]) == (version, detail, True)
    assert stateward("failures", "--json").json == []


def names_of(client: Client, name: str) -> dict[str, str]:
    """The names of the parts of an open question, by their prompts."""
    question = client.thread(name).info().question
    assert question is not None
    return {part.prompt: part.name for part in question.parts}


def graph_of_two(saver: StatewardSaver) -> Any:
    """Two tasks at once, each of which asks."""

    def asks(prompt: str) -> Callable[..., Both]:
        def node(_: Both, config: RunnableConfig) -> Both:
            wait_for_version(saver, config)
            return {"said": [interrupt(prompt)]}

        return node

    builder = StateGraph(Both)
    for prompt in ("a?", "b?"):
        builder.add_node(prompt, asks(prompt))
        builder.add_edge(START, prompt)
    return builder.compile(checkpointer=saver)


class Overtaken(StatewardSaver):
    """LangGraph sends the writes of a step and the next checkpoint at once, from several threads, so any may come
    first. Here those of the last `late` of two tasks come after the checkpoint, and the others before it."""

    def __init__(self, late: int, target: str, namespace: str) -> None:
        super().__init__(target, namespace=namespace)
        self._lock, self._left, self._written = threading.Lock(), 2 - late, threading.Semaphore(0)
        self._early, self._saved = 2 - late, threading.Event()

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        if metadata["step"] != 1:
            return super().put(config, checkpoint, metadata, new_versions)
        for _ in range(self._early):
            assert self._written.acquire(timeout=TIMEOUT_S)
        made = super().put(config, checkpoint, metadata, new_versions)
        self._saved.set()
        return made

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        if not any(channel == "said" and value for channel, value in writes):
            super().put_writes(config, writes, task_id, task_path)
            return
        with self._lock:
            self._left -= 1
            is_late = self._left < 0
        assert not is_late or self._saved.wait(TIMEOUT_S)
        super().put_writes(config, writes, task_id, task_path)
        self._written.release()


@pytest.mark.parametrize(("late", "before"), [(0, "running"), (1, "waiting"), (2, "waiting")])
def test_the_second_part_of_a_question(daemon, client, stateward, late, before):
    """It is answered while the answer to the first one waits, once each. Where the next version overtook what a task
    wrote, the last that was told of the version before is that it waits; no answer is lost, and none is left."""
    with Overtaken(late, daemon.target, client.namespace) as saver:
        graph = graph_of_two(saver)
        graph.invoke({"said": []}, CONFIG)
        first, second = (names_of(client, "pay")[prompt] for prompt in ("a?", "b?"))
        stateward("answer", "pay", "--part", first, "x")
        assert "answered already" in stateward("answer", "pay", "--part", first, "z").error
        assert stateward("answer", "pay", "--part", second, "y").code == 0
        graph.invoke(resume_command(saver.thread("pay")), CONFIG)
        assert graph.get_state(CONFIG).values == {"said": ["x", "y"]}
        assert graph.get_state(CONFIG).next == ()
    info = client.thread("pay").info()
    assert (info.status, info.question, info.pending_signals) == (Status.COMPLETED, None, 0)
    walk = stateward("replay", "pay").out
    assert f"status    {before} → completed" in walk[walk.index("== version 3") :]
    assert walk.count("answered  answer by") == 2
    assert [what for what, _ in all_told(stateward("history", "pay", "--json"))].count("answered") == 2


def test_both_parts_of_a_question(client, saver, stateward):
    """They are answered together."""
    graph = graph_of_two(saver)
    graph.invoke({"said": []}, CONFIG)
    names = names_of(client, "pay")
    assert stateward("answer", "pay", "--json", json.dumps({names["a?"]: "x", names["b?"]: "y"})).code == 0
    graph.invoke(resume_command(saver.thread("pay")), CONFIG)
    assert graph.get_state(CONFIG).values == {"said": ["x", "y"]}
