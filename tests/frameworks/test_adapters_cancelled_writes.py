"""The danger: a write that was cancelled is stored after the caller was told so, and has read what is there.

Each write of each adapter is cancelled while each of its calls is under way. When CancelledError comes, what is stored
must not change any more.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from stateward import Client
from stateward._operations.steps import Call
from stateward._settling import settle
from stateward.testing import Daemon, run_daemon

pytest.importorskip("agents", reason="the extra openai-agents is not installed")
pytest.importorskip("agent_framework", reason="the extra agent-framework is not installed")
pytest.importorskip("google.adk", reason="the extra adk is not installed")
pytest.importorskip("langgraph.checkpoint.base", reason="the extra langgraph is not installed")
pytest.importorskip("pydantic_ai", reason="the extra pydantic-ai is not installed")
pytest.importorskip("strands", reason="the extra strands is not installed")
from agent_framework import Message, WorkflowCheckpoint
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from pydantic_ai import Conversation
from pydantic_ai.messages import ModelRequest, UserPromptPart

from stateward.adk import StatewardSessionService
from stateward.agent_framework import StatewardCheckpointStorage, StatewardHistoryProvider
from stateward.langgraph import StatewardSaver, StatewardStore
from stateward.openai_agents import StatewardSession
from stateward.pydantic_ai import StatewardConversationStore
from stateward.strands import StatewardStorage

numbers = itertools.count()
PLACE: Any = {"app_name": "a", "user_id": "u"}
Make = Callable[[str, str], Any]


@dataclass
class Case:
    """An adapter that has something, and a write of it."""

    adapter: Any
    write: Callable[[], Awaitable[Any]]

    @property
    def session(self) -> Any:
        return (getattr(self.adapter, "_client", None) or self.adapter._aio)._session


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("cancel") / "data") as daemon:
        yield daemon


async def openai(target: str, namespace: str, what: str) -> Case:
    made = StatewardSession("s", target=target, namespace=namespace)
    await made.add_items([{"role": "user", "content": "begin"}])
    writes: dict[str, Any] = {
        "add": lambda: made.add_items([{"role": "user", "content": "x"}]),
        "pop": made.pop_item,
        "clear": made.clear_session,
    }
    return Case(made, writes[what])


async def adk(target: str, namespace: str, what: str) -> Case:
    made = StatewardSessionService(target=target, namespace=namespace)
    session = await made.create_session(**PLACE, session_id="s")
    event = Event(author="x", invocation_id="i", actions=EventActions(state_delta={"k": 1, "app:k": 1, "user:k": 2}))
    writes: dict[str, Any] = {
        "append": lambda: made.append_event(session, event),
        "create": lambda: made.create_session(**PLACE, session_id="new", state={"app:x": 1}),
        "delete": lambda: made.delete_session(**PLACE, session_id="s"),
    }
    return Case(made, writes[what])


async def framework(target: str, namespace: str, what: str) -> Case:
    made = StatewardCheckpointStorage("t", target=target, namespace=namespace)
    checkpoints = [WorkflowCheckpoint("w", "hash", checkpoint_id=str(number)) for number in range(3)]
    for each in checkpoints[: 1 if what == "delete the last" else 2]:
        await made.save(each)
    writes: dict[str, Any] = {
        "save": lambda: made.save(checkpoints[2]),
        "delete": lambda: made.delete("1"),
        "delete the last": lambda: made.delete("0"),
    }
    return Case(made, writes[what])


async def history(target: str, namespace: str, what: str) -> Case:
    made = StatewardHistoryProvider(target=target, namespace=namespace)
    await made.save_messages("s", [Message(role="user", contents=["begin"])])
    writes: dict[str, Any] = {
        "save": lambda: made.save_messages("s", [Message(role="user", contents=["x"])]),
        "clear": lambda: made.clear("s"),
    }
    return Case(made, writes[what])


async def pydantic(target: str, namespace: str, what: str) -> Case:
    made = StatewardConversationStore(target=target, namespace=namespace)
    held = Conversation(conversation_id="c", messages=[ModelRequest(parts=[UserPromptPart(content="begin")])])
    await made.save(held)
    held.messages.append(ModelRequest(parts=[UserPromptPart(content="x")]))
    writes: dict[str, Any] = {
        "save": lambda: made.save(held),
        "fork": lambda: made.fork("c", at=1, new_conversation_id="d"),
        "delete": lambda: made.delete("c"),
    }
    return Case(made, writes[what])


async def strands(target: str, namespace: str, what: str) -> Case:
    made = StatewardStorage(target=target, namespace=namespace)
    await made.write("k", b"begin")
    writes: dict[str, Any] = {"write": lambda: made.write("k", b"x"), "delete": lambda: made.delete("k")}
    return Case(made, writes[what])


async def saver(target: str, namespace: str, what: str) -> Case:
    made = StatewardSaver(target, namespace=namespace)
    versions: Any = {"a": str(uuid6())}
    checkpoint: Any = {**empty_checkpoint(), "id": str(uuid6()), "channel_versions": versions}
    checkpoint["channel_values"] = {"a": 1}
    following: Any = {**checkpoint, "id": str(uuid6()), "channel_values": {"a": 2}}
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    metadata: Any = {"run_id": "r"}
    first = await made.aput(config, checkpoint, metadata, versions)
    await made.aput_writes(first, [("a", 0)], "begin")
    writes: dict[str, Any] = {
        "put": lambda: made.aput(first, following, {}, versions),
        "put writes": lambda: made.aput_writes(first, [("a", 1)], "task"),
        "delete": lambda: made.adelete_thread("t"),
        "copy": lambda: made.acopy_thread("t", "copy"),
        "prune": lambda: made.aprune(["t"], strategy="delete"),
        "delete runs": lambda: made.adelete_for_runs(["r"]),
    }
    return Case(made, writes[what])


async def store(target: str, namespace: str, what: str) -> Case:
    made = StatewardStore(target, namespace=namespace)
    await made.aput(("a",), "k", {"n": 0})
    writes: dict[str, Any] = {
        "put": lambda: made.aput(("a",), "k", {"n": 1}),
        "delete": lambda: made.adelete(("a",), "k"),
    }
    return Case(made, writes[what])


CASES = [
    *((openai, what) for what in ("add", "pop", "clear")),
    *((adk, what) for what in ("append", "create", "delete")),
    *((framework, what) for what in ("save", "delete", "delete the last")),
    *((history, what) for what in ("save", "clear")),
    *((pydantic, what) for what in ("save", "fork", "delete")),
    *((strands, what) for what in ("write", "delete")),
    *((saver, what) for what in ("put", "put writes", "delete", "copy", "prune", "delete runs")),
    *((store, what) for what in ("put", "delete")),
]


def contents(client: Client) -> Any:
    """Everything that is stored, as far as a write of an adapter changes it."""
    found = []
    for info in sorted(client.threads(), key=lambda info: info.name):
        thread = client.thread(info.name)
        effects = sorted((each.key, each.value.data if each.value else None) for each in thread.effects.list())
        records = [(each.key, each.revision) for each in client.records(info.name).list()]
        versions = [made.version for made in thread.checkpoints.list()]
        found.append((info.name, info.uid, versions, effects, records))
    return found


async def cancel_at(case: Case, nth: int, client: Client) -> bool:
    """Cancels the write while its n-th call is on its way. Returns whether there was such a call."""
    session, gate, calls, under_way = case.session, asyncio.Event(), list[str](), list[asyncio.Task[Any]]()
    perform, task = session.perform, None

    async def late(step: Any) -> Any:
        await gate.wait()
        return await perform(step)

    async def perform_late(step: Any) -> Any:
        if not isinstance(step, Call):
            return await perform(step)
        calls.append(step.method)
        if len(calls) != nth:
            return await perform(step)
        assert task is not None
        task.cancel()
        under_way.append(asyncio.ensure_future(late(step)))  # the daemon gets it, whatever becomes of the caller
        return await asyncio.shield(under_way[0])

    session.perform = perform_late
    try:
        task = asyncio.ensure_future(case.write())
        await asyncio.wait([task], timeout=0.05 if nth else None)  # an unsettled write ends now
        is_early = task.done()
        seen = await asyncio.to_thread(contents, client) if is_early else None
        gate.set()
        with suppress(asyncio.CancelledError):
            await task
        if seen is None:
            seen = await asyncio.to_thread(contents, client)
        await asyncio.gather(*under_way, return_exceptions=True)
        assert seen == await asyncio.to_thread(contents, client), f"call {nth}, {calls}"
        assert task.cancelled() == bool(under_way)
        return bool(under_way)
    finally:
        session.perform = perform


async def close(adapter: Any) -> None:
    await (adapter.aclose() if hasattr(adapter, "aclose") else adapter.close())


@pytest.mark.parametrize(("make", "what"), CASES, ids=lambda each: getattr(each, "__name__", each))
async def test_nothing_changes_after_a_cancelled_write(daemon: Daemon, make: Any, what: str) -> None:
    """At each call of it: what is stored when CancelledError comes stays."""
    for nth in range(1, 30):
        namespace = f"cancel-{next(numbers)}"
        case = await make(daemon.target, namespace, what)
        with daemon.client(namespace=namespace) as client:
            is_met = await cancel_at(case, nth, client)
        await close(case.adapter)
        if not is_met:
            break
    assert 1 < nth < 29


async def test_a_coroutine_that_is_closed_ends_quietly() -> None:
    """While its write is under way: the write goes on, and nothing looks for a result that is not there."""
    may_end = asyncio.Event()
    writing = settle(may_end.wait())
    writing.send(None)
    writing.close()
    (task,) = asyncio.all_tasks() - {asyncio.current_task()}
    may_end.set()
    assert await task
