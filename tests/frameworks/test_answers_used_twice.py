"""The danger: an answer of a person that a graph uses twice, for something else, or never."""

from __future__ import annotations

import asyncio
import itertools
import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Annotated, Any, TypedDict

import pytest

from stateward import Client
from stateward.models import Status
from stateward.testing import Daemon, run_daemon

pytest.importorskip("langgraph.graph", reason="the extra langgraph is not installed")
from langgraph.checkpoint.serde.types import INTERRUPT, RESUME
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Interrupt, interrupt

from stateward.langgraph import StatewardSaver, aresume_command, resume_command
from stateward.langgraph._answers import ANSWERS, Given
from stateward.langgraph._names import MAIN, branch_of

CONFIG: Any = {"configurable": {"thread_id": "trip"}}
PROMPTS = {"B?", "C1?", "C2?", "D1?", "D2?"}
WRITES = {"Save", "PutEffects"}


class Said(TypedDict, total=False):
    """The state of the graphs here: what was asked, with the answer."""

    said: Annotated[list[list[Any]], operator.add]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("answers") / "data") as daemon:
        yield daemon


@pytest.fixture
def client(daemon: Daemon, request: pytest.FixtureRequest) -> Iterator[Client]:
    with daemon.client(namespace=request.node.name) as opened:
        yield opened


@pytest.fixture
def saver(daemon: Daemon, client: Client) -> Iterator[StatewardSaver]:
    with StatewardSaver(daemon.target, namespace=client.namespace) as opened:
        yield opened


def ask(*prompts: str, after: Callable[[str], None] = lambda _: None) -> Callable[[Said], Said]:
    """A node that asks one thing after the other. `after` may fail when a prompt is answered."""

    def node(_: Said) -> Said:
        said = []
        for prompt in prompts:
            said.append([prompt, interrupt(prompt)])
            after(prompt)
        return {"said": said}

    return node


def graph_of(saver: StatewardSaver | None, nodes: dict[str, Any], *edges: Any) -> Any:
    """A graph whose first node is `a`."""
    builder = StateGraph(Said)
    for name, node in nodes.items():
        builder.add_node(name, node)
    builder.add_edge(START, "a")
    for edge in edges:
        builder.add_edge(*edge)
    return builder.compile(checkpointer=saver)


def wide(saver: StatewardSaver, after: Callable[[str], None] = lambda _: None) -> Any:
    """Three nodes ask at once, two of them twice, one of these in a graph of its own."""
    inner = graph_of(None, {"a": ask("D1?", "D2?", after=after)})
    nodes = {"a": lambda _: {}, "b": ask("B?", after=after), "c": ask("C1?", "C2?", after=after), "d": inner}
    return graph_of(saver, nodes, ("a", "b"), ("a", "c"), ("a", "d"))


def reply(client: Client, most: int = 100) -> None:
    """Answers some parts of the open question, each with what only its prompt can get."""
    info = client.thread("trip").info()
    assert (info.status, info.question is not None) == (Status.WAITING, True)
    assert info.question is not None
    parts = info.question.parts[:most]
    client.thread("trip").answer({part.name: part.prompt + "!" for part in parts}, wait_id=info.wait_id)


def play(graph: Any, saver: StatewardSaver, client: Client, most: int = 100) -> list[list[Any]]:
    """Runs the graph to its end as agents do that are started when there is an answer."""
    thread = client.thread("trip")
    for _ in range(20):
        info = thread.info()
        if info.status == Status.COMPLETED:
            assert not thread.signals.list()
            return sorted(graph.get_state(CONFIG).values["said"])
        if info.status == Status.WAITING and not any(each.wait_id == info.wait_id for each in thread.signals.list()):
            reply(client, most)
        graph.invoke(resume_command(saver.thread("trip")), CONFIG)
    raise AssertionError("the graph does not end")


RIGHT = sorted([prompt, prompt + "!"] for prompt in PROMPTS)


