"""The danger: an agent that waits for a person, or is over, looks as if it worked, because its adapter does not
tell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from stateward import Client
from stateward.models import Status, ThreadInfo
from stateward.testing import Daemon, run_daemon


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("told") / "data") as daemon:
        yield daemon


@pytest.fixture
def client(daemon: Daemon, request: pytest.FixtureRequest) -> Iterator[Client]:
    with daemon.client(namespace=request.node.name) as opened:
        yield opened


def asked(info: ThreadInfo) -> dict[str, str]:
    """The parts of the open question, by name."""
    assert (info.status, info.question is not None, bool(info.wait_id)) == (Status.WAITING, True, True)
    assert info.question is not None
    return {part.name: part.prompt for part in info.question.parts}


def test_openai_agents(daemon: Daemon, client: Client) -> None:
    """A call that needs an approval waits; a run that ends is completed, and runs again with the next message."""
    agents = pytest.importorskip("agents", reason="the extra openai-agents is not installed")
    from agents.testing import ScriptedModel, assistant_message, function_call

    from stateward.openai_agents import StatewardSession

    seen = []

    def look(city: str) -> str:
        seen.append(client.thread("chat").info().status)
        return city

    def pay(amount: int) -> str:
        return f"paid {amount}"

    async def talk() -> None:
        model = ScriptedModel([
            [function_call("look", '{"city": "Rome"}', call_id="c1")], [assistant_message("done")],
            [function_call("pay", '{"amount": 3}', call_id="c2")], [assistant_message("paid")],
        ])  # fmt: skip
        tools = [agents.function_tool(look), agents.function_tool(pay, needs_approval=True)]
        agent, settings = agents.Agent(name="a", model=model, tools=tools), agents.RunConfig(tracing_disabled=True)
        session = StatewardSession("chat", target=daemon.target, namespace=client.namespace)
        await agents.Runner.run(agent, "look", session=session, run_config=settings)
        assert client.thread("chat").info().status == Status.COMPLETED
        result = await agents.Runner.run(agent, "pay", session=session, run_config=settings)
        assert asked(client.thread("chat").info()) == {"c2": 'pay({"amount": 3})'}
        state = result.to_state()
        state.approve(result.interruptions[0])
        await agents.Runner.run(agent, state, session=session, run_config=settings)
        await session.close()

    asyncio.run(talk())
    assert (seen, client.thread("chat").info().status) == ([Status.RUNNING], Status.COMPLETED)


def test_pydantic_ai(daemon: Daemon, client: Client) -> None:
    """Deferred calls wait, and a conversation whose last run has ended is completed."""
    ai = pytest.importorskip("pydantic_ai", reason="the extra pydantic-ai is not installed")
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    from stateward.pydantic_ai import StatewardConversationStore

    replies = [
        ModelResponse([ToolCallPart("pay", {"amount": 3}, tool_call_id="c1")]), ModelResponse([TextPart("paid")])
    ]  # fmt: skip
    agent = ai.Agent(FunctionModel(lambda *_: replies.pop(0)), output_type=[str, ai.DeferredToolRequests])

    @agent.tool_plain(requires_approval=True)
    def pay(amount: int) -> str:
        return f"paid {amount}"

    async def talk() -> None:
        async with StatewardConversationStore(target=daemon.target, namespace=client.namespace) as store:
            conversation = ai.Conversation(conversation_id="chat")
            await store.save(await agent.run("pay", conversation=conversation))
            assert asked(client.thread("chat").info()) == {"c1": 'pay({"amount": 3})'}
            conversation = await store.load("chat")
            results = ai.DeferredToolResults(approvals={"c1": True})
            await store.save(await agent.run(conversation=conversation, deferred_tool_results=results))

    asyncio.run(talk())
    assert client.thread("chat").info().status == Status.COMPLETED


@pytest.mark.filterwarnings("ignore:SequentialAgent is deprecated")
def test_adk(daemon: Daemon, client: Client) -> None:
    """Confirmations wait until the user answers; an error has failed; a lone agent's final response is the end."""
    pytest.importorskip("google.adk.runners", reason="the extra adk is not installed")
    from google.adk.agents import LlmAgent, SequentialAgent
    from google.adk.models import BaseLlm, LlmResponse
    from google.adk.runners import Runner
    from google.adk.tools import FunctionTool
    from google.genai import types

    from stateward.adk import StatewardSessionService

    class Scripted(BaseLlm):
        replies: list[Any]

        async def generate_content_async(self, *_: Any, **__: Any) -> AsyncIterator[LlmResponse]:
            reply = self.replies.pop(0)
            yield reply if isinstance(reply, LlmResponse) else LlmResponse(content=types.ModelContent(reply))

    def pay(amount: int) -> str:
        """Pays."""
        return f"paid {amount}"

    def one(name: str, *replies: Any, **more: Any) -> LlmAgent:
        return LlmAgent(name=name, model=Scripted(model="scripted", replies=list(replies)), **more)

    async def talk(agent: Any, session: str) -> ThreadInfo:
        async with StatewardSessionService(target=daemon.target, namespace=client.namespace) as service:
            runner = Runner(app_name="a", agent=agent, session_service=service, auto_create_session=True)
            message = types.UserContent("go")
            async for _ in runner.run_async(user_id="u", session_id=session, new_message=message):
                pass
        return client.thread(f"adk/sessions/a/u/{session}").info()

    call = types.Part(function_call=types.FunctionCall(name="pay", args={"amount": 3}))
    tool = FunctionTool(pay, require_confirmation=True)
    (prompt,) = asked(asyncio.run(talk(one("payer", [call], tools=[tool]), "asks"))).values()
    assert prompt.startswith('pay({"amount": 3}): ')
    blocked = asyncio.run(talk(one("a", LlmResponse(error_code="SAFETY", error_message="blocked")), "fails"))
    assert (blocked.status, blocked.status_detail) == (Status.FAILED, "SAFETY: blocked")
    assert asyncio.run(talk(one("a", "hi"), "ends")).status == Status.COMPLETED
    inner = SequentialAgent(name="both", sub_agents=[one("b", "B"), one("c", "C")])
    assert asyncio.run(talk(inner, "unsure")).status == Status.RUNNING


