"""The danger: what a sidecar set aside, because another one took the thread, looks like a session of its own, which no
call of the adapter can read; or it keeps a run from being deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.daemon.process import Pair, run_pair

from stateward.errors import Fenced

pytest.importorskip("google.adk", reason="the extra adk is not installed")
pytest.importorskip("langgraph.checkpoint.base", reason="the extra langgraph is not installed")
pytest.importorskip("pydantic_ai", reason="the extra pydantic-ai is not installed")
pytest.importorskip("strands", reason="the extra strands is not installed")
from google.adk.events.event import Event
from langgraph.checkpoint.base import empty_checkpoint
from pydantic_ai import Conversation
from pydantic_ai.messages import ModelRequest, UserPromptPart

from stateward.adk import StatewardSessionService
from stateward.langgraph import StatewardSaver
from stateward.pydantic_ai import StatewardConversationStore
from stateward.strands import StatewardStorage


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with run_pair(tmp_path_factory.mktemp("orphans")) as pair:
        yield pair


async def set_aside(pair: Pair, namespace: str, write_late: Callable[[], Any]) -> str:
    """Takes the only thread of the namespace on another machine, writes late, and returns the orphan's name."""
    with pair.first.client(namespace=namespace) as first, pair.second.client(namespace=namespace) as second:
        (name,) = [info.name for info in first.threads()]
        thread = first.thread(name)
        thread.archive.wait(thread.checkpoints.get())
        second.thread(name).archive.attach(take_over=True)
        second.thread(name).set_slot("other", 1, durability="archived")
        await write_late()
        with pytest.raises(Fenced):
            thread.archive.wait(thread.checkpoints.get())
        thread.hydrate()  # fetches the thread itself again
        (orphan,) = [info.name for info in first.threads() if info.orphan is not None]
    return orphan


def place(thread: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


async def put(saver: StatewardSaver, config: Any, name: str, run: str) -> Any:
    made: Any = {**empty_checkpoint(), "id": name}
    return await saver.aput(config, made, {"source": "loop", "step": 1, "run_id": run}, {})


async def test_langgraph(pair: Pair) -> None:
    """Lists of all threads leave it out, and a run that only it has keeps no other run from being deleted."""
    async with StatewardSaver(pair.first.target, namespace="langgraph") as saver:
        first = await put(saver, place("t"), "c1", "early")
        orphan = await set_aside(pair, "langgraph", lambda: put(saver, first, "c2", "late"))
        listed = [found.config["configurable"]["checkpoint_id"] async for found in saver.alist(None)]
        also = await asyncio.to_thread(lambda: [found.checkpoint["id"] for found in saver.list(None)])
        assert listed == also == ["c1"]
        await put(saver, place("u"), "c3", "late")
        await saver.adelete_for_runs(["late"])
        assert [found.checkpoint["id"] async for found in saver.alist(None)] == ["c1"]
    with pair.first.client(namespace="langgraph") as client:
        assert client.thread(orphan).checkpoints.get().checkpoint_id == "c2"


async def test_adk(pair: Pair) -> None:
    """A list has the sessions that can be read."""
    async with StatewardSessionService(target=pair.first.target, namespace="adk") as service:
        session = await service.create_session(app_name="app", user_id="u", session_id="s")
        await set_aside(pair, "adk", lambda: service.append_event(session, Event(author="late")))
        found = await service.list_sessions(app_name="app", user_id="u")
        assert [each.id for each in found.sessions] == ["s"]


async def test_strands(pair: Pair) -> None:
    """A list has the keys that can be read."""
    async with StatewardStorage(target=pair.first.target, namespace="strands") as storage:
        await storage.write("a/b", b"early")
        await set_aside(pair, "strands", lambda: storage.write("a/b", b"late"))
        assert await storage.list() == await storage.list("a/") == ["a/b"]
        assert await storage.read("a/b") == b"early"


async def test_pydantic_ai(pair: Pair) -> None:
    """A list has each conversation once, as it is."""
    async with StatewardConversationStore(target=pair.first.target, namespace="pydantic") as store:
        held = Conversation(conversation_id="c", messages=[ModelRequest(parts=[UserPromptPart(content="early")])])
        await store.save(held)
        record = await store.read_record("c")
        held.messages.append(ModelRequest(parts=[UserPromptPart(content="late")]))
        await set_aside(pair, "pydantic", lambda: store.save(held))
        assert await store.read_records() == [record]