def test_an_approval_is_used_once(saver: StatewardSaver, client: Client) -> None:
    """`interrupt` returns it; the step that it led to acknowledges it, and no call is made for this."""
    graph, thread = graph_of(saver, {"a": ask("Book?")}), client.thread("trip")
    assert resume_command(saver.thread("trip")) is None
    graph.invoke({"said": []}, CONFIG)
    assert resume_command(saver.thread("trip")) is None
    thread.approve("fine", sender="ana")
    command = resume_command(saver.thread("trip"))
    calls = calls_of(saver)
    graph.invoke(command, CONFIG)
    assert graph.get_state(CONFIG).values["said"] == [["Book?", True]]
    assert (thread.info().status, thread.signals.list()) == (Status.COMPLETED, [])
    assert resume_command(saver.thread("trip")) is None
    assert [each.sender for each in thread.signals.list(acknowledged_by=thread.info().version)] == ["ana"]
    calls[:], plain = [], list(calls)
    graph.invoke({"said": []}, CONFIG)
    calls.clear()
    graph.invoke(Command(resume=True), CONFIG)
    assert plain.count("PutEffects") + 1 == calls.count("PutEffects")  # which LangGraph makes for a bare value
    assert plain.count("Save") == calls.count("Save")


def calls_of(saver: StatewardSaver, fail: Callable[[str, bool], None] = lambda *_: None) -> list[str]:
    """The calls of a saver from now on. `fail` may raise before a call, and behind it."""
    session, calls = saver._blocking._session, list[str]()
    perform = session.perform

    def performed(step: Any) -> Any:
        fail(step.method, False)
        calls.append(step.method)
        answer = perform(step)
        fail(step.method, True)
        return answer

    session.perform = performed  # type: ignore[method-assign]
    return calls


def test_what_interrupt_returns(saver: StatewardSaver, client: Client) -> None:
    """True and False, or what the program makes of the signal; the value of an answer."""
    graph, thread = graph_of(saver, {"a": ask("Book?")}), client.thread("trip")
    for send, options, expected in (
        (lambda: thread.reject("no"), {}, False), (lambda: thread.answer({"seat": 1}), {}, {"seat": 1}),
        (lambda: thread.reject("too dear"), {"decide": lambda signal: signal.payload}, "too dear"),
        (lambda: thread.answer({thread.info().question.parts[0].name: None}), {}, None),  # type: ignore[union-attr]
    ):  # fmt: skip
        graph.invoke({"said": []}, CONFIG)
        send()
        graph.invoke(resume_command(saver.thread("trip"), **options), CONFIG)  # type: ignore[arg-type]
        assert graph.get_state(CONFIG).values["said"][-1] == ["Book?", expected]


@pytest.mark.parametrize(("most", "durability"), [(1, "sync"), (2, "async"), (100, "exit")])
def test_parts_get_their_own_answers(saver: StatewardSaver, client: Client, most: int, durability: Any) -> None:
    """Whatever is answered first; at each wait, all answers that were used are acknowledged."""
    graph = wide(saver)
    graph.invoke({"said": []}, CONFIG, durability=durability)
    thread = client.thread("trip")
    while thread.info().status != Status.COMPLETED:
        assert thread.info().pending_signals == 0
        reply(client, most)
        graph.invoke(resume_command(saver.thread("trip")), CONFIG, durability=durability)
    assert (sorted(graph.get_state(CONFIG).values["said"]), thread.signals.list()) == (RIGHT, [])


def test_a_function_is_resumed(saver: StatewardSaver, client: Client) -> None:
    """Tasks of the functional form, whose questions the entry point repeats."""

    @task
    def one(number: int) -> Any:
        return interrupt(f"{number}?")

    @entrypoint(checkpointer=saver)
    def flow(count: int) -> list[Any]:
        return [each.result() for each in [one(number) for number in range(count)]]

    flow.invoke(2, CONFIG)
    reply(client, 1)
    flow.invoke(resume_command(saver.thread("trip")), CONFIG)
    reply(client)
    assert sorted(flow.invoke(resume_command(saver.thread("trip")), CONFIG)) == ["0?!", "1?!"]
    assert (client.thread("trip").info().status, client.thread("trip").signals.list()) == (Status.COMPLETED, [])


