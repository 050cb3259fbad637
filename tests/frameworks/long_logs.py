"""A session of each framework whose messages take more than memory should hold: it grows, its daemon is killed, another
process goes on, it is forked, and another machine takes it over.

    python -m tests.frameworks.long_logs --mib 256 [--adapter NAME …]

prints what steps took at the beginning and at the end. The tests live it with a few megabytes
(test_adapters_long_logs.py).
"""

from __future__ import annotations

import argparse
import asyncio
import operator
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Annotated, Protocol, TypedDict

from stateward import AsyncClient
from stateward.errors import ThreadNotFound
from stateward.testing import Daemon, run_daemon

PATIENCE_S = 120
LEASE_S = 2  # the other machine waits for it


class Session(Protocol):
    """What a framework does with a session. `load` comes first."""

    async def load(self, name: str) -> list[str]:
        """Reads all texts."""
        ...

    async def step(self, name: str, texts: list[str]) -> None:
        """Adds texts."""
        ...

    async def fork(self, source: str, new: str) -> None:
        """Copies a session."""
        ...


class Forked:
    """A session that is one thread, of the session's name."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def fork(self, source: str, new: str) -> None:
        """As `stateward fork` does."""
        await self.client.thread(source).fork(new)


class OpenAI(Forked):
    """Items of the OpenAI Agents SDK."""

    async def load(self, name: str) -> list[str]:
        from stateward.openai_agents import StatewardSession

        self.session = StatewardSession(name, client=self.client)
        return [item["content"] for item in await self.session.get_items()]  # type: ignore[typeddict-item, misc]

    async def step(self, name: str, texts: list[str]) -> None:
        await self.session.add_items([{"role": "user", "content": text} for text in texts])
        assert len(await self.session.get_items(limit=3)) > 0


class AdkEvents:
    """Events of Google ADK."""

    def __init__(self, client: AsyncClient) -> None:
        from stateward.adk import StatewardSessionService

        self.client, self.service = client, StatewardSessionService(client=client)

    async def load(self, name: str) -> list[str]:
        place = {"app_name": "app", "user_id": "ana", "session_id": name}
        self.session = await self.service.get_session(**place) or await self.service.create_session(**place)
        return [event.content.parts[0].text for event in self.session.events]  # type: ignore[union-attr, index, misc]

    async def step(self, name: str, texts: list[str]) -> None:
        from google.adk.events.event import Event
        from google.genai import types

        for text in texts:
            await self.service.append_event(self.session, Event(author="user", content=types.UserContent(text)))

    async def fork(self, source: str, new: str) -> None:
        await self.client.thread(f"adk/sessions/app/ana/{source}").fork(f"adk/sessions/app/ana/{new}")


class Conversations:
    """Messages of Pydantic AI. A fork is the store's own."""

    def __init__(self, client: AsyncClient) -> None:
        from stateward.pydantic_ai import StatewardConversationStore

        self.store = StatewardConversationStore(client=client)

    async def load(self, name: str) -> list[str]:
        from pydantic_ai import Conversation

        self.held = await self.store.load(name) or Conversation(conversation_id=name)
        return [message.parts[0].content for message in self.held.messages]  # type: ignore[union-attr, misc]

    async def step(self, name: str, texts: list[str]) -> None:
        from pydantic_ai.messages import ModelRequest, UserPromptPart

        self.held.messages.extend(ModelRequest(parts=[UserPromptPart(text)]) for text in texts)
        await self.store.save(self.held)

    async def fork(self, source: str, new: str) -> None:
        await self.store.fork(source, new_conversation_id=new)


class Histories(Forked):
    """Messages of Microsoft's Agent Framework."""

    async def load(self, name: str) -> list[str]:
        from stateward.agent_framework import StatewardHistoryProvider

        self.provider = StatewardHistoryProvider(client=self.client)
        return [message.text for message in await self.provider.get_messages(name)]

    async def step(self, name: str, texts: list[str]) -> None:
        from agent_framework import Message

        await self.provider.save_messages(name, [Message("user", [text]) for text in texts])


class Workflows(Forked):
    """Checkpoints of workflows of Microsoft's Agent Framework, which have the whole state."""

    async def load(self, name: str) -> list[str]:
        from stateward.agent_framework import StatewardCheckpointStorage

        self.storage = StatewardCheckpointStorage(name, client=self.client)
        self.last = await self.storage.get_latest(workflow_name="trip")
        self.texts: list[str] = list(self.last.state["texts"]) if self.last else []
        return list(self.texts)

    async def step(self, name: str, texts: list[str]) -> None:
        from agent_framework import WorkflowCheckpoint

        self.texts += texts
        before = self.last.checkpoint_id if self.last else None
        self.last = WorkflowCheckpoint(
            workflow_name="trip", graph_signature_hash="g", previous_checkpoint_id=before, state={"texts": self.texts}
        )
        await self.storage.save(self.last)


class Snapshots:
    """Snapshots of Strands, which have all messages."""

    def __init__(self, client: AsyncClient) -> None:
        from stateward.strands import StatewardStorage

        self.storage = StatewardStorage(client=client)

    async def load(self, name: str) -> list[str]:
        import json

        held = await self.storage.read(_key(name))
        self.texts: list[str] = json.loads(held)["data"]["messages"] if held is not None else []
        return list(self.texts)

    async def step(self, name: str, texts: list[str]) -> None:
        import json

        self.texts += texts
        whole = {"created_at": f"{time.time():020.6f}", "data": {"messages": self.texts}, "app_data": {}}
        await self.storage.write(_key(name), json.dumps(whole).encode())

    async def fork(self, source: str, new: str) -> None:
        await self.storage.write(_key(new), await self.storage.read(_key(source)) or b"")


