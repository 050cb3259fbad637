"""A whole run of a LangGraph agent: its loop, its savers, every mode of durability. Savers in turn.

The agent is one node that adds a message of 2 KB and comes again, ``STEPS`` times. What is measured is the wall time of
``ainvoke`` for a step, so it holds LangGraph's own work, too: the saver in memory shows how much that is.
"""

from __future__ import annotations

import asyncio
import importlib.util
import operator
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypedDict

from tests.bench.field import Field
from tests.bench.payload import Payload
from tests.bench.report import Section
from tests.bench.sections import Effort
from tests.bench.sections.storage import used_bytes

OURS, SQLITE, POSTGRES, MEMORY = "stateward, StatewardSaver", "AsyncSqliteSaver", "AsyncPostgresSaver", "InMemorySaver"
MODES = ("sync", "async", "exit")
STEPS, RUNS, MESSAGE_BYTES = 200, 5, 2000


class Messages(TypedDict):
    """The state of the agent."""

    messages: Annotated[list[dict[str, str]], operator.add]


def make_graph(steps: int, saver: Any) -> Any:
    """An agent that calls itself."""
    from langgraph.graph import END, START, StateGraph

    async def agent(state: Messages) -> Messages:
        del state
        return {"messages": [{"role": "assistant", "content": os.urandom(MESSAGE_BYTES // 2).hex()}]}

    def after(state: Messages) -> str:
        return "agent" if len(state["messages"]) <= steps else END

    graph = StateGraph(Messages)
    graph.add_node("agent", agent)
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", after, ["agent", END])
    return graph.compile(checkpointer=saver)


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """Runs of all savers in turn, for each mode."""
    del payload
    steps, runs = (STEPS // 10, 2) if effort.quick else (STEPS, RUNS)
    section = Section("graph", f"a whole LangGraph run, {steps} steps with messages of 2 KB")
    with field.own_daemon("graph") as daemon:
        times, sizes = asyncio.run(_run_all(field, daemon, steps, runs))
    for mode in MODES:
        for name in sizes:
            step_s = median(times[name, mode])
            ratio = {"x_sqlite": step_s / median(times[SQLITE, mode])} if SQLITE in sizes else {}
            section.add(name, mode, step_ms=step_s * 1e3, disk_bytes=sizes[name], **ratio)
    section.notes.append(f"wall time for a step; {runs} runs of each, in turn; on disk: all runs of all modes")
    if SQLITE not in sizes:
        section.notes.append(f"{SQLITE} is left out: langgraph-checkpoint-sqlite is not installed: make bench")
    yield section


async def _run_all(
    field: Field, daemon: Any, steps: int, runs: int
) -> tuple[dict[tuple[str, str], list[float]], dict[str, float | None]]:
    """Returns seconds for a step by saver and mode, and the bytes on the disk by saver."""
    database, times = field.work / "graph.sqlite", dict[tuple[str, str], list[float]]()
    async with _savers(field, daemon.target, database) as savers:
        before_bytes = _table_bytes(field) if POSTGRES in savers else 0
        for number in range(runs + 1):  # the first one warms up
            for mode in MODES:
                for name, saver in savers.items():
                    seconds = await _run(saver, f"{mode}-{number}", steps, mode)
                    if number:
                        times.setdefault((name, mode), []).append(seconds / steps)
        names = list(savers)
    sizes: dict[str, float | None] = dict.fromkeys(names)
    if POSTGRES in sizes:
        sizes[POSTGRES] = _table_bytes(field) - before_bytes
    daemon.stop()
    sizes[OURS] = used_bytes(daemon.data_dir)
    files = list(database.parent.glob(database.name + "*"))
    if SQLITE in sizes:
        sizes[SQLITE] = sum(file.stat().st_size for file in files)
    for file in files:
        file.unlink()
    return times, sizes


async def _run(saver: Any, thread: str, steps: int, mode: Any) -> float:
    """One run. Returns seconds."""
    graph = make_graph(steps, saver)
    config: Any = {"configurable": {"thread_id": thread}, "recursion_limit": steps + 10}
    began = time.perf_counter()
    found = await graph.ainvoke({"messages": [{"role": "user", "content": "go"}]}, config, durability=mode)
    taken = time.perf_counter() - began
    assert len(found["messages"]) == steps + 1
    return taken


@asynccontextmanager
async def _savers(field: Field, target: str, database: Path) -> AsyncIterator[dict[str, Any]]:
    """All savers that are installed, as their documentation opens them."""
    from langgraph.checkpoint.memory import InMemorySaver

    from stateward.langgraph import StatewardSaver

    async with AsyncExitStack() as stack:
        savers: dict[str, Any] = {MEMORY: InMemorySaver()}
        if field.with_peers and _has("sqlite"):
            from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

            savers[SQLITE] = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(str(database)))
            await savers[SQLITE].setup()
            await savers[SQLITE].conn.execute("PRAGMA synchronous=FULL")
        if "PostgreSQL" in field.servers and _has("postgres"):
            from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

            address = field.servers["PostgreSQL"].address
            savers[POSTGRES] = await stack.enter_async_context(AsyncPostgresSaver.from_conn_string(address))
            await savers[POSTGRES].setup()
        savers[OURS] = await stack.enter_async_context(StatewardSaver(target))
        yield savers


def _table_bytes(field: Field) -> int:
    """What the tables of LangGraph's saver take in PostgreSQL: other sections write into them, too."""
    import psycopg

    query = "SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class WHERE relname LIKE 'checkpoint%'"
    with psycopg.connect(field.servers["PostgreSQL"].address) as connection:
        row = connection.execute(query + " AND relkind = 'r'").fetchone()
    return int(row[0]) if row else 0


def _has(saver: str) -> bool:
    return importlib.util.find_spec("langgraph.checkpoint") is not None and (
        importlib.util.find_spec(f"langgraph.checkpoint.{saver}") is not None
    )
