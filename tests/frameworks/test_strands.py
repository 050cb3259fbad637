"""The danger: a Strands agent overwrites the turn of another process, or does not find the messages that it saved
before a kill."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stateward import Retention
from stateward._operations.steps import Call
from stateward.testing import Daemon, run_daemon

pytest.importorskip("strands", reason="the extra strands is not installed")
from strands.session import SnapshotSessionManager
from strands.storage import InMemoryStorage, Storage
from strands.types.exceptions import StorageError
from tests.frameworks.forks import Forks, forks
from tests.frameworks.strands_agent import agent_of, shown

from stateward.strands import StatewardStorage


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("strands") / "data") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def agents() -> Iterator[Forks]:
    with forks("strands_agent") as waiting:
        yield waiting


@pytest.mark.parametrize("seed", range(2))
async def test_it_does_what_the_storage_in_memory_does(daemon: Daemon, seed: int) -> None:
    """Any order of calls, any prefix, any bytes; searches and namespaces, too."""
    chance, theirs = random.Random(seed), InMemoryStorage()
    keys = ["a", "a/b", "a/b/c", "a/bc/ä%", "ab", "x/y.json"]
    async with StatewardStorage(target=daemon.target, namespace=f"same-{seed}") as ours:
        assert isinstance(ours, Storage)
        for step in range(150):
            key, kind = chance.choice(keys), chance.random()
            if kind < 0.5:
                data = chance.choice([b"", b"\x00\xff", f"value {step} of {key}".encode()])
                await ours.write(key, data)
                await theirs.write(key, data)
            elif kind < 0.7:
                await ours.delete(key)
                await theirs.delete(key)
            assert await ours.read(key) == await theirs.read(key)
            prefix = chance.choice(["", "a", "a/", "a/b", "a/b/", "x", "nothing/", key])
            assert await ours.list(prefix) == await theirs.list(prefix)
            if step % 30 == 0:
                query = "value " + chance.choice(keys)
                assert await ours.search(query) == await theirs.search(query)
        with pytest.raises(StorageError, match="empty"):
            await ours.write("", b"")
        for storage in (ours, theirs):
            await storage.write("k" * 2000, b"long")
        assert await ours.read("k" * 2000) == b"long"
        assert await ours.list("k") == await theirs.list("k") == ["k" * 2000]


async def test_a_list_reads_its_folder_only(daemon: Daemon) -> None:
    """A thousand keys elsewhere cost it nothing: it is one call, and answers these keys alone."""
    async with StatewardStorage(target=daemon.target, namespace="folders") as storage:
        for folder in ("session/one", "session/two"):
            await asyncio.gather(*(storage.write(f"{folder}/{number}", b"x") for number in range(30)))
        session, read = storage._client._session, list[int]()
        perform = session.perform

        async def watched(step: Any) -> Any:
            answer = await perform(step)
            if isinstance(step, Call):
                read.append(len(answer.threads))
            return answer

        session.perform = watched  # type: ignore[method-assign]
        assert len(await storage.list("session/two/")) == 30
        assert read == [30]


async def test_of_two_writers_with_ownership_one_is_told(daemon: Daemon) -> None:
    """Without it the last one wins. A key that somebody deleted, or deleted and wrote again, is another one, too."""
    async with (
        StatewardStorage(target=daemon.target, namespace="race", write_ownership=True) as one,
        StatewardStorage(target=daemon.target, namespace="race", write_ownership=True) as two,
        StatewardStorage(target=daemon.target, namespace="race") as anybody,
    ):
        assert await one.read("k") is None
        assert await two.read("k") is None
        await one.write("k", b"1")
        with pytest.raises(StorageError, match="somebody else"):
            await two.write("k", b"2")
        assert await two.read("k") == b"1"
        await two.write("k", b"2")
        with pytest.raises(StorageError, match="somebody else"):
            await one.write("k", b"3")
        await anybody.write("k", b"4")
        assert await one.read("k") == b"4"
        await anybody.delete("k")
        with pytest.raises(StorageError):
            await one.write("k", b"5")
        for _ in range(4):  # as many versions as the deleted key had
            await anybody.write("k", b"6")
        with pytest.raises(StorageError):
            await one.write("k", b"7")
        assert await anybody.read("k") == b"6"


async def test_a_large_value_takes_only_what_changed(daemon: Daemon) -> None:
    """Five megabytes that grow in the middle; and forty, which become a blob."""
    data = random.Random(1).randbytes(5 << 20)
    async with StatewardStorage(target=daemon.target, namespace="large", retention=None) as storage:
        for step in range(4):
            await storage.write("k", data[: 1 << 20] + b"new" * step + data[1 << 20 :])
        stored = [made.stored_bytes async for made in storage._client.thread("strands/k").checkpoints.list()]
        assert sum(stored) < len(data) + 5000
        assert await storage.read("k") == data[: 1 << 20] + b"new" * 3 + data[1 << 20 :]
        huge = data * 8
        await storage.write("huge", huge)
        assert await storage.read("huge") == huge


@pytest.mark.parametrize("retention", [Retention(keep_last=1), None])
async def test_earlier_values_go_unless_they_are_to_stay(tmp_path: Path, retention: Retention | None) -> None:
    """By default a redacted value is gone after the next sweep."""
    with run_daemon(tmp_path / "data", sweep_interval="100ms") as daemon:
        async with StatewardStorage(target=daemon.target, retention=retention) as storage:
            for number in range(5):
                await storage.write("k", str(number).encode())
            wanted = 5 if retention is None else 1
            for _ in range(100 if retention else 5):
                versions = [made async for made in storage._client.thread("strands/k").checkpoints.list()]
                if retention and len(versions) == wanted:
                    break
                await asyncio.sleep(0.1)
            assert len(versions) == wanted


@pytest.mark.slow
@pytest.mark.parametrize(("nth", "when"), [(2, "after"), (3, "before"), (3, "after")])
def test_an_agent_continues_after_a_kill(daemon: Daemon, agents: Forks, nth: int, when: str) -> None:
    """Kill -9 of its process around a save, then of the daemon: another agent has the messages that were saved."""
    name = f"killed-{nth}-{when}"
    killed = agents.run("strands_agent", daemon.target, name, str(nth), when)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    daemon.kill()
    daemon.start()
    whole = agent_of(InMemoryStorage(), name)
    whole("What does Rome cost?")
    storage = StatewardStorage(target=daemon.target)
    again = agent_of(storage, name)
    saved = nth if when == "after" else nth - 1  # each message is a save
    assert shown(again) == shown(whole)[:saved]
    again("And again?")
    assert shown(agent_of(storage, name)) == shown(again)
    asyncio.run(storage.close())


@pytest.mark.slow
def test_two_processes_on_one_session_do_not_overwrite_each_other(daemon: Daemon, agents: Forks) -> None:
    """The one that did not see the other's turn is told, and the turn of the other one stays."""
    storage = StatewardStorage(target=daemon.target, write_ownership=True)
    late = agent_of(storage, "both")
    done = agents.run("strands_agent", daemon.target, "both", "99", "before")
    assert done.returncode == 0, done.stderr
    with pytest.raises(StorageError, match="somebody else"):
        late("What does Rome cost?")
    again = agent_of(storage, "both")
    assert shown(again) == json.loads(done.stdout)
    again("And again?")
    asyncio.run(storage.close())


