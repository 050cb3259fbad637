"""Random programs for a LangGraph saver: what two workers do with two threads, and what a thread then looks like.

A run is given a list of steps, and each of its nodes does the first one of them: it says something, asks, sends tasks,
calls a subgraph, fails. StatewardSaver and LangGraph's own saver play the same program; after each action all that a
user can read of a thread must be the same. Ids of checkpoints differ, so places in the history stand for them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.types import Command, Send, StateSnapshot, interrupt

from stateward.errors import UidMismatch

LARGE = "x" * 8_000  # the daemon sends a small state whole, however little has changed
THREADS = ("a", "b")
Step = list[Any]
Action = tuple[Any, ...]


# -- programs ---------------------------------------------------------------------------------------------------------

Choose = Callable[[Sequence[Any]], Any]
"""Chooses one of several things: `random.Random.choice`, or what hypothesis draws."""

ITEMS = [], [], ["p"], ["q", "r"], ["r"]
NOTES = None, "", 0, [], {}, [[]], "text", {"a": [1]}, ["p", "q"], b"\x00"
KINDS = (
    *("say",) * 3, *("items",) * 3, *("ask",) * 3, *("reset",) * 2,
    "note", "send", "sub", "fail", "meddle", "delete", "replace",
)  # fmt: skip
ACTIONS = (
    *("invoke",) * 7, *("update",) * 4, *("answer",) * 3, "resume", "resume", "carry_on", "carry_on",
    "fork", "fork", "replay", "replay", "forget", "delete",
)  # fmt: skip


def program(choose: Choose) -> list[tuple[Action, list[int]]]:
    """Actions, and which of the workers look at the thread afterwards. The first one makes a thread."""
    made = [(("invoke", "a", 0, steps(choose), "sync"), [0])]
    for _ in range(choose(range(4, 12))):
        where = choose("aaaab"), choose((0, 1))
        made.append(((kind := choose(ACTIONS), *where, *_arguments(kind, choose)), choose(([], [0], [1], [0, 1]))))
    if choose((False, False, True)):
        made.insert(choose(range(len(made))), (("restart", "a", 0), []))
    return made


def steps(choose: Choose) -> list[Step]:
    """What a run does, step by step."""
    return [[kind := choose(KINDS), *_details(kind, choose)] for _ in range(choose(range(5)))]


def _arguments(kind: str, choose: Choose) -> Action:
    match kind:
        case "invoke":
            return steps(choose), choose(("sync", "sync", "async", "exit"))
        case "update":
            return ({choose(("items", "items", "note")): list(choose(ITEMS))},)
        case "fork":
            return choose(range(9)), list(choose(ITEMS))
        case "replay":
            return (choose(range(9)),)
    return ()


def _details(kind: str, choose: Choose) -> Step:
    match kind:
        case "say" | "ask":
            return [choose((1, 2))]
        case "items":
            return [list(choose(ITEMS))]
        case "note":
            return [choose(NOTES)]
        case "send":
            return [choose((1, 2, 3)), choose(("", "", "p1", "p2"))]
        case "sub":
            return [choose((False, True))]
        case "fail":
            return [choose(("f1", "f2", "f3"))]
    return []


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[Action, list[int]]]:
    """Programs that hypothesis makes smaller."""
    return program(lambda options: draw(st.sampled_from(options)))


# -- the graph --------------------------------------------------------------------------------------------------------


class Trip(TypedDict, total=False):
    """What a run knows: the steps that are left, and what came of the others."""

    todo: list[Step]
    items: list[str]
    said: Annotated[list[str], operator.add]
    messages: Annotated[list[AnyMessage], add_messages]
    total: Annotated[int, operator.add]
    note: Any
    story: str


class Inner(TypedDict, total=False):
    """The state of the subgraph."""

    todo: list[Step]
    items: list[str]
    kept: Annotated[list[str], operator.add]


class Result(TypedDict, total=False):
    """What the subgraph returns."""

    items: list[str]
    note: Any


class Gone(Exception):
    """Ends a run whose thread was deleted, for a saver that would write on."""


@dataclass
class World:
    """One side: the savers of its workers, their graphs, and which nodes have failed already."""

    make: Callable[[], Any]
    """Makes the saver of a worker."""
    restart: Callable[[], None] = lambda: None
    writes_on: bool = False
    """Whether the saver takes writes of a run whose thread was deleted."""
    savers: list[Any] = field(init=False)
    graphs: list[Any] = field(init=False)
    failed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.savers = [self.make(), self.make()]
        self.graphs = [build(self, worker) for worker in (0, 1)]

    def fail_once(self, name: str) -> None:
        """Raises RuntimeError the first time that it gets a name."""
        if name and name not in self.failed:
            self.failed.add(name)
            raise RuntimeError(f"{name} fails")

    def interfere(self, worker: int, kind: str, config: RunnableConfig) -> None:
        """The other worker does something with the thread of a run."""
        other, place = 1 - worker, {"configurable": {"thread_id": config["configurable"]["thread_id"]}}
        if kind == "meddle":
            self.graphs[other].update_state(place, {"note": "meddled"}, as_node="say")
            return
        self.savers[other].delete_thread(place["configurable"]["thread_id"])
        if kind == "replace":
            _run(self.graphs[other], _input([["say", 1]]), place)
        if self.writes_on:
            raise Gone

    def forget(self, worker: int) -> None:
        """Gives a worker a saver that remembers nothing."""
        self.savers[worker] = self.make()
        self.graphs[worker] = build(self, worker)


def build(world: World, worker: int) -> Any:
    """The graph of a worker."""

    def step(state: Trip, config: RunnableConfig) -> dict[str, Any]:
        kind, *arguments = state["todo"][0]
        made = _DO[kind](world, worker, state, config, *arguments)
        return {"todo": state["todo"][1:], **made}

    def part(task: dict[str, Any]) -> dict[str, Any]:
        if task["is_last"]:
            world.fail_once(task["fails"])
        return {"total": task["number"], "said": [f"part {task['number']}"]}

    outer: Any = StateGraph(Trip)
    for kind in _DO:
        outer.add_node(kind, step)
        outer.add_conditional_edges(kind, _next)
    outer.add_node("send", lambda _: {"total": 1})
    outer.add_conditional_edges("send", _tasks, ["part"])
    outer.add_node("part", part)
    outer.add_node("sub", _subgraph())
    outer.add_node("done", lambda state: {"todo": state["todo"][1:]})
    outer.add_edge("part", "done")
    outer.add_edge("sub", "done")
    outer.add_conditional_edges("done", _next)
    outer.add_conditional_edges(START, _next)
    return outer.compile(checkpointer=world.savers[worker])


def _subgraph() -> Any:
    inner: Any = StateGraph(Inner, output_schema=Result)
    inner.add_node("first", lambda state: {"items": [*state.get("items", []), "inner"], "kept": ["first"]})
    inner.add_node("second", lambda state: {"note": interrupt("inner?"), "items": []} if state["todo"][0][1] else {})
    inner.add_edge(START, "first")
    inner.add_edge("first", "second")
    inner.add_edge("second", END)
    return inner.compile()


def _next(state: Trip) -> str:
    return str(state["todo"][0][0]) if state.get("todo") else END


def _tasks(state: Trip) -> list[Send]:
    _, count, fails = state["todo"][0]
    return [Send("part", {"number": number, "is_last": number == count - 1, "fails": fails}) for number in range(count)]


def _say(_world: World, _worker: int, state: Trip, _config: RunnableConfig, count: int) -> dict[str, Any]:
    begin = len(state.get("said") or ())
    names = [f"m{begin + at}" for at in range(count)]
    return {"said": names, "messages": [AIMessage(f"{len(state['messages'])} before", id=name) for name in names]}


def _ask(_world: World, _worker: int, _state: Trip, _config: RunnableConfig, count: int) -> dict[str, Any]:
    return {"said": [str(interrupt(f"question {at}")) for at in range(count)]}


def _fail(world: World, _worker: int, _state: Trip, _config: RunnableConfig, name: str) -> dict[str, Any]:
    world.fail_once(name)
    return {"said": [f"after {name}"]}


def _interfere(world: World, worker: int, state: Trip, config: RunnableConfig) -> dict[str, Any]:
    # Outside of the run's context, in which LangGraph would take the other graph for a subgraph.
    Context().run(world.interfere, worker, state["todo"][0][0], config)
    return {"said": ["late"], "note": "late"}


_DO: dict[str, Callable[..., dict[str, Any]]] = {
    "say": _say,
    "items": lambda _world, _worker, _state, _config, items: {"items": items},
    "note": lambda _world, _worker, _state, _config, value: {"note": value},
    "ask": _ask,
    "fail": _fail,
    "reset": lambda *_: {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES)]},
    "meddle": _interfere,
    "delete": _interfere,
    "replace": _interfere,
}


# -- playing ----------------------------------------------------------------------------------------------------------


def act(world: World, action: Action) -> Any:
    """Does one action. Returns its result, in a form that can be compared."""
    kind, thread, worker, *arguments = action
    graph: Any = world.graphs[worker]
    # One task after the other: whether a task ends before another one fails would be a matter of luck.
    config = {"configurable": {"thread_id": thread}, "max_concurrency": 1}
    try:
        match kind:
            case "invoke":
                return _run(graph, _input(arguments[0]), config, _durability(*arguments))
            case "resume" | "answer":
                return _answer(graph, worker, config, 1 if kind == "resume" else 4)
            case "carry_on":
                return _run(graph, None, config)
            case "update":
                graph.update_state(config, arguments[0], as_node="say")
            case "fork" | "replay":
                return _go_back(graph, config, *arguments)
            case "forget":
                world.forget(worker)
            case "delete":
                world.savers[worker].delete_thread(thread)
            case "restart":
                world.restart()
    except (Gone, UidMismatch):
        return "the thread is gone"
    except Exception as error:  # noqa: BLE001  both sides must fail alike
        return type(error).__name__
    return None


def _run(graph: Any, given: Any, config: Any, durability: str = "sync") -> Any:
    return _plain(graph.invoke(given, config, durability=durability))


def _answer(graph: Any, worker: int, config: Any, most: int) -> Any:
    """Answers questions until there are none."""
    found = None
    for number in range(most):
        found = _run(graph, Command(resume=f"answer {worker} {number}"), config)
        if not found or not found.get("__interrupt__"):
            break
    return found


def _durability(made: list[Step], durability: str) -> str:
    """Whether a run in the background has written already when others interfere is a matter of luck, too."""
    return "sync" if any(step[0] in ("meddle", "delete", "replace") for step in made) else durability


def _go_back(graph: Any, config: Any, back: int, items: list[str] | None = None) -> Any:
    """Changes an old checkpoint, or runs on from it."""
    history = list(graph.get_state_history(config))
    if not history:
        return None
    past = {**config, **history[back % len(history)].config}
    if items is None:
        return _run(graph, None, past)
    graph.update_state(past, {"items": items}, as_node="say")
    return None


def _input(made: list[Step]) -> dict[str, Any]:
    return {"todo": made, "story": LARGE}


def look(world: World, worker: int, thread: str) -> Any:
    """All that a worker can read of a thread, in a form that can be compared."""
    graph, config = world.graphs[worker], {"configurable": {"thread_id": thread}}
    history: list[StateSnapshot] = list(graph.get_state_history(config))
    places = {_id(each.config): at for at, each in enumerate(reversed(history))}
    newest = graph.get_state(config, subgraphs=True)
    return [_shown(newest, places), *(_shown(each, places) for each in history)]


def _shown(state: StateSnapshot, places: dict[str, int]) -> Any:
    about = {name: (state.metadata or {}).get(name) for name in ("source", "step")}
    parent = places.get(_id(state.parent_config)) if state.parent_config else None
    tasks = [
        (
            each.name, each.path, [asked.value for asked in each.interrupts], repr(each.error), _plain(each.result),
            _shown(each.state, {}) if isinstance(each.state, StateSnapshot) else None,
        )
        for each in state.tasks
    ]  # fmt: skip
    return {"values": _plain(state.values), "next": state.next, **about, "parent": parent, "tasks": tasks}


def _id(config: Any) -> str:
    return str(config["configurable"].get("checkpoint_id"))


def _plain(values: Any) -> Any:
    if not isinstance(values, dict):
        return values
    found = dict(values)
    if "messages" in found:
        found["messages"] = [(type(each).__name__, each.id, each.content) for each in found["messages"]]
    if "__interrupt__" in found:
        found["__interrupt__"] = [each.value for each in found["__interrupt__"]]
    found.pop("story", None)
    return found
