"""The danger: a value that a framework's own store keeps is lost, becomes another one, or stops the framework.

One table of values, adapters, and ways in. Each cell is what the framework's own store on a disk gives back, or what
was given. A value that this store does not keep may be refused by an error that names its place. The page about
frameworks names all other cells.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import itertools
import math
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stateward.testing import Daemon, run_daemon

pytest.importorskip("agents", reason="the extra openai-agents is not installed")
pytest.importorskip("agent_framework", reason="the extra agent-framework is not installed")
pytest.importorskip("google.adk", reason="the extra adk is not installed")
pytest.importorskip("langgraph.checkpoint.sqlite", reason="the extra langgraph-import is not installed")
pytest.importorskip("pydantic_ai", reason="the extra pydantic-ai is not installed")
from agent_framework import (
    FileCheckpointStorage,
    FileHistoryProvider,
    Message,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
)
from agents import SQLiteSession
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.sqlite import SqliteStore
from pydantic_ai import Conversation
from pydantic_ai.conversation_store import InMemoryConversationStore
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelRequest, ModelResponse, ToolCallPart, UserPromptPart

from stateward.adk import StatewardSessionService
from stateward.agent_framework import StatewardCheckpointStorage, StatewardHistoryProvider
from stateward.langgraph import StatewardSaver, StatewardStore
from stateward.openai_agents import StatewardSession
from stateward.pydantic_ai import StatewardConversationStore

numbers = itertools.count()


@dataclass
class Point:
    """A dataclass of the application."""

    x: float


class Colour(enum.Enum):
    """An enumeration of the application."""

    RED = "red"


class Level(enum.IntEnum):
    """One that is a number."""

    HIGH = 3


def deep(levels: int) -> Any:
    """Lists in lists."""
    value: Any = "end"
    for _ in range(levels):
        value = [value]
    return value


VALUES: dict[str, Any] = {
    "nan": math.nan,
    "infinity": math.inf,
    "minus infinity": {"low": [-math.inf]},
    "both": {"a": [math.nan, {"b": math.inf}], "text": "NaN"},
    "minus zero": -0.0,
    "huge": 2**80,
    "tiny": 5e-324,
    "none": None,
    "empty": {"a": [], "b": {}, "c": ""},
    "tuple": (1, (2, 3)),
    "set": {1},
    "bytes": b"token",
    "other bytes": b"\xff\x00",
    "bytearray": bytearray(b"token"),
    "memoryview": memoryview(b"token"),
    "time": dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
    "local time": dt.datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001
    "day": dt.date(2026, 1, 2),
    "length of time": dt.timedelta(seconds=1.5),
    "uuid": uuid.UUID(int=5),
    "decimal": decimal.Decimal("1.50"),
    "enum": Colour.RED,
    "number enum": Level.HIGH,
    "dataclass": Point(1.5),
    "dataclass with nan": Point(math.nan),
    "object": object(),
    "function": deep,
    "complex": 1j,
    "number keys": {1: "a", 2.5: "b"},
    "other keys": {None: "a", True: "b"},
    "tuple keys": {(1, 2): "a"},
    "keys that are one": {1: "a", "1": "b"},
    "surrogate": "a\ud800b",
    "surrogate in a key": {"a\udc00": {"b": "\ud83d"}},
    "control characters": "\x00\x01\x7f\u2028",
    "private use": "\ue000d800 \ue000",
    "names of markers": {"__pickled__": 1, "__type__": 2, "escaped": True, "type": "x"},
    "deep": deep(150),
}

Way = Callable[[Any, Any], Awaitable[Any]]
Pair = Callable[[Daemon, Path, AsyncExitStack], Awaitable[tuple[Any, Any]]]


async def openai(daemon: Daemon, folder: Path, stack: AsyncExitStack) -> tuple[Any, Any]:
    name = f"s{next(numbers)}"
    theirs = SQLiteSession(name, folder / name)
    stack.callback(theirs.close)
    return await stack.enter_async_context(StatewardSession(name, target=daemon.target)), theirs


async def add(session: Any, value: Any) -> Any:
    await session.add_items([{"role": "user", "k": value}])
    return (await session.get_items())[-1]["k"]


async def pop(session: Any, value: Any) -> Any:
    await session.add_items([{"role": "user", "k": value}])
    return (await session.pop_item())["k"]


async def adk(daemon: Daemon, folder: Path, stack: AsyncExitStack) -> tuple[Any, Any]:
    name = f"adk{next(numbers)}"
    ours = StatewardSessionService(target=daemon.target, namespace=name)
    return await stack.enter_async_context(ours), SqliteSessionService(str(folder / name))


PLACE: Any = {"app_name": "a", "user_id": "u", "session_id": "s"}


async def create(service: Any, value: Any) -> Any:
    await service.create_session(**PLACE, state={"k": value})
    return (await service.get_session(**PLACE)).state["k"]


async def append(service: Any, value: Any, key: str = "k") -> Any:
    session = await service.create_session(**PLACE)
    delta = EventActions(state_delta={key: value})
    await service.append_event(session, Event(author="x", invocation_id="i", actions=delta))
    return (await service.get_session(**PLACE)).state[key]


async def append_to_app(service: Any, value: Any) -> Any:
    return await append(service, value, "app:k")


async def append_to_user(service: Any, value: Any) -> Any:
    return await append(service, value, "user:k")


async def respond(service: Any, value: Any) -> Any:
    session = await service.create_session(**PLACE)
    part = types.Part.from_function_response(name="f", response={"k": value})
    await service.append_event(session, Event(author="x", invocation_id="i", content=types.Content(parts=[part])))
    return (await service.get_session(**PLACE)).events[-1].content.parts[0].function_response.response["k"]


async def workflow(daemon: Daemon, folder: Path, stack: AsyncExitStack) -> tuple[Any, Any]:
    name = f"w{next(numbers)}"
    ours = await stack.enter_async_context(StatewardCheckpointStorage(name, target=daemon.target))
    return ours, FileCheckpointStorage(folder / name)


async def checkpoint(storage: Any, value: Any) -> Any:
    await storage.save(WorkflowCheckpoint("w", "hash", checkpoint_id="c", state={"k": value}))
    (listed,) = await storage.list_checkpoints(workflow_name="w")
    assert shown(listed) == shown(await storage.load("c")) == shown(await storage.get_latest(workflow_name="w"))
    return listed.state["k"]


async def history(daemon: Daemon, folder: Path, stack: AsyncExitStack) -> tuple[Any, Any]:
    name = f"h{next(numbers)}"
    ours = StatewardHistoryProvider(target=daemon.target, namespace=name)
    return await stack.enter_async_context(ours), FileHistoryProvider(folder / name)


async def message(provider: Any, value: Any) -> Any:
    await provider.save_messages("s", [Message(role="user", contents=["x"], additional_properties={"k": value})])
    return (await provider.get_messages("s"))[-1].additional_properties["k"]


class JsonStore(InMemoryConversationStore):
    """What a store that writes the framework's own JSON would keep."""

    async def write_record(self, record: Any, *, new_entries: Any = (), expected_revision: Any) -> None:
        for entry in new_entries:
            (made,) = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json([entry.message]))
            object.__setattr__(entry, "message", made)
        await super().write_record(record, new_entries=new_entries, expected_revision=expected_revision)


