"""The danger: a session that somebody deleted is there again, or its late write lands in the next session of the name.

Each adapter has something. Somebody else deletes it, and in one form of the tests makes it anew. Then the late write of
the adapter comes. It is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest

from stateward import Client
from stateward._operations.steps import Call
from stateward.errors import ServerUnavailable, StatewardError
from stateward.testing import Daemon, run_daemon

pytest.importorskip("agents", reason="the extra openai-agents is not installed")
pytest.importorskip("agent_framework", reason="the extra agent-framework is not installed")
pytest.importorskip("google.adk", reason="the extra adk is not installed")
pytest.importorskip("pydantic_ai", reason="the extra pydantic-ai is not installed")
pytest.importorskip("strands", reason="the extra strands is not installed")
from agent_framework import Message, WorkflowCheckpoint
from google.adk.errors import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.genai.types import Content, Part
from pydantic_ai import Conversation
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.messages import ModelRequest, UserPromptPart
from strands.types.exceptions import StorageError

from stateward.adk import StatewardSessionService
from stateward.agent_framework import StatewardCheckpointStorage, StatewardHistoryProvider
from stateward.openai_agents import StatewardSession
from stateward.pydantic_ai import StatewardConversationStore
from stateward.strands import StatewardStorage

numbers = itertools.count()
REFUSED = (StatewardError, StaleSessionError, SessionNotFoundError, ConversationConflict, StorageError)
KEY: Any = {"app_name": "a", "user_id": "u", "session_id": "s"}


@dataclass
class Case:
    """An adapter that has begun something: its late write, what it reads before it begins anew, and that."""

    adapter: Any
    late: Callable[[], Awaitable[Any]]
    again: Callable[[], Awaitable[Any]]
    delete: Callable[[], Awaitable[Any]]


def message(text: str) -> Any:
    return {"role": "user", "content": text}


async def openai(place: Any, more: str = "") -> Case:
    made = StatewardSession("s", **place)
    await made.add_items([message("begin"), message(f"more {more}")])

    async def again() -> None:
        assert len(await made.get_items()) in (0, 2)
        await made.add_items([message("again")])

    return Case(made, lambda: made.add_items([message("late")]), again, made.clear_session)


async def strands(place: Any) -> Case:
    made = StatewardStorage(**place)
    await made.write("k", b"begin")

    async def again() -> None:
        await made.read("k")
        await made.write("k", b"again")

    return Case(made, lambda: made.write("k", b"late"), again, lambda: made.delete("k"))


async def strands_owned(place: Any) -> Case:
    made = StatewardStorage(write_ownership=True, **place)
    await made.write("k", b"begin")

    async def again() -> None:
        await made.read("k")
        await made.write("k", b"again")

    return Case(made, lambda: made.write("k", b"late"), again, lambda: made.delete("k"))


async def workflow(place: Any) -> Case:
    made = StatewardCheckpointStorage("t", **place)
    begin = WorkflowCheckpoint("w", "h")
    await made.save(begin)
    late = WorkflowCheckpoint("w", "h", previous_checkpoint_id=begin.checkpoint_id)

    async def delete() -> None:
        for each in await made.list_checkpoint_ids(workflow_name="w"):
            await made.delete(each)

    return Case(made, lambda: made.save(late), lambda: made.save(WorkflowCheckpoint("w", "h")), delete)


async def history(place: Any) -> Case:
    made = StatewardHistoryProvider(**place)
    await made.save_messages("s", [Message(role="user", contents=["begin"])])

    async def again() -> None:
        await made.get_messages("s")
        await made.save_messages("s", [Message(role="user", contents=["again"])])

    late = Message(role="user", contents=["late"])
    return Case(made, lambda: made.save_messages("s", [late]), again, lambda: made.clear("s"))


async def pydantic(place: Any) -> Case:
    made = StatewardConversationStore(**place)
    held = Conversation(conversation_id="c", messages=[ModelRequest(parts=[UserPromptPart(content="begin")])])
    await made.save(held)
    held.messages.append(ModelRequest(parts=[UserPromptPart(content="late")]))

    async def again() -> None:
        loaded = await made.load("c") or Conversation(conversation_id="c")
        loaded.messages.append(ModelRequest(parts=[UserPromptPart(content="again")]))
        await made.save(loaded)

    return Case(made, lambda: made.save(held), again, lambda: made.delete("c"))


async def adk(place: Any) -> Case:
    made = StatewardSessionService(**place)
    session = await made.create_session(**KEY)

    def event() -> Event:
        return Event(author="x", invocation_id="i", actions=EventActions(state_delta={"k": 1, "user:k": 2}))

    async def again() -> None:
        found = await made.get_session(**KEY) or await made.create_session(**KEY)
        await made.append_event(found, event())

    return Case(made, lambda: made.append_event(session, event()), again, lambda: made.delete_session(**KEY))


async def adk_large(place: Any) -> Case:
    case = await adk(place)
    session = await case.adapter.get_session(**KEY)
    large = Event(author="x", content=Content(parts=[Part(text="late" * 500_000)]))
    return replace(case, late=lambda: case.adapter.append_event(session, large))


CASES = [openai, strands, strands_owned, workflow, history, pydantic, adk, adk_large]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("late") / "data") as daemon:
        yield daemon


@pytest.fixture
def place(daemon: Daemon) -> Any:
    """The target, and a namespace of the test's own."""
    return {"target": daemon.target, "namespace": f"late-{next(numbers)}"}


