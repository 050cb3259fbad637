"""The danger: an id that a framework takes is refused by its adapter, or is the same thread as another id."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from stateward.testing import Daemon, run_daemon

pytest.importorskip("agents", reason="the extra openai-agents is not installed")
pytest.importorskip("agent_framework", reason="the extra agent-framework is not installed")
pytest.importorskip("google.adk", reason="the extra adk is not installed")
pytest.importorskip("pydantic_ai", reason="the extra pydantic-ai is not installed")
pytest.importorskip("strands", reason="the extra strands is not installed")
from agent_framework import Message, WorkflowCheckpoint
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from pydantic_ai import Conversation
from pydantic_ai.messages import ModelRequest, UserPromptPart

from stateward.adk import StatewardSessionService
from stateward.agent_framework import StatewardCheckpointStorage, StatewardHistoryProvider
from stateward.openai_agents import StatewardSession
from stateward.pydantic_ai import StatewardConversationStore
from stateward.strands import StatewardStorage

numbers = itertools.count()
IDS = [
    "a", "-", "a\nb", "a\x00b", "~%a", "~#a", "~%61", "100%", "a/b", "a%2Fb", "a//b", "..", "\x7f\x9f", "\U0001f600",
    "é" * 600, "x" * 1500, "x" * 1499 + "y", "/" * 1100, "\x01" * 400, "\ud800", "\udfff", "a@1", "a@@1", "a@@1.2",
]  # fmt: skip
BLANK = ["", " ", " a"]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("ids") / "data") as daemon:
        yield daemon


@pytest.fixture
def place(daemon: Daemon) -> Any:
    """The target, and a namespace of the test's own."""
    return {"target": daemon.target, "namespace": f"ids-{next(numbers)}"}


async def test_sessions_of_the_openai_sdk(place: Any) -> None:
    """Each has its own items."""
    for given in (*IDS, *BLANK):
        async with StatewardSession(given, **place) as session:
            await session.add_items([{"role": "user", "content": given}])
    for given in (*IDS, *BLANK):
        async with StatewardSession(given, **place) as session:
            assert [each["content"] for each in await session.get_items()] == [given]  # type: ignore[typeddict-item]


async def test_keys_of_strands(place: Any) -> None:
    """Each has its own data, and lists give the keys as they were given."""
    async with StatewardStorage(**place) as storage:
        keys = [*IDS, *BLANK[1:]]
        for key in keys:
            await storage.write(key, ascii(key).encode())
        assert await storage.list("") == sorted(keys)
        for key in keys:
            assert await storage.read(key) == ascii(key).encode()
            assert key in await storage.list(key)
        assert await storage.list("a/") == sorted(["a/b", "a//b"])
        assert await storage.list("x" * 1200) == sorted(["x" * 1500, "x" * 1499 + "y"])
        for key in keys:
            await storage.delete(key)
        assert await storage.list("") == []


async def test_data_of_strands_are_bytes_of_any_kind(place: Any) -> None:
    """Every buffer; what is none is refused."""
    from array import array

    async with StatewardStorage(**place) as storage:
        for data in (b"\xff\x00", bytearray(b"a"), memoryview(b"abcdef")[::2], array("i", [1, 2])):
            await storage.write("k", data)  # type: ignore[arg-type]
            assert await storage.read("k") == memoryview(data).tobytes()
        for wrong in ("text", 5, [1, 2], None):
            with pytest.raises(TypeError):
                await storage.write("k", wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("part", ["app_name", "user_id", "session_id"])
async def test_names_of_adk(place: Any, part: str) -> None:
    """Apps, users and sessions with any name; lists give users and ids as they were given."""
    async with StatewardSessionService(**place) as service:
        keys: list[Any] = [{"app_name": "app", "user_id": "user", "session_id": "s", part: given} for given in IDS]
        for number, key in enumerate(keys):
            state = {"own": number, "app:all": number, "user:all": number}
            await service.create_session(**key, state=state)
        for number, key in enumerate(keys):
            session = await service.get_session(**key)
            assert session is not None
            assert (session.app_name, session.user_id, session.id, session.state["own"]) == (*key.values(), number)
            listed = (await service.list_sessions(app_name=key["app_name"], user_id=key["user_id"])).sessions
            assert (key["user_id"], key["session_id"]) in [(each.user_id, each.id) for each in listed]
            assert len(listed) == (len(IDS) if part == "session_id" else 1)
        if part != "app_name":
            listed = (await service.list_sessions(app_name="app")).sessions
            assert sorted((each.user_id, each.id) for each in listed) == sorted(tuple(key.values())[1:] for key in keys)
        await service.delete_session(**keys[3])
        assert await service.get_session(**keys[3]) is None


@pytest.mark.parametrize("prefix", ["", "app:", "user:"])
async def test_keys_of_the_state_of_adk(place: Any, prefix: str) -> None:
    """Any text may be a key; an event cannot hold a lone surrogate."""
    async with StatewardSessionService(**place) as service:
        session = await service.create_session(app_name="a", user_id="u", session_id="s")
        wanted = {
            prefix + given: ascii(given) for given in (*IDS, *BLANK) if "\ud800" not in given and "\udfff" not in given
        }
        await service.append_event(
            session, Event(author="x", invocation_id="i", actions=EventActions(state_delta=wanted))
        )
        found = await service.get_session(app_name="a", user_id="u", session_id="s")
        assert found is not None
        assert found.state == wanted


async def test_checkpoints_of_the_agent_framework(place: Any) -> None:
    """Any thread, workflow and checkpoint id."""
    for given in (*IDS, *BLANK):
        async with StatewardCheckpointStorage(given, **place) as storage:
            await storage.save(WorkflowCheckpoint(given, "h", checkpoint_id=given, state={"k": given}))
            assert await storage.list_checkpoint_ids(workflow_name=given) == [given]
    async with StatewardCheckpointStorage("all", **place) as storage:
        for given in (*IDS, *BLANK):
            await storage.save(WorkflowCheckpoint("w", "h", checkpoint_id=given, state={"k": given}))
        assert await storage.list_checkpoint_ids(workflow_name="w") == [*IDS, *BLANK]
        for given in (*IDS, *BLANK):
            assert (await storage.load(given)).state == {"k": given}
            assert await storage.delete(given)
        assert await storage.list_checkpoint_ids(workflow_name="w") == []


async def test_histories_of_the_agent_framework(place: Any) -> None:
    """Any session id; none is the session `default`."""
    async with StatewardHistoryProvider(**place) as provider:
        for given in (*IDS, *BLANK):
            await provider.save_messages(given, [Message(role="user", contents=[given])])
        for given in (*IDS, *BLANK):
            assert [each.text for each in await provider.get_messages(given)] == [given]


async def test_conversations_of_pydantic_ai(place: Any) -> None:
    """Any id and scope; lists find them by their scope."""
    async with StatewardConversationStore(**place) as store:
        for given in (*IDS, *BLANK):
            made = ModelRequest(parts=[UserPromptPart(content=given)])
            await store.save(Conversation(conversation_id=given, messages=[made]), scope=given)
    async with StatewardConversationStore(**place) as store:
        for given in (*IDS, *BLANK):
            loaded = await store.load(given, scope=given)
            assert loaded is not None
            assert loaded.messages[0].parts[0].content == given  # type: ignore[union-attr]
            assert [each.conversation_id for each in await store.list_conversations(scope=given)] == [given]
        assert {each.conversation_id for each in await store.list_conversations()} == {*IDS, *BLANK}
        await store.delete("a\nb")
        assert await store.load("a\nb") is None