def _key(name: str) -> str:
    return f"session/{name}/scopes/agent/a/snapshots/snapshot_latest.json"


class Notes(TypedDict):
    """The state of a graph."""

    texts: Annotated[list[str], operator.add]


class Graphs:
    """A channel of LangGraph, which is given whole with each checkpoint."""

    def __init__(self, client: AsyncClient) -> None:
        from langgraph.graph import END, START, StateGraph

        from stateward.langgraph import StatewardSaver

        self.saver, builder = StatewardSaver(target=client), StateGraph(Notes)
        builder.add_node("answer", lambda state: {"texts": []})
        builder.add_edge(START, "answer")
        builder.add_edge("answer", END)
        self.graph = builder.compile(checkpointer=self.saver)

    async def load(self, name: str) -> list[str]:
        found = await self.graph.aget_state({"configurable": {"thread_id": name}})
        return list(found.values.get("texts", []))

    async def step(self, name: str, texts: list[str]) -> None:
        await self.graph.ainvoke({"texts": texts}, {"configurable": {"thread_id": name}})

    async def fork(self, source: str, new: str) -> None:
        await self.saver.athread(source).fork(new)


ADAPTERS: dict[str, tuple[str, Callable[[AsyncClient], Session]]] = {
    "openai": ("agents", OpenAI),
    "adk": ("google.adk", AdkEvents),
    "pydantic-ai": ("pydantic_ai", Conversations),
    "agent-framework-history": ("agent_framework", Histories),
    "agent-framework-checkpoints": ("agent_framework", Workflows),
    "strands": ("strands", Snapshots),
    "langgraph": ("langgraph", Graphs),
}
"""By name: the package that it needs, and the session."""


class Life:
    """A session, what must be in it, and what its steps took."""

    def __init__(self, adapter: str, step_bytes: int) -> None:
        self.open_one = ADAPTERS[adapter][1]
        self.step_bytes = step_bytes
        self.texts = list[str]()
        self.steps = list[float]()

    def session(self, daemon: Daemon) -> AbstractAsyncContextManager[Session]:
        """A new process with this session, as far as Stateward can tell."""

        @asynccontextmanager
        async def opened() -> AsyncIterator[Session]:
            async with AsyncClient(daemon.target) as client:
                yield self.open_one(client)

        return opened()

    async def grow(self, daemon: Daemon, name: str, upto_bytes: int) -> None:
        """Reads the session, and adds texts until it has so many bytes."""
        async with self.session(daemon) as session:
            assert await session.load(name) == self.texts
            size_bytes = sum(map(len, self.texts))
            while size_bytes < upto_bytes:
                added = [random.Random(len(self.texts) + at).randbytes(self.step_bytes // 8).hex() for at in range(4)]
                began = time.perf_counter()
                await session.step(name, added)
                self.steps.append(time.perf_counter() - began)
                self.texts += added
                size_bytes += sum(map(len, added))


async def live(adapter: str, root: Path, size_bytes: int, step_bytes: int) -> Life:
    """The whole life of a session of so many bytes."""
    life = Life(adapter, step_bytes)
    flags = {"archive": (root / "bucket").as_uri(), "accept_local_key": True, "archive_lease": LEASE_S}
    with run_daemon(root / "one", **flags) as one:
        await life.grow(one, "long", size_bytes // 2)
        one.kill()
        one.start()
        await life.grow(one, "long", size_bytes)
        async with life.session(one) as session:
            await session.load("long")
            await session.fork("long", "copy")
            assert await session.load("copy") == life.texts
        await _archived(one)
        _wait_for_segments(root / "one" / "blobs")
        one.kill()
        with run_daemon(root / "two", key_file=one.key_file, **flags) as two:
            before = list(life.texts)
            await life.grow(two, "long", size_bytes + step_bytes)
            life.texts = before
            await life.grow(two, "copy", size_bytes + step_bytes)
    return life


async def _archived(daemon: Daemon) -> None:
    """Waits until the bucket has everything."""
    async with AsyncClient(daemon.target) as client:
        async for info in client.threads():
            thread = client.thread(info.name)
            try:
                head = await thread.checkpoints.get()
            except ThreadNotFound:
                continue
            await thread.archive.wait(head, timeout=PATIENCE_S)


def _wait_for_segments(blobs: Path) -> None:
    """Waits until older messages are in a segment, which is made in the background."""
    end = time.monotonic() + PATIENCE_S
    while not any(blobs.rglob("*")) and time.monotonic() < end:
        time.sleep(0.05)


def main() -> None:
    """Lives the sessions of all adapters, or of the chosen ones."""
    parser = argparse.ArgumentParser(description="Long sessions of each framework.")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--adapter", action="append", choices=ADAPTERS)
    options = parser.parse_args()
    for adapter in options.adapter or ADAPTERS:
        with tempfile.TemporaryDirectory() as place:
            began = time.monotonic()
            life = asyncio.run(live(adapter, Path(place), options.mib << 20, 1 << 20))
            few = max(len(life.steps) // 10, 1)
            first, last = (statistics.median(each) * 1e3 for each in (life.steps[1 : few + 1], life.steps[-few:]))
            disk = sum(each.stat().st_blocks * 512 for each in Path(place, "one").rglob("*") if each.is_file())
            print(
                f"{adapter}: {options.mib} MiB in {time.monotonic() - began:.0f} s, a step of 1 MiB {first:.0f} ms at "
                f"first, {last:.0f} ms at last; {disk >> 20} MiB on disk with its copy", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