def heads(client: Client) -> set[tuple[str, str, int]]:
    """All threads, with their creations and versions."""
    return {(info.name, info.uid, info.version) for info in client.threads()}


@pytest.mark.parametrize("make", CASES, ids=lambda each: each.__name__)
@pytest.mark.parametrize("is_made_again", [False, True], ids=["deleted", "made again"])
async def test_a_late_write_reaches_nothing(daemon: Daemon, place: Any, make: Any, is_made_again: bool) -> None:
    """Once and repeated; after a read the adapter begins anew."""
    with daemon.client(namespace=place["namespace"]) as client:
        case, other = await make(place), None
        await (await make_other(make, place)).delete()
        assert heads(client) == set()
        if is_made_again:
            other = await make(place)
        before = heads(client)
        for _ in range(2):
            with pytest.raises(REFUSED):
                await case.late()
            assert heads(client) == before
        await case.again()
        assert len(heads(client) - before) >= 1
        for each in filter(None, (case, other)):
            await each.adapter.close()


async def make_other(make: Any, place: Any) -> Case:
    """The adapter of somebody else, who looks at the same thing and wrote nothing."""
    if make in (strands, strands_owned):
        made: Any = StatewardStorage(**place)
        return Case(made, made.close, made.close, lambda: made.delete("k"))
    if make is openai:
        session = StatewardSession("s", **place)
        return Case(session, session.close, session.close, session.clear_session)
    if make is history:
        provider = StatewardHistoryProvider(**place)
        return Case(provider, provider.close, provider.close, lambda: provider.clear("s"))
    if make is pydantic:
        store = StatewardConversationStore(**place)
        return Case(store, store.close, store.close, lambda: store.delete("c"))
    if make in (adk, adk_large):
        service = StatewardSessionService(**place)
        return Case(service, service.close, service.close, lambda: service.delete_session(**KEY))
    storage = StatewardCheckpointStorage("t", **place)

    async def delete() -> None:
        for each in await storage.list_checkpoint_ids(workflow_name="w"):
            await storage.delete(each)

    return Case(storage, storage.close, storage.close, delete)


@pytest.mark.parametrize("make", CASES, ids=lambda each: each.__name__)
async def test_a_repeated_deletion_spares_the_next_one(daemon: Daemon, place: Any, make: Any) -> None:
    """Its answer is lost, somebody makes the thread again, and the client sends the deletion again."""
    with daemon.client(namespace=place["namespace"]) as client:
        case, others = await make(place), list[Case]()
        session = case.adapter._client._session
        perform = session.perform

        async def lose(step: Any) -> Any:
            answer = await perform(step)
            if isinstance(step, Call) and step.method == "DeleteThread" and not others:
                others.append(await make(place))
                raise ServerUnavailable("the answer is lost", code="UNAVAILABLE")
            return answer

        session.perform = lose
        with suppress(ConversationConflict):  # the first attempt deleted it, and the second found another one
            await case.delete()
        assert len(others) == 1
        assert len(heads(client)) >= 1
        for each in (case, *others):
            await each.adapter.close()


@pytest.mark.parametrize("make", [openai, pydantic], ids=lambda each: each.__name__)
async def test_another_version_of_the_same_number_is_another_one(daemon: Daemon, place: Any, make: Any) -> None:
    """Between the read and the write of a call, the thread is deleted and made again with as many versions."""
    with daemon.client(namespace=place["namespace"]) as client:
        case, others = await make(place), list[Case]()
        session = case.adapter._client._session
        perform = session.perform

        async def swap(step: Any) -> Any:
            if isinstance(step, Call) and step.method == "Save" and not others:
                for info in list(client.threads()):
                    client.thread(info.name).delete()
                others.append(await (openai(place, "other") if make is openai else make(place)))
            return await perform(step)

        session.perform = swap
        if make is openai:
            assert await case.adapter.pop_item() == message("more other")  # that of the thread which is there now
            assert [each["content"] for each in await others[0].adapter.get_items()] == ["begin"]
        else:
            with pytest.raises(ConversationConflict):
                await case.late()
            loaded = await others[0].adapter.load("c")
            assert [each.parts[0].content for each in loaded.messages] == ["begin"]
        for each in (case, *others):
            await each.adapter.close()