async def pydantic(daemon: Daemon, folder: Path, stack: AsyncExitStack) -> tuple[Any, Any]:
    ours = StatewardConversationStore(target=daemon.target, namespace=f"p{next(numbers)}")
    return await stack.enter_async_context(ours), JsonStore()


async def metadata(store: Any, value: Any) -> Any:
    made = ModelRequest(parts=[UserPromptPart(content="x")], metadata={"k": value})
    await store.save(Conversation(conversation_id="c", messages=[made]))
    return (await store.load("c")).messages[-1].metadata["k"]


async def arguments(store: Any, value: Any) -> Any:
    made = ModelResponse(parts=[ToolCallPart("f", {"k": value})])
    await store.save(Conversation(conversation_id="c", messages=[made]))
    return (await store.load("c")).messages[-1].parts[0].args["k"]


async def saver(daemon: Daemon, folder: Path, stack: AsyncExitStack) -> tuple[Any, Any]:
    name = f"l{next(numbers)}"
    allowed = [Point, Colour, Level]
    ours = stack.enter_context(StatewardSaver(daemon.target, namespace=name, allowed_types=allowed))
    return ours, stack.enter_context(SqliteSaver.from_conn_string(str(folder / name)))


CONFIG: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


async def channel(saver: Any, value: Any) -> Any:
    versions: Any = {"k": str(uuid6())}
    made: Any = {**empty_checkpoint(), "id": str(uuid6()), "channel_versions": versions}
    made["channel_values"] = {"k": value}
    saver.put(CONFIG, made, {}, versions)
    return saver.get_tuple(CONFIG).checkpoint["channel_values"]["k"]


