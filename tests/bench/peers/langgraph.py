"""LangGraph's savers through their public interface, with what its loop calls for one step of one node: `put_writes` of
the node's message, then `put` of the checkpoint whose channel `messages` holds the list.

Messages are plain dicts, which the savers' serializer takes fastest; LangChain's message objects cost more.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from tests.bench.peers.base import Call, Contender

LANGGRAPH_SQLITE, LANGGRAPH_POSTGRES = "LangGraph SQLite saver", "LangGraph Postgres saver"


class LangGraph(Contender):
    """Any of its savers."""

    def __init__(self, name: str, saver: BaseCheckpointSaver, stack: ExitStack) -> None:
        self.name, self.saver, self.stack = name, saver, stack
        self.messages: dict[str, list] = {}
        self.config: dict[str, dict] = {}
        self.channel_version: dict[str, str | None] = {}
        self.steps = 0

    def fill(self, thread: str, messages: list[bytes]) -> None:
        self.messages[thread] = [json.loads(message) for message in messages]
        self.config[thread] = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        self.channel_version[thread] = None
        self._put(thread, self._checkpoint(thread))

    def step(self, thread: str, message: bytes) -> Call:
        value, task = json.loads(message), str(uuid6())
        self.messages[thread].append(value)
        checkpoint = self._checkpoint(thread)

        def save() -> None:
            self.saver.put_writes(self.config[thread], [("messages", [value])], task)
            self._put(thread, checkpoint)

        return save

    def read(self, thread: str) -> Call:
        config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        return lambda: self.saver.get_tuple(config)

    def close(self) -> None:
        self.stack.close()

    def _checkpoint(self, thread: str) -> dict:
        self.steps += 1
        version = self.channel_version[thread] = self.saver.get_next_version(self.channel_version[thread], None)
        return empty_checkpoint() | {
            "id": str(uuid6(clock_seq=self.steps)),
            "ts": datetime.now(UTC).isoformat(),
            "channel_values": {"messages": self.messages[thread]},
            "channel_versions": {"messages": version},
            "versions_seen": {"agent": {"messages": version}},
            "updated_channels": ["messages"],
        }

    def _put(self, thread: str, checkpoint: dict) -> None:
        metadata = {"source": "loop", "step": self.steps, "parents": {}}
        new_versions = dict(checkpoint["channel_versions"])
        self.config[thread] = self.saver.put(self.config[thread], checkpoint, metadata, new_versions)


def open_langgraph_sqlite(file: Path) -> LangGraph:
    """The saver as its documentation opens it: it sets WAL itself, and SQLite's default is synchronous=FULL."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    stack = ExitStack()
    saver = stack.enter_context(SqliteSaver.from_conn_string(str(file)))
    saver.setup()
    saver.conn.execute("PRAGMA synchronous=FULL")
    return LangGraph(LANGGRAPH_SQLITE, saver, stack)


def open_langgraph_postgres(conninfo: str) -> LangGraph:
    """The saver as its documentation opens it."""
    from langgraph.checkpoint.postgres import PostgresSaver

    stack = ExitStack()
    saver = stack.enter_context(PostgresSaver.from_conn_string(conninfo))
    saver.setup()
    return LangGraph(LANGGRAPH_POSTGRES, saver, stack)