def test_agent_framework(daemon: Daemon, client: Client) -> None:
    """A workflow that asked and has nothing to do waits; one without messages on their way is completed."""
    framework = pytest.importorskip("agent_framework", reason="the extra agent-framework is not installed")

    from stateward.agent_framework import StatewardCheckpointStorage, StatewardHistoryProvider

    def checkpoint(messages: dict[str, Any], requests: dict[str, Any]) -> Any:
        return framework.WorkflowCheckpoint(
            workflow_name="w", graph_signature_hash="h", messages=messages, pending_request_info_events=requests
        )

    async def work() -> None:
        async with StatewardCheckpointStorage("order", target=daemon.target, namespace=client.namespace) as storage:
            message = framework.WorkflowMessage(data="x", source_id="a")
            request = framework.WorkflowEvent.request_info("r1", "a", "Book it?", str)
            for messages, requests, status in (
                ({"a": [message]}, {}, Status.RUNNING), ({"a": [message]}, {"r1": request}, Status.RUNNING),
                ({}, {"r1": request}, Status.WAITING), ({}, {}, Status.COMPLETED),
            ):  # fmt: skip
                await storage.save(checkpoint(messages, requests))
                assert client.thread("order").info().status == status
                if status == Status.WAITING:
                    assert asked(client.thread("order").info()) == {"r1": "Book it?"}
        provider = StatewardHistoryProvider(target=daemon.target, namespace=client.namespace)
        for role, status in (("user", Status.RUNNING), ("assistant", Status.COMPLETED)):
            await provider.save_messages("chat", [framework.Message(role, [f"said by {role}"])])
            assert client.thread("chat").info().status == status
        await provider.close()

    asyncio.run(work())


def test_strands(daemon: Daemon, client: Client) -> None:
    """An agent whose tool is interrupted waits, and is completed after its last message."""
    strands = pytest.importorskip("strands", reason="the extra strands is not installed")
    from strands.models.model import Model
    from strands.session import SnapshotSessionManager

    from stateward.strands import StatewardStorage

    class Scripted(Model):
        get_config = update_config = structured_output = lambda self, *args, **kwargs: None

        async def stream(self, messages: Any, *_: Any, **__: Any) -> Any:
            is_first = len(messages) == 1
            tool = {"toolUse": {"name": "pay", "toolUseId": "t1"}}
            yield {"messageStart": {"role": "assistant"}}
            yield {"contentBlockStart": {"start": tool if is_first else {}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": "{}"}} if is_first else {"text": "done"}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use" if is_first else "end_turn"}}

    @strands.tool(context=True)
    def pay(tool_context: Any) -> str:
        """Pays."""
        return str(tool_context.interrupt("approve", reason={"amount": 3}))

    storage = StatewardStorage(target=daemon.target, namespace=client.namespace)
    manager = SnapshotSessionManager("trip", storage=storage)
    agent = strands.Agent(model=Scripted(), tools=[pay], session_manager=manager, callback_handler=None)
    result = agent("Pay")
    (name,) = [info.name for info in client.threads() if info.name.endswith("snapshot_latest.json")]
    ((part, prompt),) = asked(client.thread(name).info()).items()
    assert (part, prompt) == (result.interrupts[0].id, 'approve: {"amount": 3}')
    agent([{"interruptResponse": {"interruptId": part, "response": "yes"}}])
    assert client.thread(name).info().status == Status.COMPLETED
    asyncio.run(storage.write("a/snapshots/snapshot_latest.json", json.dumps({"data": {"nodes": []}}).encode()))
    assert client.thread("strands/a/snapshots/snapshot_latest.json").info().status == Status.RUNNING