def test_an_agent_says_the_same_as_with_the_storage_in_memory(daemon: Daemon) -> None:
    """Two turns with an agent each, a kill of the daemon between them, and snapshots to go back to."""

    async def snapshots(manager: SnapshotSessionManager, agent: Any) -> list[int]:
        ids = await manager.list_snapshot_ids(agent)
        restored = []
        for snapshot_id in ids:
            assert await manager.restore_snapshot(agent, snapshot_id=snapshot_id)
            restored.append(len(agent.messages))
        await manager.delete_session()
        return restored

    said = []
    ours = StatewardStorage(target=daemon.target, namespace="talk", write_ownership=True)
    theirs = InMemoryStorage()
    for storage in (ours, theirs):
        for text in ("What does Rome cost?", "Again, please."):
            agent = agent_of(storage, "talk")
            agent(text)
            manager = SnapshotSessionManager("talk", storage=storage)
            asyncio.run(manager.save_snapshot(agent, is_latest=False))
            if storage is ours:
                daemon.kill()
                daemon.start()
        said.append((shown(agent), asyncio.run(snapshots(manager, agent)), asyncio.run(storage.list(""))))
    assert said[0] == said[1]
    assert said[0][1:] == ([4, 8], [])
    asyncio.run(ours.close())


async def test_a_client_of_one_s_own_stays_open(daemon: Daemon) -> None:
    """And a client together with options for one is refused."""
    async with daemon.async_client() as client:
        async with StatewardStorage(client=client) as storage:
            await storage.write("own/a", b"x")
        assert (await client.thread("strands/own/a").hydrate()).slots["data"] == b"x"
        with pytest.raises(TypeError, match="either a client"):
            StatewardStorage(client=client, target=daemon.target)