def test_a_failed_run_gets_the_answer_again(saver: StatewardSaver, client: Client) -> None:
    """Each node fails once behind each of its answers; no other question gets the same answer."""
    failed = set[str]()

    def after(prompt: str) -> None:
        if prompt not in failed:
            failed.add(prompt)
            raise ValueError(prompt)

    graph, thread = wide(saver, after), client.thread("trip")
    graph.invoke({"said": []}, CONFIG)
    while (info := thread.info()).status != Status.COMPLETED:
        if info.status == Status.WAITING and not info.pending_signals:
            reply(client, 1)
        try:
            graph.invoke(resume_command(saver.thread("trip")), CONFIG)
        except ValueError:
            assert resume_command(saver.thread("trip")) is not None
    assert (failed, sorted(graph.get_state(CONFIG).values["said"]), thread.signals.list()) == (PROMPTS, RIGHT, [])


class Killed(Exception):
    """Stands for the end of the process."""


def test_a_killed_run_is_resumed(daemon: Daemon, client: Client) -> None:
    """Killed before or behind a write, and the next process knows only what the daemon has."""
    for at, most in ((3, 100), (6, 100), (11, 100), (10, 1), (21, 1), (22, 1)):
        calls = iter(range(1000))

        def fail(method: str, is_behind: bool, calls: Iterator[int] = calls, at: int = at) -> None:
            if method in WRITES and next(calls) >= at:
                raise Killed

        client.thread("trip").delete(missing_ok=True)
        with StatewardSaver(daemon.target, namespace=client.namespace) as saver:
            wide(saver).invoke({"said": []}, CONFIG)
            calls_of(saver, fail)
            with pytest.raises(Killed):
                play(wide(saver), saver, client, most)
        ANSWERS._given.clear()
        with StatewardSaver(daemon.target, namespace=client.namespace) as saver:
            assert play(wide(saver), saver, client, most) == RIGHT, (at, most)


class Order:
    """Lets the writes in which tasks tell of their questions through in an order, and kills the run behind some."""

    def __init__(self, saver: StatewardSaver, order: tuple[int, ...], most: int) -> None:
        self.turn, self.order, self.most = threading.Condition(), order, most
        self.waiting, self.through = list[str](), 0
        session = saver._blocking._session
        perform = session.perform

        def performed(step: Any) -> Any:
            told = step.method == "PutEffects" and step.request.status
            if not told:
                if step.method in WRITES and self.through >= self.most:
                    raise Killed
                return perform(step)
            self.wait(step.request.asker)
            try:
                if self.through >= self.most:
                    raise Killed
                return perform(step)
            finally:
                with self.turn:
                    self.through += 1
                    self.turn.notify_all()

        session.perform = performed  # type: ignore[method-assign]

    def wait_for(self, count: int) -> None:
        """Waits until so many have come."""
        with self.turn:
            assert self.turn.wait_for(lambda: len(self.waiting) >= count, 60)

    def wait(self, asker: str) -> None:
        """Waits until all have come, and for its turn. Who fails has no asker, and comes last by name."""
        name = asker or "~"
        with self.turn:
            self.waiting.append(name)
            self.turn.notify_all()
            assert self.turn.wait_for(lambda: len(self.waiting) >= len(self.order), 60)
            at = self.order.index(sorted(self.waiting[: len(self.order)]).index(name))
            assert self.turn.wait_for(lambda: self.through >= at, 60)


