"""The danger: of two writers of a Pydantic AI conversation one overwrites the other, or an agent forgets its messages
after a kill."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from stateward.testing import Daemon, run_daemon

pytest.importorskip("pydantic_ai", reason="the extra pydantic-ai is not installed")
from pydantic_ai import Agent, Conversation
from pydantic_ai.conversation_store import ConversationConflict, ConversationStore, InMemoryConversationStore
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelRequest, UserPromptPart
from pydantic_ai.models.test import TestModel

from stateward import pydantic_ai
from stateward._async.thread import AsyncThread
from stateward.pydantic_ai import StatewardConversationStore


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("pydantic") / "data") as daemon:
        yield daemon


def message(text: str) -> ModelRequest:
    """A message with a time of its own."""
    return ModelRequest(parts=[UserPromptPart(content=text)])


class Player:
    """Does the same to a store as another one does to another store. What it sees names no random id."""

    def __init__(self, store: ConversationStore, seed: int) -> None:
        self.store, self.chance = store, random.Random(seed)
        self.held: dict[str, Conversation] = {}
        self.numbers: dict[str, int] = {}

    def number(self, entry_id: str | None) -> int | None:
        """Entry ids are random, so they are numbered in the order in which they are seen."""
        return None if entry_id is None else self.numbers.setdefault(entry_id, len(self.numbers))

    async def step(self, made: ModelRequest) -> Any:
        """One random call. Returns what it answered."""
        name, kind, at = self.chance.choice("abc"), self.chance.random(), self.chance.randrange(4)
        scope = self.chance.choice([None, "ana"])
        try:
            if kind < 0.4:
                held = self.held.setdefault(name, Conversation(conversation_id=name))
                held.messages.append(made)
                return [self.number(each.id) for each in await self.store.save(held, scope=scope)]
            if kind < 0.55:
                loaded = await self.store.load(name, limit=self.chance.choice([None, 0, 2]), scope=scope)
                if loaded is not None:
                    self.held[name] = loaded
                return None if loaded is None else loaded.messages
            if kind < 0.7:
                revision = self.held[name].revision if name in self.held else None
                branched = await self.store.branch(name, at=at, expected_revision=revision)
                self.held[name] = branched
                return branched.messages
            if kind < 0.8:
                return (await self.store.fork(name, at=at, new_conversation_id=self.chance.choice("abc"))).messages
            if kind < 0.85:
                return await self.store.delete(name, scope=scope)
            if kind < 0.95:
                entries = await self.store.load_entries(name) or []
                return [(self.number(each.id), self.number(each.parent_id), each.message) for each in entries]
            records = sorted(await self.store.list_conversations(scope=scope), key=lambda each: each.conversation_id)
            return [
                (each.conversation_id, self.number(each.head_id), list(map(self.number, each.branches)), each.scope)
                for each in records
            ]
        except UserError as error:  # ConversationConflict is one
            return type(error), getattr(error, "conversation_id", "")


@pytest.mark.parametrize("seed", range(4))
async def test_it_does_what_the_store_in_memory_does(daemon: Daemon, seed: int) -> None:
    """Saves, loads, branches, forks, deletions and lists, in any order; conflicts too."""
    async with StatewardConversationStore(target=daemon.target, namespace=f"same-{seed}") as store:
        ours, theirs = Player(store, seed), Player(InMemoryConversationStore(), seed)
        for step in range(100):
            made = message(f"message {step}")
            assert await ours.step(dataclasses.replace(made)) == await theirs.step(made), step


async def test_an_entry_is_found_by_a_store_that_never_saw_it(daemon: Daemon) -> None:
    """By a label of the version that it was the head of, also when a branch was left; of an unknown one it says so."""
    async with StatewardConversationStore(target=daemon.target, namespace="find") as store:
        held = Conversation(conversation_id="c", messages=[message("a"), message("b")])
        entries = await store.save(held)
        await store.branch("c", at=1, expected_revision=held.revision)
        async with StatewardConversationStore(target=daemon.target, namespace="find") as other:
            assert await other.read_history(entries[-1].id) == entries
            assert await other.read_entry(entries[-1].id) == entries[-1]
            with pytest.raises(LookupError, match="unknown"):
                await other.read_entry("unknown")


class _Killed(BaseException):
    """The process ends here."""


async def test_a_fork_in_pieces_is_seen_whole_or_not_at_all(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large conversation is copied in several writes. A copy that was cut off is seen by nobody, and what is left of
    it is no part of what is written under its name later."""
    monkeypatch.setattr(pydantic_ai, "PIECE_BYTES", 3000)
    async with StatewardConversationStore(target=daemon.target, namespace="pieces") as store:
        texts = [f"{number} {os.urandom(500).hex()}" for number in range(10)]
        held = Conversation(conversation_id="c", messages=[message(text) for text in texts])
        await store.save(held)
        apply, calls = AsyncThread.apply, list[str]()

        async def cut(thread: AsyncThread, *args: Any, **kwargs: Any) -> Any:
            calls.append(thread.name)
            if len(calls) == 3:
                raise _Killed
            return await apply(thread, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(AsyncThread, "apply", cut)
            patch.setattr(AsyncThread, "delete", lambda *args, **kwargs: asyncio.sleep(0))
            with pytest.raises(_Killed):
                await store.fork("c", new_conversation_id="copy")
        assert await store.load("copy") is None
        assert [each.conversation_id for each in await store.list_conversations()] == ["c"]
        short = Conversation(conversation_id="copy", messages=[message("short")])
        await store.save(short)
        client = store._client
        assert len((await client.thread("copy").hydrate()).logs["entries"]) == 1
        await store.delete("copy")
        forked = await store.fork("c", new_conversation_id="copy")
        assert forked.messages == held.messages
        found = await store.load("copy")
        assert found is not None
        assert found.messages == held.messages
        with monkeypatch.context() as patch:
            calls.clear()
            patch.setattr(AsyncThread, "apply", cut)
            with pytest.raises(_Killed):
                await store.fork("c", new_conversation_id="other")
        assert [info.name async for info in client.threads()] == ["copy", "c"]  # the half copy was removed


async def test_of_two_writers_exactly_one_saves(daemon: Daemon) -> None:
    """The other one gets ConversationConflict, and loses nothing: it loads, and saves again."""
    async with (
        StatewardConversationStore(target=daemon.target, namespace="race") as one,
        StatewardConversationStore(target=daemon.target, namespace="race") as two,
    ):
        await one.save(Conversation(conversation_id="c", messages=[message("begin")]))

        async def add(store: ConversationStore, name: str) -> None:
            for number in range(10):
                while True:
                    held = await store.load("c")
                    assert held is not None
                    held.messages.append(message(f"{name}-{number}"))
                    try:
                        await store.save(held)
                        break
                    except ConversationConflict:
                        continue

        await asyncio.gather(add(one, "one"), add(two, "two"))
        found = await one.load("c")
        assert found is not None
        texts = [each.parts[0].content for each in found.messages]  # type: ignore[union-attr]
    assert len(texts) == 21
    for name in ("one", "two"):
        assert [each for each in texts if str(each).startswith(name)] == [f"{name}-{number}" for number in range(10)]


async def test_an_agent_continues_after_a_kill(daemon: Daemon) -> None:
    """With the framework's own runner: kill -9 of the daemon between two runs, and another store object."""
    agent = Agent(TestModel(custom_output_text="Rome."))
    async with StatewardConversationStore(target=daemon.target, namespace="run") as store:
        conversation = Conversation(conversation_id="trip")
        await store.save(await agent.run("Where to?", conversation=conversation), scope="ana")
    daemon.kill()
    daemon.start()
    async with StatewardConversationStore(target=daemon.target, namespace="run") as store:
        loaded = await store.load("trip", scope="ana")
        assert loaded is not None
        result = await agent.run("And when?", conversation=loaded)
        await store.save(result)
        again = await store.load("trip")
        assert again is not None
        assert again.messages == result.all_messages()
        assert (len(again.messages), again.usage.requests) == (4, 2)
        assert await store.load("trip", scope="bob") is None
