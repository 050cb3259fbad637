"""The danger: a large value of a framework, of which a write sends the pieces that changed, comes back as a mixture
of two, or is gone after a write that was cut off."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from stateward import AsyncClient, Retention
from stateward._async.thread import AsyncThread
from stateward.testing import Daemon, run_daemon

LEAST_BYTES = 100_000


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("large") / "data") as daemon:
        yield daemon


@pytest.fixture
async def client(daemon: Daemon, request: pytest.FixtureRequest) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(daemon.target, namespace=request.node.name[:60], blob_threshold=LEAST_BYTES) as client:
        yield client


class _Killed(BaseException):
    """The process ends here."""


def _changed(data: bytes, chance: random.Random) -> bytes:
    """What a framework may make of a value: mostly, it grows at its end."""
    kind, at = chance.random(), chance.randrange(len(data) + 1)
    added = chance.randbytes(chance.choice([1, 1000, 70_000]))
    if kind < 0.5:
        return data + added
    if kind < 0.6:
        return data[:at] + added + data[at:]
    if kind < 0.7:
        return data[:50] + added[:4] + data[54:]
    if kind < 0.8:
        return data[:at]
    if kind < 0.9:
        return added
    return data + chance.randbytes(300_000)


@pytest.mark.parametrize("seed", range(3))
async def test_a_value_is_what_was_written_last(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whatever changes, whoever wrote before, and whether or not a process was killed in a write: then it is the value
    before."""
    strands = pytest.importorskip("stateward.strands")
    monkeypatch.setattr("stateward._spreading.TOGETHER_BYTES", 150_000)
    chance, data = random.Random(seed), b""
    apply, left = AsyncThread.apply, [0]

    async def killed(thread: AsyncThread, *args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise _Killed
        return await apply(thread, *args, **kwargs)

    storages = [strands.StatewardStorage(client=client, retention=None) for _ in range(2)]
    for _ in range(40):
        made, storage = _changed(data, chance), chance.choice(storages)
        if chance.random() < 0.2:
            left[0] = chance.randrange(3)
            with monkeypatch.context() as patch:
                patch.setattr(AsyncThread, "apply", killed)
                try:
                    await storage.write("k", made)
                    data = made
                except _Killed:
                    storages = [strands.StatewardStorage(client=client, retention=None) for _ in range(2)]
        else:
            await storage.write("k", made)
            data = made
        if chance.random() < 0.5:
            assert await chance.choice(storages).read("k") == data or not data
    assert await strands.StatewardStorage(client=client).read("k") == data


async def test_a_value_that_grows_takes_what_is_new(client: AsyncClient) -> None:
    """Beside the last piece, which is written again, and stored as a difference."""
    strands = pytest.importorskip("stateward.strands")
    storage, data = strands.StatewardStorage(client=client, retention=None), random.Random(1).randbytes(2_000_000)
    await storage.write("k", data)
    for number in range(10):
        data = b"%6d" % number + data[6:] + random.Random(number).randbytes(20_000)
        await storage.write("k", data)
    *later, first = [made.stored_bytes async for made in client.thread("strands/k").checkpoints.list()]
    assert first > 1_900_000
    assert sum(later) < 200_000 + 10 * 70_000
    assert await storage.read("k") == data


async def test_who_owns_a_large_value_is_told_of_another_writer(client: AsyncClient) -> None:
    """With write_ownership a late writer is refused; a value that somebody deleted does not come back."""
    strands = pytest.importorskip("stateward.strands")
    error = pytest.importorskip("strands.types.exceptions").StorageError
    data = b"x" * (2 * LEAST_BYTES)
    one, other = (strands.StatewardStorage(client=client, write_ownership=True) for _ in range(2))
    await one.write("k", data)
    assert await other.read("k") == data
    await other.write("k", data + b"1")
    with pytest.raises(error, match="somebody else wrote it"):
        await one.write("k", data + b"2")
    assert await one.read("k") == data + b"1"
    await other.delete("k")
    with pytest.raises(error, match="deleted"):
        await one.write("k", data + b"3")
    assert await one.read("k") is None
    await one.write("k", data)
    assert await other.read("k") == data


async def test_large_checkpoints_of_a_workflow(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each checkpoint comes back as it was, by any object, and takes what is new; deleted ones leave nothing."""
    module = pytest.importorskip("stateward.agent_framework")
    framework = pytest.importorskip("agent_framework")
    monkeypatch.setattr("stateward._spreading.TOGETHER_BYTES", 150_000)
    storages = [module.StatewardCheckpointStorage("w", client=client) for _ in range(2)]
    texts, made = list[str](), list[Any]()
    for number in range(12):
        texts += [random.Random(number).randbytes(40_000).hex()]
        if number == 9:
            texts = texts[:1]  # so that the state is small
        made.append(
            framework.WorkflowCheckpoint(
                workflow_name="trip", graph_signature_hash="g", state={"texts": list(texts), "last": float("nan")},
                previous_checkpoint_id=made[-1].checkpoint_id if made else None,
            )
        )  # fmt: skip
        await storages[number % 3 == 2].save(made[-1])
    fresh = module.StatewardCheckpointStorage("w", client=client)
    for each in made:
        assert (await fresh.load(each.checkpoint_id)).state["texts"] == each.state["texts"]
    listed = await fresh.list_checkpoints(workflow_name="trip")
    assert [each.state["texts"] for each in listed] == [each.state["texts"] for each in made]
    for each in made:
        assert await fresh.delete(each.checkpoint_id)
    assert [info async for info in client.threads()] == []


async def test_a_value_with_a_retention_leaves_nothing_behind(tmp_path: Any) -> None:
    """Earlier pieces go with their versions."""
    strands = pytest.importorskip("stateward.strands")
    with run_daemon(tmp_path / "data", sweep_interval="100ms") as daemon:
        async with AsyncClient(daemon.target, blob_threshold=LEAST_BYTES) as client:
            storage = strands.StatewardStorage(client=client, retention=Retention(keep_last=1))
            for number in range(4):
                await storage.write("k", random.Random(number).randbytes(400_000))
            thread = client.thread("strands/k")
            for _ in range(600):
                if (await thread.info()).retained_versions == 1:
                    break
                await asyncio.sleep(0.1)
            assert await storage.read("k") == random.Random(3).randbytes(400_000)
