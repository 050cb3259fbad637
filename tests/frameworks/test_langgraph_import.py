"""The danger: `stateward import langgraph` loses, changes or doubles a checkpoint or a pending write of a database,
also after a kill."""

from __future__ import annotations

import json
import math
import re
import sqlite3
import subprocess
import sys
import time
import types
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import make_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.bench.servers import PeerAbsent, run_postgres
from tests.cli.conftest import COMMAND, Answer, environment, run, run_on_terminal

from stateward.testing import Daemon, run_daemon

pytest.importorskip("langgraph.graph", reason="the extra langgraph is not installed")
pytest.importorskip("langgraph.checkpoint.sqlite", reason="the extra langgraph-import is not installed")
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command
from tests.frameworks.graphs import QUESTION, build, play
from tests.frameworks.test_langgraph_delta import CHANNELS, write_history

from stateward.langgraph import StatewardSaver
from stateward.langgraph._verbatim import Verbatim, equal

THREADS = ("travelled", "asking", "seat")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("import") / "data") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[str]:
    """The URL of a server of these tests, without a database's name."""
    pytest.importorskip("langgraph.checkpoint.postgres", reason="the extra langgraph-import is not installed")
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # the server runs as another user, if this is root
        try:
            with run_postgres(folder / "data", folder / "s") as server:
                yield "postgresql://bench@/{}?host=" + re.findall(r"host=(\S+)", server.address)[0]
        except PeerAbsent as error:
            pytest.skip(f"PostgreSQL: {error}")


