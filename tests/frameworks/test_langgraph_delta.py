"""The danger: a prune or a copy drops the ancestors that a delta channel is made from, so a graph sees a shorter
list."""

from __future__ import annotations

import operator
import random
from collections.abc import Iterator
from functools import reduce
from typing import Annotated, Any, TypedDict

import pytest

from stateward.testing import Daemon, run_daemon

pytest.importorskip("langgraph.graph", reason="the extra langgraph is not installed")
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import START, StateGraph

from stateward.langgraph import StatewardSaver

CHANNELS = ("delta", "plain", "none")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("langgraph") / "data") as daemon:
        yield daemon


def concat(value: list[int], writes: Any) -> list[int]:
    """A reducer of a delta channel."""
    return reduce(operator.add, writes, value)


class Steps(TypedDict):
    """What the graph knows."""

    items: Annotated[list[int], DeltaChannel(concat, list, snapshot_frequency=4)]


def build(saver: BaseCheckpointSaver[str]) -> Any:
    """A graph of one node, which adds the length of the list to it."""
    builder = StateGraph(Steps)
    builder.add_node("count", lambda state: {"items": [len(state["items"])]})
    builder.add_edge(START, "count")
    return builder.compile(checkpointer=saver)


def write_history(saver: BaseCheckpointSaver[str], seed: int) -> list[str]:
    """Checkpoints from random parents, with random writes and now and then a snapshot. Returns their ids.

    As in a graph, a write to a channel gives the channel a new version in the next checkpoint.
    """
    chance, ids, versions = random.Random(seed), list[str](), dict[str, dict[str, str]]()
    written, plain = dict[str, set[str]](), dict[str, dict[str, int]]()
    for step in range(14):
        place: dict[str, Any] = {"thread_id": f"t{seed}", "checkpoint_ns": ""}
        if ids:
            place["checkpoint_id"] = ids[-1] if chance.random() < 0.8 else chance.choice(ids)
        parent = place.get("checkpoint_id", "")
        before, names = versions.get(parent, {}), written.get(parent, set[str]())
        changed = {name: f"{step:032}.{chance.random():.16f}" for name in names}
        values: dict[str, Any] = {}
        if "delta" in changed and chance.random() < 0.3:
            values["delta"] = _DeltaSnapshot([step])
        made_plain = {"step": step} if "plain" in changed else plain.get(parent)
        if made_plain:
            values["plain"] = made_plain
        made: Any = {
            "v": 4, "id": f"1f1e7739-3b1c-6112-8007-{step:012}", "ts": "", "channel_values": values,
            "channel_versions": {**before, **changed}, "versions_seen": {}, "updated_channels": None,
        }  # fmt: skip
        config = saver.put({"configurable": place}, made, {"step": step}, changed)
        ids.append(made["id"])
        versions[made["id"]], written[made["id"]] = made["channel_versions"], set()
        if made_plain:
            plain[made["id"]] = made_plain
        for task in range(chance.randrange(3)):
            writes = [(chance.choice(CHANNELS), [step, task, each]) for each in range(chance.randrange(1, 4))]
            saver.put_writes(config, writes, f"task-{chance.random()}", f"~{task}")
            written[made["id"]] |= {channel for channel, _ in writes if channel != "none"}
    return ids


@pytest.mark.parametrize("seed", range(4))
def test_the_history_of_channels_is_what_it_is_in_memory(daemon: Daemon, seed: int) -> None:
    """For each checkpoint, the newest one, and one that does not exist; for all channels, some, and none."""
    memory = InMemorySaver()
    with StatewardSaver(daemon.target) as saver:
        ids = write_history(saver, seed)
        assert write_history(memory, seed) == ids
        for checkpoint_id in [*ids, None, "1f1e7739-3b1c-6112-8007-999999999999"]:
            place = {"thread_id": f"t{seed}", "checkpoint_ns": "", "checkpoint_id": checkpoint_id}
            config: Any = {"configurable": {key: value for key, value in place.items() if value}}
            for channels in (CHANNELS, CHANNELS[:1], ()):
                found = saver.get_delta_channel_history(config=config, channels=channels)
                assert found == memory.get_delta_channel_history(config=config, channels=channels), checkpoint_id


async def test_a_graph_with_a_delta_channel_survives_pruning_and_copying(daemon: Daemon) -> None:
    """What a delta channel is made from stays when the rest goes, in a copy too."""
    config: Any = {"configurable": {"thread_id": "graph"}}
    async with StatewardSaver(daemon.target) as saver:
        graph = build(saver)
        for number in range(7):
            await graph.ainvoke({"items": [number]}, config)
        before = (await graph.aget_state(config)).values
        listed = [each async for each in saver.alist(config)]
        await saver.aprune(["graph"])
        left = [each async for each in saver.alist(config)]
        assert 1 < len(left) < len(listed)
        assert (await graph.aget_state(config)).values == before
        await saver.acopy_thread("graph", "copy")
        copied = {"configurable": {"thread_id": "copy"}}
        assert (await graph.aget_state(copied)).values == before
        for place in (config, copied):
            after = await graph.ainvoke({"items": [99]}, place)
            assert after["items"] == [*before["items"], 99, len(before["items"]) + 1]
