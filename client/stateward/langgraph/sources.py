"""Databases of LangGraph's own savers, opened to be read: SQLite files and PostgreSQL.

    with open_source("checkpoints.sqlite") as source:
        for thread, count in source.threads(): ...

Checkpoints come from LangGraph's saver itself. Pending writes come with index and task path, which it leaves out.
Nothing is written to the database.
"""

# ruff: noqa: PLC0415  each kind of database needs a package of its own

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from stateward._version import install_command
from stateward.langgraph._verbatim import Encrypted, Verbatim

KEY_VARIABLE = "LANGGRAPH_AES_KEY"
_POSTGRES = ("postgres://", "postgresql://")


class SourceInvalid(ValueError):
    """Raised if the database cannot be read. The message names it, and says why."""


class Key(NamedTuple):
    """A checkpoint of a thread."""

    checkpoint_ns: str
    checkpoint_id: str


class Row(NamedTuple):
    """A pending write as it is stored."""

    task_path: str
    task_id: str
    place: int
    """Its index among the writes of the task; below 0 for special channels."""
    channel: str
    value: tuple[str, bytes]


@dataclass(frozen=True)
class _Dialect:
    """What the two databases call differently."""

    writes: str
    value: str
    find_store: str
    """Selects a row if there is a table of LangGraph's store."""
    task_path: str = "task_path"


@dataclass(frozen=True)
class Source:
    """An open database. Safe for threads: they take turns."""

    name: str
    """For messages, without a password."""
    serde: SerializerProtocol
    _saver: BaseCheckpointSaver[Any]
    _select: Callable[[str, Sequence[str]], list[Any]]
    _dialect: _Dialect
    _failures: tuple[type[Exception], ...]

    def threads(self) -> list[tuple[str, int]]:
        """The threads with their numbers of checkpoints. The thread that changed last is the last one."""
        query = "SELECT thread_id, count(*) FROM checkpoints GROUP BY thread_id ORDER BY max(checkpoint_id), thread_id"
        return [(thread, count) for thread, count in self._rows(query)]

    def checkpoints(self, thread: str) -> list[Key]:
        """The checkpoints of a thread in all its namespaces, oldest first."""
        query = "SELECT checkpoint_ns, checkpoint_id FROM checkpoints WHERE thread_id = ?"
        return sorted((Key(*row) for row in self._rows(query, thread)), key=lambda key: (key[1], key[0]))

    def store_items(self) -> int:
        """The number of items in LangGraph's store (long-term memory), if the database has one."""
        if not self._rows(self._dialect.find_store):
            return 0
        return int(self._rows("SELECT count(*) FROM store")[0][0])

    def get(self, thread: str, key: Key) -> CheckpointTuple | None:
        """A checkpoint as LangGraph's saver returns it; None = it is gone."""
        with self._reading():
            return self._saver.get_tuple({"configurable": {"thread_id": thread, **key._asdict()}})

    def writes(self, thread: str, key: Key) -> list[Row]:
        """The pending writes of a checkpoint, in the order in which LangGraph applies them."""
        dialect = self._dialect
        query = (
            f"SELECT {dialect.task_path}, task_id, idx, channel, type, {dialect.value} FROM {dialect.writes} "  # noqa: S608
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
        )
        return sorted(
            Row(path, task_id, place, channel, (kind, bytes(value)))
            for path, task_id, place, channel, kind, value in self._rows(query, thread, *key)
        )

    def load(self, value: tuple[str, bytes]) -> Any:
        """The value of a pending write."""
        with self._reading():
            return self.serde.loads_typed(value)

    def _rows(self, query: str, *values: str) -> list[Any]:
        with self._reading():
            return self._select(query, values)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except Encrypted as error:
            raise SourceInvalid(f"{self.name}: {error}; set {KEY_VARIABLE} to the key that LangGraph used") from None
        except self._failures as error:
            raise SourceInvalid(f"{self.name}: {_first_line(error)}") from error


