"""PostgreSQL over its unix socket through psycopg: fsync=on, synchronous_commit=on, prepared statements."""

from __future__ import annotations

from functools import partial

import psycopg
from tests.bench.peers.base import Call, Contender, WholeState

POSTGRES_ROW, POSTGRES_WHOLE = "PostgreSQL, a row per message", "PostgreSQL, whole state"
INSERT_MESSAGE = "INSERT INTO messages VALUES (%s, %s, %s)"


def open_postgres(conninfo: str) -> psycopg.Connection:
    """A connection on which every statement is a transaction."""
    return psycopg.connect(conninfo, autocommit=True, prepare_threshold=0)


class PostgresRows(Contender):
    """One INSERT of the message."""

    name = POSTGRES_ROW

    def __init__(self, conninfo: str) -> None:
        self.connection = open_postgres(conninfo)
        columns = "thread text, place bigint, message bytea, PRIMARY KEY (thread, place)"
        self.connection.execute(f"CREATE TABLE IF NOT EXISTS messages ({columns})")
        self.count: dict[str, int] = {}

    def fill(self, thread: str, messages: list[bytes]) -> None:
        self.count[thread] = len(messages)
        with self.connection.transaction(), self.connection.cursor() as cursor:
            cursor.executemany(INSERT_MESSAGE, [(thread, place, each) for place, each in enumerate(messages, 1)])

    def step(self, thread: str, message: bytes) -> Call:
        self.count[thread] += 1
        return partial(self.connection.execute, INSERT_MESSAGE, (thread, self.count[thread], message))

    def read(self, thread: str) -> Call:
        query = "SELECT message FROM messages WHERE thread = %s ORDER BY place"
        return lambda: self.connection.execute(query, (thread,), binary=True).fetchall()

    def close(self) -> None:
        self.connection.close()


class PostgresWhole(WholeState):
    """One INSERT of the whole state."""

    name = POSTGRES_WHOLE

    def __init__(self, conninfo: str) -> None:
        super().__init__()
        self.connection = open_postgres(conninfo)
        columns = "thread text, version bigint, state bytea, PRIMARY KEY (thread, version)"
        self.connection.execute(f"CREATE TABLE IF NOT EXISTS states ({columns})")

    def put(self, thread: str, version: int, state: bytes) -> None:
        self.connection.execute("INSERT INTO states VALUES (%s, %s, %b)", (thread, version, state))

    def read(self, thread: str) -> Call:
        query = "SELECT state FROM states WHERE thread = %s ORDER BY version DESC LIMIT 1"
        return lambda: self.connection.execute(query, (thread,), binary=True).fetchone()

    def close(self) -> None:
        self.connection.close()
