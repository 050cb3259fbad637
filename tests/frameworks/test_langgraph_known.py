"""The danger: a saver that reads only what changed since a checkpoint that it remembers gives the graph another
checkpoint."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from stateward.testing import run_daemon

pytest.importorskip("langgraph.checkpoint.base", reason="the extra langgraph is not installed")
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from stateward._operations.steps import ThreadRef
from stateward.langgraph import StatewardSaver
from stateward.langgraph._bases import Base, Bases

CONFIG: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


def change(chance: random.Random, values: dict[str, Any]) -> None:
    """Changes one channel: a list grows, shrinks, is changed within, or turns into something else; values go."""
    name, kind = chance.choice("abc"), chance.random()
    old = values.get(name)
    if isinstance(old, list) and kind < 0.6:
        values[name] = [*old, {"n": chance.random()}]
    elif isinstance(old, list) and old and kind < 0.8:
        values[name] = [*old[: chance.randrange(len(old))], "x"]
    elif kind < 0.9:
        values[name] = chance.choice([[], [1, 2], "text", {"a": 1}])
    else:
        values.pop(name, None)


def test_a_saver_that_remembers_gives_what_one_gives_that_does_not(tmp_path: Path) -> None:
    """After every checkpoint, some of them forks; each fourth is not read, so the changes of several come together."""
    chance, values, made = random.Random(5), dict[str, Any](), list[Any]()
    with (
        run_daemon(tmp_path / "data") as daemon,
        StatewardSaver(daemon.target) as writer,
        StatewardSaver(daemon.target) as reader,
        StatewardSaver(daemon.target, cache_bytes=0) as fresh,
    ):
        for step in range(120):
            if chance.random() < 0.1 and made:
                parent, values = chance.choice(made)
                values = dict(values)
            else:
                parent = made[-1][0] if made else CONFIG
                change(chance, values)
            versions: Any = {name: str(uuid6()) for name in values}
            checkpoint: Any = {**empty_checkpoint(), "id": str(uuid6()), "channel_versions": versions}
            checkpoint["channel_values"] = dict(values)
            made.append((writer.put(parent, checkpoint, {"step": step}, versions), dict(values)))
            if step % 4:
                found = reader.get_tuple(CONFIG)
                assert found == fresh.get_tuple(CONFIG) == writer.get_tuple(CONFIG)
                assert found is not None
                assert found.checkpoint["channel_values"] == values
                past = chance.choice(made)[0]
                assert reader.get_tuple(past) == fresh.get_tuple(past)


def test_a_list_of_large_checkpoints_gives_what_single_reads_give(tmp_path: Path) -> None:
    """A list leaves out states above 3 MiB; the saver then reads them one after the other, as changes."""
    calls, parent, made = list[str](), CONFIG, list[Any]()
    with run_daemon(tmp_path / "data") as daemon, StatewardSaver(daemon.target, cache_bytes=0) as saver:
        values: dict[str, Any] = {"large": []}
        for step in range(14):
            values = {"large": [*values["large"], os.urandom(200_000).hex()], "small": step}
            if step == 11:
                values["large"] = values["large"][:2]
            versions: Any = {name: str(uuid6()) for name in values}
            checkpoint: Any = {**empty_checkpoint(), "id": str(uuid6()), "channel_versions": versions}
            checkpoint["channel_values"] = values
            parent = saver.put(parent, checkpoint, {"step": step}, versions)
            saver.put_writes(parent, [("a", step)], "task")
            made.append(parent)
        single = [saver.get_tuple(config) for config in reversed(made)]
        session = saver._blocking._session
        perform = session.perform
        session.perform = lambda step: (calls.append(step.method), perform(step))[1]  # type: ignore[method-assign]
        assert list(saver.list(CONFIG)) == single
    assert calls.count("ListCheckpoints") == 2
    assert calls.count("Hydrate") < 14


def test_the_last_checkpoint_is_remembered_however_large_it_is() -> None:
    """To read it back before each write would take far longer than all else; others go."""
    bases = Bases(5000)
    one, two = ThreadRef("default", "one", "main"), ThreadRef("default", "two", "main")
    large = Base(version=1, rest=("json", b"x" * 9000))
    bases.keep(one, "1", large)
    assert bases.get(one, "1") is large
    bases.keep(two, "1", Base(version=1))
    assert (bases.get(one, "1"), bases.newest(two)) == (None, Base(version=1))
    nothing = Bases(0)
    nothing.keep(one, "1", Base(version=1))
    assert nothing.newest(one) is None
