"""The danger: an application cannot say how long the threads of its adapter are kept, so they stay for ever."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from stateward import Retention
from stateward.models import ThreadInfo
from stateward.testing import Daemon, run_daemon

TTL, RETENTION = timedelta(days=30), Retention(keep_last=5, keep_for=60)
numbers = itertools.count()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("kept") / "data") as daemon:
        yield daemon


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def saver(stack: AsyncExitStack, **options: Any) -> None:
    """LangGraph: a checkpoint makes the thread."""
    pytest.importorskip("langgraph.checkpoint.base", reason="the extra langgraph is not installed")
    from langgraph.checkpoint.base import empty_checkpoint

    from stateward.langgraph import StatewardSaver

    opened = await stack.enter_async_context(StatewardSaver(**options))
    await opened.aput({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, empty_checkpoint(), {}, {})


async def saver_write(stack: AsyncExitStack, **options: Any) -> None:
    """LangGraph: a pending write makes the thread."""
    pytest.importorskip("langgraph.checkpoint.base", reason="the extra langgraph is not installed")
    from stateward.langgraph import StatewardSaver

    opened = await stack.enter_async_context(StatewardSaver(**options))
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "c"}}
    await opened.aput_writes(config, [("a", 1)], "task")


async def session(stack: AsyncExitStack, **options: Any) -> None:
    """OpenAI Agents SDK."""
    pytest.importorskip("agents", reason="the extra openai-agents is not installed")
    from stateward.openai_agents import StatewardSession

    opened = await stack.enter_async_context(StatewardSession("t", **options))
    await opened.add_items([{"role": "user", "content": "Where to?"}])


async def conversation(stack: AsyncExitStack, **options: Any) -> None:
    """Pydantic AI."""
    pytest.importorskip("pydantic_ai", reason="the extra pydantic-ai is not installed")
    from pydantic_ai import Agent, Conversation
    from pydantic_ai.models.test import TestModel

    from stateward.pydantic_ai import StatewardConversationStore

    opened = await stack.enter_async_context(StatewardConversationStore(**options))
    result = await Agent(TestModel()).run("Where to?", conversation=Conversation(conversation_id="t"))
    await opened.save(result, scope="ana")


async def events(stack: AsyncExitStack, **options: Any) -> None:
    """Google ADK."""
    pytest.importorskip("google.adk", reason="the extra adk is not installed")
    from stateward.adk import StatewardSessionService

    opened = await stack.enter_async_context(StatewardSessionService(**options))
    await opened.create_session(app_name="a", user_id="u", session_id="t", state={"x": 1, "user:y": 2})


async def workflow(stack: AsyncExitStack, **options: Any) -> None:
    """Microsoft Agent Framework: checkpoints."""
    framework = pytest.importorskip("agent_framework", reason="the extra agent-framework is not installed")
    from stateward.agent_framework import StatewardCheckpointStorage

    opened = await stack.enter_async_context(StatewardCheckpointStorage("t", **options))
    await opened.save(framework.WorkflowCheckpoint(workflow_name="w", graph_signature_hash="h", state={"a": 1}))


async def history(stack: AsyncExitStack, **options: Any) -> None:
    """Microsoft Agent Framework: histories."""
    framework = pytest.importorskip("agent_framework", reason="the extra agent-framework is not installed")
    from stateward.agent_framework import StatewardHistoryProvider

    opened = await stack.enter_async_context(StatewardHistoryProvider(**options))
    await opened.save_messages("t", [framework.Message("user", ["Where to?"])])


async def keys(stack: AsyncExitStack, **options: Any) -> None:
    """Strands."""
    pytest.importorskip("strands", reason="the extra strands is not installed")
    from stateward.strands import StatewardStorage

    opened = await stack.enter_async_context(StatewardStorage(**options))
    await opened.write("t", b"1")


ADAPTERS = [saver, saver_write, session, conversation, events, workflow, history, keys]


def threads(daemon: Daemon, namespace: str) -> list[ThreadInfo]:
    with daemon.client(namespace=namespace) as client:
        return list(client.threads())


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.__name__)
async def test_ttl_and_retention_are_those_of_the_thread(
    daemon: Daemon, stack: AsyncExitStack, adapter: Callable[..., Any]
) -> None:
    """Every adapter takes both, by the same names, for the threads that it makes; the state of a user has none."""
    namespace = f"n{next(numbers)}"
    await adapter(stack, target=daemon.target, namespace=namespace, ttl=TTL, retention=RETENTION)
    for made in threads(daemon, namespace):
        expected = (None, None) if made.name.startswith("adk/users/") else (TTL, RETENTION)
        assert (made.options.ttl, made.options.retention) == expected, made.name


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.__name__)
async def test_without_them_threads_stay(daemon: Daemon, stack: AsyncExitStack, adapter: Callable[..., Any]) -> None:
    """Nothing is removed that nobody asked to remove, except for the earlier values of a key of Strands."""
    namespace = f"n{next(numbers)}"
    await adapter(stack, target=daemon.target, namespace=namespace)
    for made in threads(daemon, namespace):
        assert made.options.ttl is None
        assert made.options.retention == (Retention(keep_last=1) if adapter is keys else None)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.__name__)
async def test_a_wrong_ttl_is_named_at_once(
    daemon: Daemon, stack: AsyncExitStack, adapter: Callable[..., Any]
) -> None:
    """Before anything is written."""
    namespace = f"n{next(numbers)}"
    with pytest.raises(TypeError, match="ttl"):
        await adapter(stack, target=daemon.target, namespace=namespace, ttl="30d")
    assert threads(daemon, namespace) == []


async def test_retention_refuses_delta_channels(daemon: Daemon, stack: AsyncExitStack) -> None:
    """Their values are made from old checkpoints, which a rule would remove."""
    pytest.importorskip("langgraph.checkpoint.base", reason="the extra langgraph is not installed")
    from langgraph.checkpoint.base import empty_checkpoint

    from stateward.langgraph import StatewardSaver

    opened = await stack.enter_async_context(StatewardSaver(daemon.target, namespace="delta", retention=RETENTION))
    metadata: Any = {"counters_since_delta_snapshot": {"a": 1}}
    with pytest.raises(ValueError, match="delta channels"):
        await opened.aput({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, empty_checkpoint(), metadata, {})
    assert threads(daemon, "delta") == []
