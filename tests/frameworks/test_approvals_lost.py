"""The danger: a person's decision about calls of tools gets lost on its way to the framework, or is used twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from stateward import Client
from stateward.models import Status
from stateward.testing import Daemon, run_daemon


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("approvals") / "data") as daemon:
        yield daemon


@pytest.fixture
def client(daemon: Daemon, request: pytest.FixtureRequest) -> Iterator[Client]:
    with daemon.client(namespace=request.node.name) as opened:
        yield opened


def decide(client: Client, name: str, decisions: dict[str, Any]) -> None:
    """Answers some parts of the open question by their prompts. The last one is rejected if it is "too dear"."""
    info = client.thread(name).info()
    assert (info.status, info.pending_signals, info.question is not None) == (Status.WAITING, 0, True)
    assert info.question is not None
    names = {part.prompt.partition("(")[0]: part.name for part in info.question.parts}
    if [*decisions.values()] == ["too dear"]:
        client.thread(name).reject("too dear")
        return
    client.thread(name).answer({names[prompt]: value for prompt, value in decisions.items()})


def used(client: Client, name: str) -> None:
    """The last answer is acknowledged, and nothing of the waiting is left."""
    info = client.thread(name).info()
    assert (info.status, info.pending_signals) == (Status.COMPLETED, 0)
    assert "answers" not in client.thread(name).hydrate().slots


def test_openai_agents(daemon: Daemon, client: Client) -> None:
    """One of two calls is approved first; the other one is rejected; a run that dies is given both again."""
    agents = pytest.importorskip("agents", reason="the extra openai-agents is not installed")
    from agents.testing import ScriptedModel, assistant_message, function_call

    from stateward.openai_agents import StatewardSession

    done, settings = list[str](), agents.RunConfig(tracing_disabled=True)

    def pay() -> str:
        done.append("paid")
        return "paid"

    def cancel() -> str:
        done.append("cancelled")
        return "cancelled"

    def build(*replies: Any) -> Any:
        tools = [agents.function_tool(each, needs_approval=True) for each in (pay, cancel)]
        return agents.Agent(name="a", model=ScriptedModel(list(replies)), tools=tools)

    def opened() -> StatewardSession:
        return StatewardSession("chat", target=daemon.target, namespace=client.namespace)

    async def talk() -> None:
        calls = [function_call("pay", "{}", call_id="c1"), function_call("cancel", "{}", call_id="c2")]
        session = opened()
        result = await agents.Runner.run(build(calls), "go", session=session, run_config=settings)
        await session.save_run(result.to_state())
        agent = build([assistant_message("done")])
        assert await session.resume_run(agent) is None
        decide(client, "chat", {"pay": True})
        assert await session.resume_run(agent) is None
        decide(client, "chat", {"cancel": "too dear"})
        assert await session.resume_run(agent) is not None
        await session.close()  # dies
        session = opened()
        run = await session.resume_run(agent)
        assert run is not None
        await agents.Runner.run(agent, run, session=session, run_config=settings)
        results = {each["call_id"]: each["output"] for each in await session.get_items() if "output" in each}  # type: ignore[typeddict-item]
        assert (results, done) == ({"c1": "paid", "c2": "too dear"}, ["paid"])
        assert await session.resume_run(agent) is None
        await session.close()

    asyncio.run(talk())
    used(client, "chat")
    assert "run" not in client.thread("chat").hydrate().slots


def test_pydantic_ai(daemon: Daemon, client: Client) -> None:
    """A call is denied with a reason, another one gets its result from a person; a run that dies gets both again."""
    ai = pytest.importorskip("pydantic_ai", reason="the extra pydantic-ai is not installed")
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    from stateward.pydantic_ai import StatewardConversationStore

    calls = [ToolCallPart("pay", {}, tool_call_id="c1"), ToolCallPart("seat", {}, tool_call_id="c2")]
    replies, seen = [ModelResponse(calls), ModelResponse([TextPart("done")])], list[Any]()

    def model(messages: list[Any], *_: Any) -> Any:
        seen[:] = [part.content for part in messages[-1].parts]
        return replies.pop(0)

    agent = ai.Agent(FunctionModel(model), output_type=[str, ai.DeferredToolRequests])

    @agent.tool_plain(requires_approval=True)
    def pay() -> str:
        raise AssertionError("it was denied")

    @agent.tool_plain
    def seat() -> str:
        raise ai.CallDeferred

    async def talk() -> None:
        async with StatewardConversationStore(target=daemon.target, namespace=client.namespace) as store:
            await store.save(await agent.run("go", conversation=ai.Conversation(conversation_id="chat")))
            assert await store.deferred_results("chat") is None
            decide(client, "chat", {"seat": "12A"})
            assert await store.deferred_results("chat") is None
            decide(client, "chat", {"pay": "too dear"})
            assert await store.deferred_results("chat") is not None
        async with StatewardConversationStore(target=daemon.target, namespace=client.namespace) as store:
            results, conversation = await store.deferred_results("chat"), await store.load("chat")
            await store.save(await agent.run(conversation=conversation, deferred_tool_results=results))
            assert await store.deferred_results("chat") is None

    asyncio.run(talk())
    assert sorted(seen) == ["12A", "too dear"]
    used(client, "chat")


def test_adk(daemon: Daemon, client: Client) -> None:
    """A confirmation is refused and a long call gets its result; a run that dies before its next event gets both."""
    pytest.importorskip("google.adk.runners", reason="the extra adk is not installed")
    from google.adk.agents import LlmAgent
    from google.adk.models import BaseLlm, LlmResponse
    from google.adk.runners import Runner
    from google.adk.tools import FunctionTool, LongRunningFunctionTool
    from google.genai import types

    from stateward.adk import StatewardSessionService

    place: Any = {"app_name": "a", "user_id": "u", "session_id": "s"}
    seen = list[Any]()

    class Scripted(BaseLlm):
        replies: list[Any]

        async def generate_content_async(self, llm_request: Any, *_: Any, **__: Any) -> Any:
            seen[:] = [part.function_response for part in llm_request.contents[-1].parts]
            reply = self.replies.pop(0)
            if isinstance(reply, Exception):
                raise reply
            yield LlmResponse(content=types.ModelContent(reply))

    def pay() -> str:
        """Pays."""
        raise AssertionError("it was refused")

    def seat() -> None:
        """Asks a person."""

    def build(*replies: Any) -> LlmAgent:
        tools = [FunctionTool(pay, require_confirmation=True), LongRunningFunctionTool(seat)]
        return LlmAgent(name="a", model=Scripted(model="scripted", replies=list(replies)), tools=tools)

    async def run(service: Any, agent: Any, message: Any) -> None:
        runner = Runner(app_name="a", agent=agent, session_service=service, auto_create_session=True)
        async for _ in runner.run_async(user_id="u", session_id="s", new_message=message):
            pass

    def opened() -> StatewardSessionService:
        return StatewardSessionService(target=daemon.target, namespace=client.namespace)

    async def talk() -> None:
        calls = [types.Part(function_call=types.FunctionCall(name=name, args={})) for name in ("pay", "seat")]
        async with opened() as service:
            await run(service, build(calls, "?"), types.UserContent("go"))
            assert await service.answers(**place) is None
            decide(client, NAME, {"seat": "12A"})
            assert await service.answers(**place) is None
            decide(client, NAME, {"pay": "too dear"})
            session = await service.get_session(**place)
            message = await service.answers(**place)
            assert message is not None
            assert session is not None
            from google.adk.events.event import Event

            await service.append_event(session, Event(author="user", content=message))  # and dies
            assert client.thread(NAME).info().status == Status.WAITING
        async with opened() as service:
            message = await service.answers(**place)
            await run(service, build("done"), message)
            assert await service.answers(**place) is None

    asyncio.run(talk())
    responses = {each.name: each.response for each in seen if each is not None}
    assert responses["pay"]["error"].startswith("This tool call is rejected")
    used(client, NAME)


NAME = "adk/sessions/a/u/s"


def test_agent_framework(daemon: Daemon, client: Client) -> None:
    """A workflow asks two things at once, and gets both answers after it died with them."""
    framework = pytest.importorskip("agent_framework", reason="the extra agent-framework is not installed")
    from tests.frameworks import asking_workflow

    from stateward.agent_framework import StatewardCheckpointStorage

    async def work() -> list[str]:
        async with StatewardCheckpointStorage("order", target=daemon.target, namespace=client.namespace) as storage:
            await asking_workflow.build(storage).run("go")
            assert await storage.responses() is None
            decide(client, "order", {"Pay?": True})
            assert await storage.responses() is None
            decide(client, "order", {"Seat?": "12A"})
            assert await storage.responses() is not None
        async with StatewardCheckpointStorage("order", target=daemon.target, namespace=client.namespace) as storage:
            latest, responses = await storage.get_latest(workflow_name="trip"), await storage.responses()
            assert latest is not None
            made = asking_workflow.build(storage)
            result = await made.run(responses=responses, checkpoint_id=latest.checkpoint_id)
            assert await storage.responses() is None
            return [str(each) for each in result.get_outputs()]

    assert framework.__version__
    assert sorted(asyncio.run(work())) == ["Pay? True", "Seat? 12A"]
    used(client, "order")