@contextmanager
def open_source(place: str) -> Iterator[Source]:
    """Opens a database: a path of an SQLite file, or a URL of PostgreSQL. Raises SourceInvalid."""
    serde = _serializer()
    if place.startswith(_POSTGRES):
        with _open_postgres(place, serde) as source:
            yield source
        return
    if "://" in place:
        raise SourceInvalid(
            f"{place.split(':', 1)[0]}:// is not a database of LangGraph; give a file or postgresql://…"
        )
    with _open_sqlite(Path(place), serde) as source:
        yield source


def _serializer() -> SerializerProtocol:
    if not os.environ.get(KEY_VARIABLE):
        return Verbatim()
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

    try:
        return EncryptedSerializer.from_pycryptodome_aes(serde=Verbatim())
    except (ImportError, ValueError) as error:
        raise SourceInvalid(f"{KEY_VARIABLE} is set, but cannot be used: {error}") from None


@contextmanager
def _open_sqlite(path: Path, serde: SerializerProtocol) -> Iterator[Source]:
    try:
        from langgraph.checkpoint.sqlite import SqliteSaver
    except ImportError as error:
        raise _missing("langgraph-checkpoint-sqlite", error) from None
    if not path.is_file():
        raise SourceInvalid(f"{path}: there is no such file")
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    except sqlite3.Error as error:
        raise SourceInvalid(f"{path}: {error}") from None
    with closing(connection):
        try:
            columns = {row[1] for row in connection.execute("PRAGMA table_info(writes)")}
            connection.execute("SELECT checkpoint, metadata FROM checkpoints LIMIT 1")
            connection.execute("SELECT idx, value FROM writes LIMIT 1")
        except sqlite3.Error as error:
            raise SourceInvalid(f"{path} is not a database of LangGraph's SqliteSaver: {error}") from None
        saver = SqliteSaver(connection, serde=serde)
        saver.is_setup = True  # the tables are there, and this connection may not make any
        saver._has_task_path = "task_path" in columns

        def select(query: str, values: Sequence[str]) -> list[Any]:
            with saver.lock:
                return connection.execute(query, values).fetchall()

        find_store = "SELECT 1 FROM pragma_table_info('store') WHERE name = 'prefix'"
        dialect = _Dialect("writes", "value", find_store, "task_path" if saver._has_task_path else "''")
        yield Source(str(path), serde, saver, select, dialect, (sqlite3.Error,))


@contextmanager
def _open_postgres(url: str, serde: SerializerProtocol) -> Iterator[Source]:
    try:
        import psycopg
        from langgraph.checkpoint.postgres import PostgresSaver
        from psycopg.rows import dict_row, tuple_row
    except ImportError as error:
        raise _missing("langgraph-checkpoint-postgres with psycopg", error) from None
    try:
        connection = psycopg.connect(url, autocommit=True, prepare_threshold=None, row_factory=dict_row)
    except psycopg.Error as error:
        raise SourceInvalid(f"PostgreSQL cannot be reached: {_first_line(error)}") from None
    with closing(connection):
        name = f"PostgreSQL database {connection.info.dbname!r}"
        try:
            connection.execute("SELECT checkpoint, metadata FROM checkpoints LIMIT 0")
            connection.execute("SELECT task_path, idx, blob FROM checkpoint_writes LIMIT 0")
            connection.execute("SELECT channel, version, blob FROM checkpoint_blobs LIMIT 0")
        except psycopg.Error as error:
            advice = "is not one of LangGraph's PostgresSaver, or of an old one that needs its setup()"
            raise SourceInvalid(f"{name} {advice}: {_first_line(error)}") from None
        saver = PostgresSaver(connection, serde=serde)

        def select(query: str, values: Sequence[str]) -> list[Any]:
            with saver.lock, connection.cursor(row_factory=tuple_row) as cursor:
                return cursor.execute(query.replace("?", "%s"), values).fetchall()

        find_store = "SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass('store') AND attname = 'prefix'"
        yield Source(name, serde, saver, select, _Dialect("checkpoint_writes", "blob", find_store), (psycopg.Error,))


def _missing(package: str, error: ImportError) -> SourceInvalid:
    return SourceInvalid(f"this needs {package} ({error}); run: {install_command('langgraph-import')}")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