async def element(saver: Any, value: Any) -> Any:
    return (await channel(saver, ["first", value]))[1]


async def write(saver: Any, value: Any) -> Any:
    versions: Any = {"a": str(uuid6())}
    made: Any = {**empty_checkpoint(), "id": str(uuid6()), "channel_versions": versions}
    made["channel_values"] = {"a": 1}
    saver.put_writes(saver.put(CONFIG, made, {}, versions), [("k", value)], "task")
    return saver.get_tuple(CONFIG).pending_writes[0][2]


async def store(daemon: Daemon, folder: Path, stack: AsyncExitStack) -> tuple[Any, Any]:
    name = f"m{next(numbers)}"
    ours = stack.enter_context(StatewardStore(daemon.target, namespace=name))
    theirs = stack.enter_context(SqliteStore.from_conn_string(str(folder / name)))
    theirs.setup()
    return ours, theirs


async def put(store: Any, value: Any) -> Any:
    store.put(("a",), "x", {"k": value})
    return store.get(("a",), "x").value["k"]


WAYS: list[tuple[Pair, Way]] = [
    (openai, add), (openai, pop),
    (adk, create), (adk, append), (adk, append_to_app), (adk, append_to_user), (adk, respond),
    (workflow, checkpoint), (history, message),
    (pydantic, metadata), (pydantic, arguments),
    (saver, channel), (saver, element), (saver, write), (store, put),
]  # fmt: skip


ONE_KEY = 'two keys that are one in JSON, such as `1` and `"1"`, are refused'
AS_JSON = "dataclasses and pydantic models are kept as JSON"
NUMBERS = "NaN and infinities inside dataclasses and events are kept"
DIFFERENT: dict[tuple[Pair, str], str] = {
    (openai, "keys that are one"): ONE_KEY,
    (openai, "dataclass"): AS_JSON,
    (openai, "dataclass with nan"): AS_JSON,
    (adk, "dataclass with nan"): NUMBERS,
    (pydantic, "keys that are one"): ONE_KEY,
    (pydantic, "dataclass with nan"): NUMBERS,
    (store, "dataclass with nan"): NUMBERS,
}
"""The cells that differ, and how the page about frameworks names them."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("values") / "data") as daemon:
        yield daemon


def shown(value: Any) -> str:
    """A value as text, which tells 1 from 1.0, and -0.0 from 0.0. Objects have no addresses."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))


async def outcome(way: Way, store: Any, value: Any) -> tuple[str, str]:
    """What a store makes of a value: ("kept", what it gives back) or ("refused", why)."""
    try:
        return "kept", shown(await way(store, value))
    except Exception as error:  # noqa: BLE001  each framework has its own
        return "refused", f"{type(error).__name__}: {error}"


def problem(given: Any, ours: tuple[str, str], theirs: tuple[str, str]) -> str:
    """What is wrong in a cell; empty = nothing."""
    if ours[0] == "kept" and ours[1].count("None") > shown(given).count("None"):
        return f"ours loses something: {ours[1]:.100}"
    if ours == theirs or ours == ("kept", shown(given)):
        return ""
    if ours[0] == "kept":
        return f"ours gives {ours[1]:.100}, theirs {theirs}"
    if theirs[0] == "kept" and (theirs[1] == shown(given) or theirs[1] != "None"):
        return f"ours: {ours[1]:.200}; theirs gives {theirs[1]:.100}"
    return "" if re.search(r"[.:'\"]k\b", ours[1]) else f"no place: {ours[1]:.200}"


