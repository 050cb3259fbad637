"""LangGraph's checkpointers as a graph calls them: steps, reads, a list, and a fan-out of subgraphs; both in turn.

A step is `aput` of a checkpoint whose list has one more message of 2 KB, and `aput_writes` of what a task wrote.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.field import Field
from tests.bench.payload import Payload
from tests.bench.processes import cpu_s
from tests.bench.report import Section
from tests.bench.rounds import p50_ms, p99_ms
from tests.bench.sections import Effort
from tests.bench.sections.storage import used_bytes

OURS, THEIRS = "stateward, StatewardSaver", "AsyncSqliteSaver"
STEPS = (400, 2000)
KINDS = ("dicts", "messages")
MESSAGE_BYTES = 2000
READS, LISTED, SUBGRAPHS, FANS = 20, 10, 100, 5


def cases() -> list[str]:
    """Names of the cases."""
    return [f"{steps:,} {kind}" for steps in STEPS for kind in KINDS]


@dataclass
class Walk:
    """One saver on its way through a thread."""

    saver: Any
    pid: int | None
    steps: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    lists: list[float] = field(default_factory=list)
    cpu: float = 0.0
    config: Any = field(default_factory=lambda: {"configurable": {"thread_id": "t", "checkpoint_ns": ""}})
    version: Any = None

    async def step(self, checkpoint: dict[str, Any], number: int, message: Any) -> None:
        """One step of a graph."""
        self.version = self.saver.get_next_version(self.version, None)
        changed = {"messages": self.version, "branch:to:a": self.version}
        made: Any = {**checkpoint, "channel_versions": {**changed, "__start__": "1"}}
        with self.timed(self.steps):
            metadata: Any = {"source": "loop", "step": number, "parents": {}}
            self.config = await self.saver.aput(self.config, made, metadata, changed)
            await self.saver.aput_writes(self.config, [("messages", [message])], str(uuid.uuid4()), "~__pregel_pull, a")

    def timed(self, times: list[float]) -> _Timed:
        """Measures what is done within, and the processor's time of client and server."""
        return _Timed(self, times)

    def used(self) -> float:
        """Processor's time so far, in seconds."""
        return time.process_time() + (cpu_s(self.pid) if self.pid is not None else 0.0)


class _Timed:
    def __init__(self, walk: Walk, times: list[float]) -> None:
        self._walk, self._times = walk, times

    def __enter__(self) -> None:
        self._cpu, self._began = self._walk.used(), time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._times.append(time.perf_counter() - self._began)
        self._walk.cpu += self._walk.used() - self._cpu


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """Steps of both savers in turn, then reads and lists of the whole thread, then the fan-out."""
    section = Section("saver", "LangGraph's checkpointers")
    for case in cases():
        steps, kind = case.replace(",", "").split()
        asyncio.run(_measure(field, section, case, int(steps) // (20 if effort.quick else 1), kind))
    section.notes.append("a step is aput and aput_writes; CPU is that of client and server together; both savers sync")
    if not _has_sqlite():
        section.notes.append(f"{THEIRS} is left out: langgraph-checkpoint-sqlite is not installed: make bench")
    yield section


def _has_sqlite() -> bool:
    return importlib.util.find_spec("langgraph.checkpoint.sqlite") is not None


async def _measure(place: Field, section: Section, case: str, steps: int, kind: str) -> None:
    from stateward.langgraph import StatewardSaver

    name = case.replace(" ", "-").replace(",", "")
    database = place.work / f"saver-{name}.sqlite"
    with place.own_daemon(f"saver-{name}") as daemon:
        async with AsyncExitStack() as stack:
            ours = await stack.enter_async_context(StatewardSaver(daemon.target))
            walks = {OURS: Walk(ours, daemon.pid)}
            if _has_sqlite():
                from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

                theirs = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(str(database)))
                walks[THEIRS] = Walk(theirs, None)
            await _walk(walks, steps, kind)
            fans: dict[str, list[float]] = {who: [] for who in walks}
            for number in range(FANS):
                for who, walk in walks.items():
                    fans[who].append(await _fan_out(walk.saver, f"fan-{number}"))
        daemon.stop()
        sizes = {OURS: used_bytes(daemon.data_dir), THEIRS: _database_bytes(database)}
    _remove(database)
    for who, walk in walks.items():
        ratio = {"x_sqlite": p50_ms(walk.steps) / p50_ms(walks[THEIRS].steps)} if THEIRS in walks else {}
        section.add(
            who, case, p50_ms=p50_ms(walk.steps), p99_ms=p99_ms(walk.steps), cpu_ms=walk.cpu / steps * 1e3,
            get_ms=p50_ms(walk.reads), list_ms=p50_ms(walk.lists), fan_out_ms=p50_ms(fans[who]), disk_bytes=sizes[who],
            **ratio,
        )  # fmt: skip


async def _walk(walks: dict[str, Walk], steps: int, kind: str) -> None:
    from langchain_core.messages import HumanMessage
    from langgraph.checkpoint.base.id import uuid6

    messages: list[Any] = []
    for number in range(steps):
        text = os.urandom(MESSAGE_BYTES // 2).hex()
        is_dict = kind == "dicts"
        messages.append({"role": "user", "content": text} if is_dict else HumanMessage(text, id=str(uuid.uuid4())))
        checkpoint = {
            "v": 4, "id": str(uuid6()), "ts": "", "versions_seen": {}, "updated_channels": None,
            "channel_values": {"messages": list(messages), "branch:to:a": None},
        }  # fmt: skip
        for walk in walks.values():
            await walk.step(checkpoint, number, messages[-1])
    head: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    cpu = {who: walk.cpu for who, walk in walks.items()}
    for _ in range(READS):
        for walk in walks.values():
            with walk.timed(walk.reads):
                found = await walk.saver.aget_tuple(head)
            assert len(found.checkpoint["channel_values"]["messages"]) == steps
            with walk.timed(walk.lists):
                listed = [each async for each in walk.saver.alist(head, limit=LISTED)]
            assert len(listed) == LISTED
    for who, walk in walks.items():
        walk.cpu = cpu[who]  # of the steps alone


async def _fan_out(saver: Any, thread: str) -> float:
    """A checkpoint and a write in each of many namespaces at once. Returns seconds."""
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.base.id import uuid6

    async def one(number: int) -> None:
        place: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": f"task:{number}"}}
        version = saver.get_next_version(None, None)
        made: Any = {**empty_checkpoint(), "id": str(uuid6()), "channel_values": {"a": number}}
        made["channel_versions"] = {"a": version}
        config = await saver.aput(place, made, {"step": 0}, {"a": version})
        await saver.aput_writes(config, [("a", number)], str(uuid.uuid4()))

    began = time.perf_counter()
    await asyncio.gather(*map(one, range(SUBGRAPHS)))
    return time.perf_counter() - began


def _files(database: Path) -> list[Path]:
    return list(database.parent.glob(database.name + "*"))


def _database_bytes(database: Path) -> int:
    return sum(path.stat().st_size for path in _files(database))


def _remove(database: Path) -> None:
    for path in _files(database):
        path.unlink()
