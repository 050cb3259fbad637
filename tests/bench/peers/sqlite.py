"""SQLite in this process, without a library between: WAL, and synchronous=FULL, which syncs every commit."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path

from tests.bench.peers.base import Call, Contender, WholeState

SQLITE_ROW, SQLITE_WHOLE = "SQLite, a row per message", "SQLite, whole state"


def open_sqlite(file: Path) -> sqlite3.Connection:
    """A connection that other threads may use too, under a lock."""
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    assert connection.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    connection.execute("PRAGMA synchronous=FULL")
    return connection


class SqliteRows(Contender):
    """One INSERT of the message. Nothing but appends, and no version to compare with: the least a store can do."""

    name = SQLITE_ROW

    def __init__(self, file: Path) -> None:
        self.connection = open_sqlite(file)
        columns = "thread TEXT, place INTEGER, message BLOB, PRIMARY KEY (thread, place)"
        self.connection.execute(f"CREATE TABLE IF NOT EXISTS messages ({columns})")
        self.count: dict[str, int] = {}

    def fill(self, thread: str, messages: list[bytes]) -> None:
        self.count[thread] = len(messages)
        rows = [(thread, place, message) for place, message in enumerate(messages, 1)]
        self.connection.execute("BEGIN")
        self.connection.executemany("INSERT INTO messages VALUES (?, ?, ?)", rows)
        self.connection.execute("COMMIT")

    def step(self, thread: str, message: bytes) -> Call:
        self.count[thread] += 1
        row = (thread, self.count[thread], message)
        return partial(self.connection.execute, "INSERT INTO messages VALUES (?, ?, ?)", row)

    def read(self, thread: str) -> Call:
        query = "SELECT message FROM messages WHERE thread = ? ORDER BY place"
        return lambda: self.connection.execute(query, (thread,)).fetchall()

    def close(self) -> None:
        self.connection.close()


class SqliteWhole(WholeState):
    """One INSERT of the whole state."""

    name = SQLITE_WHOLE

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.connection = open_sqlite(file)
        columns = "thread TEXT, version INTEGER, state BLOB, PRIMARY KEY (thread, version)"
        self.connection.execute(f"CREATE TABLE IF NOT EXISTS states ({columns})")

    def put(self, thread: str, version: int, state: bytes) -> None:
        self.connection.execute("INSERT INTO states VALUES (?, ?, ?)", (thread, version, state))

    def read(self, thread: str) -> Call:
        query = "SELECT state FROM states WHERE thread = ? ORDER BY version DESC LIMIT 1"
        return lambda: self.connection.execute(query, (thread,)).fetchone()

    def close(self) -> None:
        self.connection.close()