@pytest.mark.filterwarnings("ignore:.*FileHistoryProvider is experimental")
@pytest.mark.parametrize(("pair", "way"), WAYS, ids=lambda each: each.__name__)
async def test_every_value_comes_back_as_from_the_own_store(
    daemon: Daemon, tmp_path: Path, pair: Pair, way: Way
) -> None:
    """Or as it was given; what the own store refuses or loses may be refused, by an error with the place."""
    wrong = {}
    for name, value in VALUES.items():
        async with AsyncExitStack() as stack:
            ours, theirs = await pair(daemon, tmp_path, stack)
            found = problem(value, await outcome(way, ours, value), await outcome(way, theirs, value))
            if found:
                wrong[name] = found
    expected = {name for maker, name in DIFFERENT if maker is pair}
    assert {name: found for name, found in wrong.items() if name not in expected} == {}


WHOLE = {add, pop, checkpoint, message, put}
"""The ways on which a value may be as deep as JSON. On the others the framework itself takes no such value."""


def levels_of(value: Any) -> int:
    """How many lists are inside each other, without recursion."""
    found = 0
    while value != "end":
        (value,) = value
        found += 1
    return found


@pytest.mark.filterwarnings("ignore:.*FileHistoryProvider is experimental")
@pytest.mark.parametrize("levels", [180, 230, 400, 900])
@pytest.mark.parametrize(("pair", "way"), WAYS, ids=lambda each: each.__name__)
async def test_deep_values_come_back(daemon: Daemon, tmp_path: Path, pair: Pair, way: Way, levels: int) -> None:
    """Wherever the framework takes them. What it takes but cannot read again, or not at all, is refused by name."""

    async def measured(store: Any, value: Any) -> int:
        return levels_of(await way(store, value))

    async with AsyncExitStack() as stack:
        ours, _ = await pair(daemon, tmp_path, stack)
        found, said = await outcome(measured, ours, deep(levels))
    if found == "kept":
        assert said == str(levels)
    else:
        assert levels > 190, said
        assert way not in WHOLE or (way, levels) == (checkpoint, 900), said
        assert re.match(r"(Type|Value|WorkflowCheckpoint)(Error|Exception): .*[.:'\"]k\b", said)


async def is_empty(store: Any) -> bool:
    """Whether nothing of a refused value is stored."""
    match store:
        case StatewardSession():
            return not await store.get_items()
        case StatewardSessionService():
            session = await store.get_session(**PLACE)
            return session is None or not (session.events or session.state)
        case StatewardCheckpointStorage():
            return not await store.list_checkpoint_ids(workflow_name="w")
        case StatewardHistoryProvider():
            return not await store.get_messages("s")
        case StatewardConversationStore():
            return await store.read_record("c") is None
        case StatewardSaver():
            found = store.get_tuple(CONFIG)
            return found is None or ("k" not in found.checkpoint["channel_values"] and not found.pending_writes)
        case StatewardStore():
            return store.get(("a",), "x") is None
    raise AssertionError(store)


def bottomless() -> Any:
    """Deeper than anything can be written."""
    return deep(100_000)


def circle() -> Any:
    """A value that contains itself, by two ways."""
    found: list[Any] = []
    found += [found, {"again": found}]
    return found


@pytest.mark.filterwarnings("ignore:.*FileHistoryProvider is experimental")
@pytest.mark.parametrize("make", [bottomless, circle])
@pytest.mark.parametrize(("pair", "way"), WAYS, ids=lambda each: each.__name__)
async def test_what_has_no_end_is_refused(
    daemon: Daemon, tmp_path: Path, pair: Pair, way: Way, make: Callable[[], Any]
) -> None:
    """By name, at once, and nothing of it is sent."""
    async with AsyncExitStack() as stack:
        ours, _ = await pair(daemon, tmp_path, stack)
        with pytest.raises((TypeError, ValueError, WorkflowCheckpointException), match=r"[.:'\"]k\b"):
            await way(ours, make())
        assert await is_empty(ours)


def test_the_page_names_what_differs(repository: Path) -> None:
    """In the row of each adapter."""
    page = (repository / "docs/frameworks.md").read_text()
    titles: dict[Pair, str] = {openai: "OpenAI Agents SDK", adk: "Google ADK", pydantic: "Pydantic AI"}
    titles[store] = "LangGraph's store"
    for (pair, _), phrase in DIFFERENT.items():
        rows = re.findall(rf"^\| {titles[pair]} \| (.*) \|$", page, re.MULTILINE)
        assert any(phrase in row for row in rows)