@pytest.mark.parametrize(("fails", "is_late"), [("", False), ("B?", False), ("B?", True), ("C1?", False)])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_writes_of_tasks_come_in_any_order(
    daemon: Daemon, client: Client, order: tuple[int, ...], fails: str, is_late: bool
) -> None:
    """Three tasks write at once what they made of their answers. The daemon may get it in any order, and the run may
    die behind each of the writes. One task may fail, before the others have asked anything or after that."""
    gates = list[Order]()

    def after(prompt: str) -> None:
        if prompt == fails:
            if is_late:
                gates[-1].wait_for(2)
            raise ValueError(prompt)

    for most in range(4):
        client.thread("trip").delete(missing_ok=True)
        with StatewardSaver(daemon.target, namespace=client.namespace) as saver:
            wide(saver).invoke({"said": []}, CONFIG)
            reply(client)
            command = resume_command(saver.thread("trip"))
            gates.append(Order(saver, order, most))
            with suppress(Killed, ValueError):
                wide(saver, after).invoke(command, CONFIG)
        ANSWERS._given.clear()
        with StatewardSaver(daemon.target, namespace=client.namespace) as saver:
            assert play(wide(saver), saver, client) == RIGHT, most


def is_waiting(client: Client) -> bool:
    return any(info.status == Status.WAITING for info in client.threads())


def test_an_approval_is_about_what_was_asked(saver: StatewardSaver, client: Client) -> None:
    """A task that asks while the approval is on its way is not approved with the others."""
    thread, sent = client.thread("trip"), threading.Event()

    def late(_: Said) -> Said:
        assert sent.wait(60)
        return {"said": [["Late?", interrupt("Late?")]]}

    graph = graph_of(saver, {"a": lambda _: {}, "b": ask("B?"), "c": late}, ("a", "b"), ("a", "c"))
    run = threading.Thread(target=graph.invoke, args=({"said": []}, CONFIG))
    run.start()
    try:
        while not is_waiting(client):
            sent.wait(0.02)
        thread.approve()
    finally:
        sent.set()
        run.join()
    graph.invoke(resume_command(saver.thread("trip")), CONFIG)
    (left,) = thread.info().question.parts  # type: ignore[union-attr]
    assert (left.prompt, thread.signals.list()) == ("Late?", [])
    thread.approve()
    graph.invoke(resume_command(saver.thread("trip")), CONFIG)
    assert sorted(graph.get_state(CONFIG).values["said"]) == [["B?", True], ["Late?", True]]


def test_asyncio(daemon: Daemon, client: Client) -> None:
    """The asyncio half does the same."""

    async def work() -> list[Any]:
        async with StatewardSaver(daemon.target, namespace=client.namespace) as saver:
            graph = wide(saver)
            await graph.ainvoke({"said": []}, CONFIG)
            while (await saver.athread("trip").info()).status == Status.WAITING:
                reply(client, 2)
                await graph.ainvoke(await aresume_command(saver.athread("trip")), CONFIG)
            return sorted((await graph.aget_state(CONFIG)).values["said"])

    assert (asyncio.run(work()), client.thread("trip").signals.list()) == (RIGHT, [])


def test_an_inner_graph_keeps_the_answers_that_it_has_not_used() -> None:
    """Two tasks of an inner graph ask; one has used its answer and asks again, and the run died there."""
    given = Given(("s",), "c", {"x1": "X1", "y1": "Y1"})
    given.note(MAIN, [("outer", INTERRUPT, [Interrupt("?", id=each) for each in ("x1", "y1")])])
    inner: list[tuple[str, str, Any]] = [
        ("x", INTERRUPT, [Interrupt("?", id="x2")]), ("x", RESUME, ["X1"]), ("y", INTERRUPT, [Interrupt("?", id="y1")])
    ]  # fmt: skip
    given.note(branch_of("d:another"), inner)
    assert given.values == {"x1": "X1", "y1": "Y1"}  # of a graph in another task
    given.note(branch_of("d:outer"), inner)
    assert given.values == {"y1": "Y1"}