@pytest.fixture
def postgres(postgres_server: str) -> str:
    """The URL of an empty database of the test's own."""
    import psycopg

    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_server.format("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres_server.format(name)


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


@contextmanager
def open_sqlite(path: Path, **options: Any) -> Iterator[SqliteSaver]:
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        yield SqliteSaver(connection, **options)


@contextmanager
def open_postgres(url: str) -> Iterator[Any]:
    from langgraph.checkpoint.postgres import PostgresSaver

    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        yield saver


def fill(saver: Any) -> None:
    """Runs graphs: one with a fork by time travel, one that waits in the root, and one that waits in a subgraph."""
    graph = build(saver)
    play(graph, "travelled")
    config = {"configurable": {"thread_id": "travelled"}}
    past = next(each for each in graph.get_state_history(config) if each.next == ("approve",))
    graph.update_state(past.config, {"steps": 10}, as_node="quote")
    play(graph, "travelled")
    graph.invoke(QUESTION, {"configurable": {"thread_id": "asking"}})
    config = {"configurable": {"thread_id": "seat"}}
    graph.invoke(QUESTION, config)
    graph.invoke(Command(resume=True), config)


def contents(saver: Any, thread: str) -> list[Any]:
    """All that a saver returns of a thread."""
    return list(saver.list({"configurable": {"thread_id": thread}}))


def put(saver: Any, config: Any, **values: Any) -> Any:
    """Writes a checkpoint after the one that `config` names, and a pending write for it."""
    versions: Any = {name: str(uuid6()) for name in values}
    checkpoint: Any = {**empty_checkpoint(), "id": str(uuid6()), "channel_values": values, "channel_versions": versions}
    made = saver.put(config, checkpoint, {"step": 1}, versions)
    saver.put_writes(made, [("a", values)], "task")
    return made


def place(thread: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


def import_(daemon: Daemon, namespace: str, source: Path | str, *options: str, **more: str) -> Answer:
    return run("--target", daemon.target, "-n", namespace, "import", "langgraph", source, *options, **more)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    with open_sqlite(tmp_path / "it's 100% #1?.sqlite") as saver:
        fill(saver)
    return tmp_path / "it's 100% #1?.sqlite"


def check_equal(daemon: Daemon, namespace: str, source: Any) -> None:
    with StatewardSaver(daemon.target, namespace=namespace) as saver:
        for thread in THREADS:
            expected = contents(source, thread)
            assert len(expected) > 5
            assert contents(saver, thread) == expected
            for each in expected:
                assert saver.get_tuple(each.config) == each
            newest = source.get_tuple(place(thread))
            assert saver.get_tuple(place(thread)) == newest
        assert any(each.pending_writes for thread in THREADS for each in contents(source, thread))


def test_a_sqlite_database_reads_as_before(daemon: Daemon, namespace: str, filled: Path) -> None:
    """Checkpoints of all namespaces, parents, metadata and pending writes; and the graphs go on from there."""
    before = filled.read_bytes()
    answer = import_(daemon, namespace, filled)
    assert (answer.code, answer.err) == (0, "")
    assert filled.read_bytes() == before
    with open_sqlite(filled) as source:
        check_equal(daemon, namespace, source)
        expected = {thread: play(build(source), thread) for thread in THREADS}
    with StatewardSaver(daemon.target, namespace=namespace) as saver:
        assert {thread: play(build(saver), thread) for thread in THREADS} == expected


def test_a_postgres_database_reads_as_before(daemon: Daemon, namespace: str, postgres: str) -> None:
    """Also checkpoints of an old form, which LangGraph's saver changes as it reads them."""
    import psycopg

    with open_postgres(postgres) as source:
        fill(source)
        with psycopg.connect(postgres) as connection:
            connection.execute(
                "UPDATE checkpoints SET checkpoint = jsonb_set(checkpoint, '{v}', '3') WHERE thread_id = 'asking'"
            )
        answer = import_(daemon, namespace, postgres)
        assert (answer.code, answer.err) == (0, "")
        check_equal(daemon, namespace, source)
        assert import_(daemon, namespace, postgres).code == 0
        expected = {thread: play(build(source), thread) for thread in THREADS}
    with StatewardSaver(daemon.target, namespace=namespace) as saver:
        assert {thread: play(build(saver), thread) for thread in THREADS} == expected


def test_the_order_and_the_paths_of_tasks_stay(daemon: Daemon, namespace: str, tmp_path: Path) -> None:
    """Writes to special channels have places of their own, and later ones replace them."""
    path = tmp_path / "a.sqlite"
    with open_sqlite(path) as source:
        made = put(source, place("t"), a=1)
        source.put_writes(made, [("b", 1), ("__error__", "x"), ("c", None)], "a-task", "~z")
        source.put_writes(made, [("b", b"2"), ("d", [None, b"3"])], "z-task", "~a")
        source.put_writes(made, [("__interrupt__", 1)], "z-task", "~a")
        expected = contents(source, "t")
        assert import_(daemon, namespace, path).code == 0
        with StatewardSaver(daemon.target, namespace=namespace) as saver:
            assert contents(saver, "t") == expected
            for each in (saver, source):
                each.put_writes(made, [("b", "kept as it was")], "z-task", "~a")
                each.put_writes(made, [("__interrupt__", 2)], "z-task", "~a")
            assert contents(saver, "t") == contents(source, "t")


def test_an_import_that_was_killed_goes_on(tmp_path: Path) -> None:
    """Kill -9 of the import, and of the daemon under the next one: what is there is skipped, nothing is there twice."""
    path, count = tmp_path / "a.sqlite", 200
    with open_sqlite(path) as source:
        config, made = place("t"), list[int]()
        source.conn.execute("PRAGMA synchronous = OFF")
        for number in range(count):
            made.append(number)
            config = put(source, config, numbers=list(made))
        expected = contents(source, "t")
    with run_daemon(tmp_path / "data") as daemon, daemon.client() as client:
        command = [*COMMAND, "--target", daemon.target, "import", "langgraph", str(path)]

        def start(versions: int) -> subprocess.Popen[str]:
            """An import that has gone so far."""
            process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
            end = time.monotonic() + 60
            while next((info.version for info in client.threads()), 0) < versions:
                assert time.monotonic() < end
                time.sleep(0.01)
            return process

        with start(20) as process:
            process.kill()
        before = client.thread("t").info().version
        with start(before + 20) as process:
            daemon.kill()
            daemon.start()
            out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert 20 <= before < before + 20 < count
        found = re.search(r"(\d+) written and compared, (\d+) were there already", out)
        assert found, out
        written, skipped = map(int, found.groups())
        assert written + skipped == count
        assert before <= skipped <= before + 1  # the daemon may have answered the last save of the dead after our look
        assert client.thread("t").info().version == count
        with StatewardSaver(daemon.target) as saver:
            assert contents(saver, "t") == expected


def test_delta_channels_have_the_same_history(daemon: Daemon, namespace: str, tmp_path: Path) -> None:
    """Also where checkpoints have random parents."""
    path = tmp_path / "a.sqlite"
    with open_sqlite(path) as source, StatewardSaver(daemon.target, namespace=namespace) as saver:
        written = [(f"t{seed}", each) for seed in range(4) for each in write_history(source, seed)]
        assert import_(daemon, namespace, path).code == 0
        for thread, each in written:
            config: Any = {"configurable": {**place(thread)["configurable"], "checkpoint_id": each}}
            expected = source.get_delta_channel_history(config=config, channels=CHANNELS)
            assert saver.get_delta_channel_history(config=config, channels=CHANNELS) == expected


def test_a_write_that_a_kill_left_out_is_found(daemon: Daemon, namespace: str, tmp_path: Path) -> None:
    """A kill between a checkpoint and its pending writes."""
    path = tmp_path / "a.sqlite"
    with open_sqlite(path) as source:
        made = put(source, place("t"), a=1)
        assert import_(daemon, namespace, path).code == 0
        source.put_writes(made, [("late", 1)], "task-2")
        answer = import_(daemon, namespace, path, "--dry-run")
        assert "1 checkpoint without some pending writes" in answer.out
        assert import_(daemon, namespace, path).code == 0
        with StatewardSaver(daemon.target, namespace=namespace) as saver:
            assert contents(saver, "t") == contents(source, "t")


def test_a_database_that_grows_is_imported_again(daemon: Daemon, namespace: str, tmp_path: Path) -> None:
    """Until the graph goes on in Stateward; then the import says what is different, and leaves the thread alone."""
    path = tmp_path / "a.sqlite"
    with open_sqlite(path) as source, StatewardSaver(daemon.target, namespace=namespace) as saver:
        made = put(source, place("t"), a=1)
        assert import_(daemon, namespace, path).code == 0
        made = put(source, made, a=2)
        assert "1 written and compared, 1 were there already" in import_(daemon, namespace, path).out
        assert contents(saver, "t") == contents(source, "t")
        put(saver, made, a=3)
        answer = import_(daemon, namespace, path)
        assert (answer.code, answer.err) == (0, "")
        assert "1 thread changed in Stateward after the import" in answer.out
        put(source, made, a=4)
        answer = import_(daemon, namespace, path)
        assert answer.code == 1
        assert "thread 't' has something else" in answer.err
        assert [each.checkpoint["channel_values"]["a"] for each in contents(saver, "t")] == [3, 2, 1]


def test_threads_that_have_something_else(daemon: Daemon, namespace: str, tmp_path: Path) -> None:
    """They stay as they are, and each is named; the others are imported."""
    path = tmp_path / "a.sqlite"
    with (
        open_sqlite(path) as source,
        StatewardSaver(daemon.target, namespace=namespace) as saver,
        daemon.client(namespace=namespace) as client,
    ):
        for thread in ("good", "other", "changed", "pruned"):
            put(source, put(source, place(thread), a=1), a=2)
        client.thread("other").append("log", 1)
        assert import_(daemon, namespace, path, "--thread", "changed", "--thread", "pruned").code == 0
        source.conn.execute("UPDATE checkpoints SET metadata = '{\"step\": 9}' WHERE thread_id = 'changed'")
        source.conn.commit()
        saver.prune(["pruned"])
        answer = import_(daemon, namespace, path)
        assert answer.code == 1
        assert "thread 'other' is no checkpoint of LangGraph" in answer.err
        assert "of thread 'changed' has another metadata than the source's" in answer.err
        assert "as if it was pruned" in answer.err
        assert answer.err.endswith("stateward: 3 of 4 threads not imported; the reasons are above\n")
        assert contents(saver, "good") == contents(source, "good")
        assert len(contents(saver, "pruned")) == 1
        assert client.thread("other").info().version == 1


def test_a_dry_run_writes_nothing(daemon: Daemon, namespace: str, filled: Path) -> None:
    """It reports what is missing; afterwards it is a comparison."""
    answer = import_(daemon, namespace, filled, "--dry-run")
    assert answer.code == 0
    assert "missing" in answer.out
    with daemon.client(namespace=namespace) as client:
        assert not list(client.threads())
        assert import_(daemon, namespace, filled, "--thread", "asking").code == 0
        assert [info.name for info in client.threads()] == ["asking"]
    assert "3, 1 were there already" in import_(daemon, namespace, filled, "--dry-run").out


def test_the_classes_of_the_program_are_not_needed(
    daemon: Daemon, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value whose module is missing during the import is there afterwards."""
    module, path = types.ModuleType("gone_away"), tmp_path / "a.sqlite"
    point: Any = make_dataclass("Point", ["x"], namespace={"__module__": "gone_away"})
    module.Point = point  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gone_away", module)
    with open_sqlite(path) as source:
        put(source, place("t"), one=point(1), many=[point(2), point(3)], inner={"deep": {(1, 2): point(4)}})
        monkeypatch.delitem(sys.modules, "gone_away")
        assert import_(daemon, namespace, path).code == 0
        monkeypatch.setitem(sys.modules, "gone_away", module)
        with StatewardSaver(daemon.target, namespace=namespace, allowed_types=[point]) as saver:
            assert contents(saver, "t") == contents(source, "t")
            assert contents(saver, "t")[0].checkpoint["channel_values"]["many"][1] == point(3)


def test_values_of_other_types_pass_as_they_are() -> None:
    """Pickle is never executed, and old JSON becomes what a new saver writes."""
    verbatim = Verbatim()
    assert verbatim.dumps_typed(verbatim.loads_typed(("pickle", b"anything"))) == ("pickle", b"anything")
    assert verbatim.loads_typed(("json", b'{"a": [1]}')) == {"a": [1]}
    old = {"lc": 2, "type": "constructor", "id": ["uuid", "UUID"], "args": ["12345678123456781234567812345678"]}
    kind, data = verbatim.dumps_typed(verbatim.loads_typed(("json", json.dumps(old).encode())))
    assert kind == "msgpack"
    assert b"uuid" in data


class Rot(EncryptedSerializer):
    """A cipher for the test."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "aes", plaintext[::-1]


def test_encrypted_values_need_their_key(daemon: Daemon, namespace: str, tmp_path: Path) -> None:
    """The error names the variable; nothing is written."""
    path = tmp_path / "a.sqlite"
    serde = EncryptedSerializer(Rot(None))  # type: ignore[arg-type]
    with open_sqlite(path, serde=serde) as source:
        put(source, place("t"), a=1)
    assert "set LANGGRAPH_AES_KEY to the key" in import_(daemon, namespace, path).error
    assert "LANGGRAPH_AES_KEY is set, but" in import_(daemon, namespace, path, LANGGRAPH_AES_KEY="short").error


def test_mistakes_are_one_line(daemon: Daemon, namespace: str, tmp_path: Path) -> None:
    """What is wrong, with exit code 1."""
    text, empty, good = tmp_path / "text", tmp_path / "empty.sqlite", tmp_path / "good.sqlite"
    text.write_text("This is no database. " * 100)
    with closing(sqlite3.connect(empty)) as connection:
        connection.execute("CREATE TABLE other (a)")
    with open_sqlite(good) as source:
        put(source, place("t"), a=1)
    for given, expected in {
        text: "is not a database of LangGraph's SqliteSaver: file is not a database",
        empty: "is not a database of LangGraph's SqliteSaver: no such table: checkpoints",
        tmp_path / "none.sqlite": "there is no such file",
        tmp_path: "there is no such file",
        "mysql://a:secret@b/c": "mysql:// is not a database of LangGraph",
        f"postgresql://a:secret@/c?host={tmp_path}": "PostgreSQL cannot be reached: ",
    }.items():
        answer = import_(daemon, namespace, given)
        assert answer.code == 1
        assert expected in answer.error
        assert "secret" not in answer.error
    assert "has no thread 'x'" in import_(daemon, namespace, good, "--thread", "x").error
    answer = run("--target", f"unix://{tmp_path}/no.sock", "import", "langgraph", good)
    assert answer.code == 1
    assert "no.sock" in answer.error
    assert not (tmp_path / "none.sqlite").exists()
    assert run("import", "langgraph").code == 2
    assert run("import", "langgraph", "--help").out.startswith("Usage: stateward import langgraph")


def test_a_missing_package_is_named(
    daemon: Daemon, namespace: str, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the extra that has it."""
    for package in ("langgraph.checkpoint.sqlite", "langgraph.checkpoint.postgres", "stateward.langgraph.sources"):
        monkeypatch.setitem(sys.modules, package, None)
        source = "postgresql://a@b/c" if package.endswith("postgres") else filled
        error = import_(daemon, namespace, source).error
        assert package.replace(".", "-").removeprefix("stateward-") in error.replace(".", "-")
        assert "run: pip install '.[langgraph-import]'" in error


def test_a_postgres_database_of_something_else(daemon: Daemon, namespace: str, postgres: str) -> None:
    """The error says which database, and which table is missing."""
    answer = import_(daemon, namespace, postgres)
    assert answer.code == 1
    name = re.findall(r"/(test_\w+)\?", postgres)[0]
    assert f"PostgreSQL database '{name}' is not one of LangGraph's PostgresSaver" in answer.error
    assert 'relation "checkpoints" does not exist' in answer.error


def test_progress_is_on_the_terminal(daemon: Daemon, namespace: str, filled: Path) -> None:
    """A line that is replaced, and the summary at the end."""
    code, shown = run_on_terminal("--target", daemon.target, "-n", namespace, "import", "langgraph", str(filled))
    assert code == 0
    assert "importing" in shown
    assert "written and compared" in shown


def has_long_term_memory(daemon: Daemon, namespace: str, source: Path | str, store: Any) -> None:
    """Puts items into the database, and checks that an import says what it leaves there."""
    assert "store" not in import_(daemon, namespace, source).err
    store.setup()
    assert "store" not in import_(daemon, namespace, source).err
    for name in ("food", "seat"):
        store.put(("users", "ana"), name, {"likes": "pizza"})
    for options in ([], ["--dry-run"]):
        answer = import_(daemon, namespace, source, *options)
        assert answer.code == 0
        assert "LangGraph's store in this database has 2 items (long-term memory)" in answer.error


def test_long_term_memory_that_stays_behind_is_named(daemon: Daemon, namespace: str, filled: Path) -> None:
    """An import of a SQLite database that also holds LangGraph's store does not seem complete."""
    from langgraph.store.sqlite import SqliteStore

    with closing(sqlite3.connect(filled, check_same_thread=False, isolation_level=None)) as connection:
        has_long_term_memory(daemon, namespace, filled, SqliteStore(connection))


def test_long_term_memory_in_postgres_is_named(daemon: Daemon, namespace: str, postgres: str) -> None:
    """An import of a PostgreSQL database that also holds LangGraph's store does not seem complete."""
    from langgraph.store.postgres import PostgresStore

    with open_postgres(postgres) as saver:
        fill(saver)
    with PostgresStore.from_conn_string(postgres) as store:
        has_long_term_memory(daemon, namespace, postgres, store)


def test_a_thread_of_a_reserved_name_is_refused_by_name(daemon: Daemon, namespace: str, tmp_path: Path) -> None:
    """A thread called "-" costs no other, and the error says why it cannot be imported."""
    path = tmp_path / "c.sqlite"
    with open_sqlite(path) as saver:
        for thread in ("-", "t"):
            put(saver, place(thread), x=1)
    answer = import_(daemon, namespace, path)
    assert answer.code == 1
    assert "thread '-' cannot be imported: in Stateward this name stands for all threads" in answer.err
    with StatewardSaver(daemon.target, namespace=namespace) as saver:
        assert saver.get_tuple(place("t")) is not None


def test_ids_are_no_commands_for_the_terminal(daemon: Daemon, namespace: str, tmp_path: Path) -> None:
    """The line of a thread has its id with escapes in place of control characters, and an empty one in quotes."""
    path = tmp_path / "c.sqlite"
    with open_sqlite(path) as saver:
        for thread in ("a\x1b[31m\x07\nb", ""):
            put(saver, place(thread), x=1)
    answer = import_(daemon, namespace, path)
    lines = answer.out.splitlines()
    assert "a\\x1b[31m\\x07\\nb: 1 checkpoint written and compared" in lines, answer
    assert "'': 1 checkpoint written and compared" in lines


@pytest.mark.parametrize("levels", [90, 900, 100_000])
def test_deep_values_are_compared(levels: int) -> None:
    """To their ends: an import says what differs, at any depth."""

    def made(value: Any) -> Any:
        for level in range(levels):
            value = [value, math.nan] if level % 2 else {"k": value}
        return value

    assert equal(made(1), made(1))
    assert not equal(made(1), made(1.0))
