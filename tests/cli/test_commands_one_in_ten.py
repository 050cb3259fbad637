"""The danger: a command ends as a whole, or stays silent, because of one thread in ten: damaged, locked, deep, gone.

The table names every command. A command that shows several threads is run on stores with such threads: the others are
served, each bad one is named, and the exit code is 1. A command that reads one thread answers for the good ones, and
ends with one line of error for a bad one.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lmdb
import pytest
from tests.cli.conftest import Answer, run
from tests.cli.test_values_deep import nested
from tests.daemon.process import archive_flags

from stateward import Client, RawValue
from stateward.cli.options.catalog import LONGER, SECTIONS, load
from stateward.cli.options.connect import connect
from stateward.testing import Daemon, missing_daemon, run_daemon
from stateward_sidecar.storage.keyslots import SLOT_BYTES
from stateward_sidecar.storage.keywraps import THREAD

TEN = [f"t{number}" for number in range(10)]
GOOD, DAMAGED, HEADLESS, LOCKED, DEEP, LOST_KEY = ("t1", "t3", "t4", "t5", "t7", "t6")
# Deeper than any parser goes, and around the limits of the commands.
DEPTH = 100_000
MIGRATIONS = """
from stateward.migrations import Migrations
migrations = Migrations(current=1)
@migrations.step(0, 1)
def add(state):
    state.slots["added"] = 1
"""


@dataclass(frozen=True)
class Many:
    """A command that shows or changes several threads, with its arguments."""

    arguments: tuple[str, ...] = ()
    touches: tuple[str, ...] = (DAMAGED, HEADLESS, LOCKED)
    """The bad threads of the disk that it must name. Others it may serve."""
    lists: bool = True
    """Whether it lists the good ones, too."""


@dataclass(frozen=True)
class One:
    """A command that reads one thread, with its arguments after the name."""

    arguments: tuple[str, ...] = ()


OPENED = (HEADLESS, LOCKED)
"""What a list that reads heads only cannot show."""
ONE_BY_NAME = "changes or asks about one thread, by its name"
NO_THREAD = "reads no thread's content"
TABLE: dict[str, Any] = {
    "threads": Many(("--limit", "0", "--json"), OPENED),
    "waiting": Many(("--json",), OPENED),
    "tools": [Many(("--json",)), One(("--json",))],
    "failures": [Many(("--json", *TEN), OPENED), One()],
    "export": [
        Many(("--all", "--versions")), Many(("--versions", *TEN)), Many(("--prefix", "t", "--messages-only")),
        Many(("--trajectories", "--status", "waiting")), One(("--versions",)),
    ],
    "verify": [Many((), lists=False), One()],
    "audit-proof": One(),
    "migrate": Many(("migrations:migrations", "--dry-run", "--json"), lists=False),
    "rm": Many(("--prefix", "t", "--yes", "--json"), OPENED),
    "watch": One(("--from-start", "--until", "3", "--for", "20", "--json")),
    "show": [One(), One(("--json",)), One(("--full",))],
    "history": [One(), One(("--all", "--json"))],
    "diff": [One(("1", "3")), One(("1", "3", "--json"))],
    "replay": [One(), One(("--json",))],
    "effects": [One(), One(("--json",))],
    "records": [One(), One(("--json",))],
    "records list": [One(("--json",)), One(("--by", "/"))],
    "records get": One(("k",)),
    "workspace": NO_THREAD, "workspace snapshot": ONE_BY_NAME, "workspace du": NO_THREAD,
    "branch": One(),
    "tag": One(),
    "prune": One(("--keep-latest", "1", "--dry-run")),
    "completion": "completes names, see test_completion",
    "archive list": "the archive, below", "archive index": "the archive, below", "archive verify": "the archive, below",
    "archive gc": "the archive, below", "archive restore": "the archive, below", "restore": "the archive, below",
    "archive status": NO_THREAD, "archive": NO_THREAD, "archive repair": ONE_BY_NAME,
    "attach": ONE_BY_NAME, "detach": ONE_BY_NAME, "fork": ONE_BY_NAME, "approve": ONE_BY_NAME, "reject": ONE_BY_NAME,
    "answer": ONE_BY_NAME, "signal": ONE_BY_NAME, "records put": ONE_BY_NAME, "records rm": ONE_BY_NAME,
    "import": "reads files, see test_backups_incomplete",
    "import langgraph": "reads a database, see test_import_inexact",
    "run": "looks at each thread by itself, and again at the next poll, see test_run_doubled_agents",
    "drain": "counts what is not archived, see test_drain_command", "doctor": NO_THREAD, "stats": NO_THREAD,
    "compact": NO_THREAD,
    "keys": NO_THREAD, "keys new": NO_THREAD, "keys wrap": NO_THREAD, "keys list": NO_THREAD,
    "keys rotate": NO_THREAD, "keys retire": NO_THREAD, "keys rekey": ONE_BY_NAME,
    "token": NO_THREAD, "token new": NO_THREAD, "token list": NO_THREAD,
    "token revoke": NO_THREAD, "audit-log": NO_THREAD,
    "audit-log check": NO_THREAD, "conformance": NO_THREAD, "demo": NO_THREAD, "status": NO_THREAD,
    "stop": NO_THREAD, "service": NO_THREAD, "service print": NO_THREAD, "service install": NO_THREAD,
    "service uninstall": NO_THREAD,
    "workspace ls": ONE_BY_NAME, "workspace cat": ONE_BY_NAME, "workspace diff": ONE_BY_NAME,
    "workspace plan": ONE_BY_NAME, "workspace restore": ONE_BY_NAME, "workspace undo": ONE_BY_NAME,
    "workspace export": ONE_BY_NAME, "workspace import": ONE_BY_NAME,
}  # fmt: skip


def uses(kind: type) -> list[Any]:
    """The uses of one kind in the table, each with its command."""
    rows = ((command, row if isinstance(row, list) else [row]) for command, row in TABLE.items())
    found = [(command.split(), each) for command, row in rows for each in row if isinstance(each, kind)]
    return [pytest.param(words, each, id=" ".join([*words, *each.arguments[:3]])) for words, each in found]


def test_every_command_is_in_the_table():
    """A new command is walked, or the table says why not."""
    entries = {name: entry for section in SECTIONS.values() for name, entry in section.items()}
    names = {" ".join(words) for words in LONGER} | set(entries)
    for name, entry in entries.items():
        names |= {f"{name} {inner}" for inner in getattr(load(name, entry), "commands", ())}
    assert names == set(TABLE)


# -- what every answer is ---------------------------------------------------------------------------------------------


def is_named(text: str, name: str, *other: str) -> bool:
    """Whether a text has a thread's name, or what else is known of it, as a word."""
    return any(re.search(rf"(?<![\w@]){re.escape(each)}(?!\w)", text) for each in (name, *other))


def check_lines(answer: Answer) -> None:
    """No stack trace, and each line of stderr is one of the command."""
    assert answer.code in (0, 1), answer.err
    assert all(line.startswith("stateward: ") for line in answer.err.splitlines()), answer.err


@dataclass
class Store:
    """A daemon, and what else its bad threads are called by those that cannot read their names."""

    daemon: Daemon
    other_names: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def run(self, *arguments: Any) -> Answer:
        return run("--target", self.daemon.target, *arguments)

    def check(self, answer: Answer, bad: set[str], *, lists: bool = True, among: set[str] = frozenset(TEN)) -> None:  # type: ignore[assignment]
        """The bad threads are named, the others are served, and the exit code says so."""
        check_lines(answer)
        told = answer.err if lists else answer.err + answer.out
        assert [each for each in bad if not is_named(told, each, *self.other_names.get(each, ()))] == [], told
        assert answer.code == (1 if bad else 0), answer.err
        if lists:
            assert [each for each in sorted(among - bad) if not is_named(answer.out, each)] == [], answer.err


def call_of(name: str) -> dict[str, Any]:
    """A message that calls a tool."""
    return {"role": "assistant", "content": name, "tool_calls": [{"id": "1", "name": f"tool-{name}"}]}


def fill(client: Client, name: str, *, value: Any = "x", size_bytes: int = 0) -> Any:
    """Makes a thread with something of every kind."""
    thread = client.thread(name)
    entries = [] if value == "x" else [value]
    thread.append("messages", call_of(name), *entries, status="failed")
    thread.set_slot("slot", value)
    thread.records.put("k", value)
    thread.signals.send("hello", value)
    thread.effects.run("pay", lambda: "paid")
    if size_bytes:
        thread.append("large", RawValue("text/plain", os.urandom(size_bytes)))
    return thread.set_slot("slot", "last" if value == "x" else nested(DEPTH + 1), status="waiting")


@contextmanager
def changed_rows(daemon: Daemon) -> Iterator[Callable[[str, str], None]]:
    """Flips the last bit of rows of a daemon that is stopped: `flip(name, kind)`. Threads were made in order."""
    directory = next(daemon.data_dir.rglob("data.mdb")).parent
    with lmdb.open(str(directory), map_size=1 << 30, max_dbs=0) as store, store.begin(write=True) as writing:

        def flip(name: str, kind: str) -> None:
            begin = b"T" + (TEN.index(name) + 1).to_bytes(4, "big") + kind.encode()
            key = [bytes(each) for each, _ in writing.cursor() if bytes(each).startswith(begin)][-1]
            row = bytearray(writing.get(key))
            row[len(bytes(row).rstrip(b"\0")) - 1] ^= 1
            writing.put(key, bytes(row))

        yield flip


def flip_key(daemon: Daemon, name: str) -> None:
    """Flips a bit in the slot of a thread's key."""
    path = daemon.data_dir / "keys"
    data = bytearray(path.read_bytes())
    slots = [at for at in range(2 * SLOT_BYTES, len(data), SLOT_BYTES) if data[at] == THREAD]
    data[slots[TEN.index(name)] + 60] ^= 4
    path.write_bytes(data)


# -- on a disk --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def disk(tmp_path_factory) -> Iterator[Store]:
    """Ten threads: one with a damaged entry, one with a damaged head, one whose key is lost, one with deep values."""
    if reason := missing_daemon():
        pytest.skip(reason)
    with run_daemon(tmp_path_factory.mktemp("disk") / "data") as daemon:
        with daemon.client() as client:
            for name in TEN:
                fill(client, name, value=nested(DEPTH) if name == DEEP else "x")
            other_names = {name: (client.thread(name).info().uid,) for name in TEN}
        daemon.stop()
        with changed_rows(daemon) as flip:
            flip(DAMAGED, "J")
            flip(HEADLESS, "A")
        flip_key(daemon, LOCKED)
        daemon.start()
        yield Store(daemon, other_names)


@pytest.mark.parametrize(("words", "use"), [each for each in uses(Many) if each.values[0] != ["rm"]])
def test_nine_are_served_and_the_tenth_is_named(disk, words, use, tmp_path, monkeypatch):
    """A damaged thread, a damaged head and a lost key each cost one thread; a deep value costs none."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "migrations.py").write_text(MIGRATIONS)
    answer = disk.run(*words, *use.arguments)
    bad = set(use.touches)
    if "--messages-only" in use.arguments:  # runs that no import could read are refused by name
        assert is_named(answer.err, DEEP)
        bad.add(DEEP)
    disk.check(answer, bad, lists=use.lists)


@pytest.mark.parametrize(("words", "use"), uses(One))
def test_one_thread_is_shown_or_refused_in_one_line(disk, words, use, tmp_path):
    """A good or a deep thread is shown, a bad one is one line of error that names it."""
    output = ("-o", tmp_path / "out") if words == ["export"] else ()
    for name in (GOOD, DEEP, DAMAGED, HEADLESS, LOCKED):
        answer = disk.run(*words, name, *use.arguments, *output)
        check_lines(answer)
        if name in (GOOD, DEEP):
            assert (answer.code, answer.out or output) != (1, ""), answer.err
            assert answer.code == 0, answer.err
        elif answer.code or name != DAMAGED:  # the damaged entry is not needed by every command
            assert answer.code == 1
            assert is_named(answer.err + answer.out, name, *disk.other_names[name])


def test_removal_goes_on_after_a_thread_that_fails(tmp_path):
    """`rm --prefix` removes the other nine, names the tenth, and says in JSON what is gone."""
    with run_daemon(tmp_path / "data") as daemon:
        with daemon.client() as client:
            for name in TEN:
                client.thread(name).append("messages", 1)
        daemon.stop()
        flip_key(daemon, LOCKED)
        daemon.start()
        answer = run("--target", daemon.target, "rm", "--prefix", "t", "--yes", "--json")
        assert answer.code == 1
        told = json.loads(answer.out)
        assert told["removed"] == [each for each in TEN if each != LOCKED]
        assert all(each["reason"] for each in told["not_removed"])
        assert len(told["not_removed"]) == 1
        assert "1 thread cannot be opened" in answer.error


# -- a thread that vanishes -------------------------------------------------------------------------------------------

LISTS = [
    (["export", "--all", "--versions"], 0), (["export", "--prefix", "t", "--messages-only"], 0),
    (["export", "--trajectories", "--status", "failed"], 0), (["tools"], 0), (["failures"], 0),
    (["export", "--versions", *TEN], 1), (["export", "--trajectories", *TEN], 1), (["tools", *TEN], 1),
    (["failures", *TEN], 1), (["rm", "--prefix", "t", "--yes"], 0),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "code"), LISTS, ids=lambda each: " ".join(each[:3]) if each in LISTS else None)
def test_a_thread_vanishes_after_it_was_listed(stateward, client, monkeypatch, arguments, code):
    """It is named as removed meanwhile. Only a user who named it learns of a failure: no list can have what is gone."""
    for name in TEN:
        client.thread(name).append("messages", call_of(name), status="failed")
    if code:
        info = type(client.thread("x")).info

        def vanish(self, *given, **options):
            found = info(self, *given, **options)
            if self.name == DAMAGED:
                self.delete(missing_ok=True)
            return found

        monkeypatch.setattr(type(client.thread("x")), "info", vanish)
        if arguments[1] == "--versions":
            client.thread(DAMAGED).delete()
    else:
        threads = Client.threads

        def listed(self, **filters):
            found = list(threads(self, **filters))
            self.thread(DAMAGED).delete(missing_ok=True)
            return iter(found)

        monkeypatch.setattr(Client, "threads", listed)
    answer = stateward(*arguments)
    check_lines(answer)
    assert answer.code == code, answer.err
    assert is_named(answer.err, DAMAGED) or arguments[0] == "rm"
    assert code or arguments[0] == "rm" or f"{DAMAGED!r} was removed meanwhile" in answer.err
    assert [each for each in TEN if each != DAMAGED and not is_named(answer.out, each)] == []


# -- in an archive ----------------------------------------------------------------------------------------------------


def flip_file(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Iterator[Store]:
    """A daemon that knows nothing, and the bucket of another: one thread has a damaged object, one a damaged HEAD, and
    the key of one is missing."""
    if reason := missing_daemon():
        pytest.skip(reason)
    bucket = tmp_path_factory.mktemp("archive") / "bucket"
    places: dict[str, str] = {}
    with run_daemon(**archive_flags(bucket, "first")) as first:
        with first.client() as client:
            bad = (DAMAGED, HEADLESS, LOCKED)
            for name in (*bad, *(each for each in TEN if each not in bad)):
                is_large = name == DAMAGED
                last = fill(client, name, size_bytes=400_000 if is_large else 0)
                if name in bad:
                    client.thread(name).archive.wait(last, timeout=60)
                    (places[name],) = {path.parent.name for path in bucket.rglob("HEAD")} - set(places.values())
            uids = {name: client.thread(name).info().uid for name in TEN}
        first.stop()  # archives the others
        (folder,) = (path.parent for path in bucket.rglob("HEAD") if path.parent.name == places[DAMAGED])
        for path in (*folder.glob("*.pack"), *folder.glob("*.snap")):
            flip_file(path)
        flip_file(folder.with_name(places[HEADLESS]) / "HEAD")
        (key,) = (path for path in (bucket / "v1/_keys").rglob(f"{places[LOCKED]}.*") if path.suffix != ".lock")
        key.unlink()
        with run_daemon(key_file=first.key_file, **archive_flags(bucket, "second")) as second:
            store = Store(second, {name: (uids[name], places.get(name, "?")) for name in TEN})
            store.bucket, store.key_file = bucket, first.key_file  # type: ignore[attr-defined]
            yield store


def test_lists_of_the_archive(archive):
    """Each command over the archive serves what can be read, and names what cannot."""
    reach = ("--archive", f"file://{archive.bucket}", "--key-file", str(archive.key_file))
    lost = {HEADLESS, LOCKED}
    archive.check(archive.run("archive", "list", "--json"), lost)
    archive.check(archive.run("waiting", "--json", *reach), lost)
    archive.check(archive.run("archive", "verify"), lost, lists=False)
    archive.check(archive.run("verify", "--archive", "--read-data", "100"), {*lost, DAMAGED}, lists=False)
    archive.check(archive.run("archive", "gc", "--dry-run"), {HEADLESS}, lists=False)  # needs no key
    archive.check(archive.run("archive", "restore", "--dry-run"), lost, lists=False)
    answer = archive.run("archive", "index")
    archive.check(answer, lost, lists=False)
    assert answer.out.startswith("8 threads")
    known = {each for each in TEN if each not in lost}
    archive.check(archive.run("threads", "--json"), set(), among=known)
    for command in (["tools"], ["export", "--all", "--versions"]):  # copies, which are fetched when they are read
        archive.check(archive.run(*command), {DAMAGED}, among=known)
    archive.check(archive.run("restore"), {*lost, DAMAGED}, lists=False)
    for name in (DAMAGED, *lost):
        for command in ("show", "history", "verify"):
            answer = archive.run(command, name)
            assert answer.code == 1
            assert len(answer.err.splitlines()) == 1


def test_the_archive_is_away(archive, monkeypatch):
    """What this daemon owns is served while the bucket is away; copies of another machine's threads are named."""
    monkeypatch.setitem(connect.__kwdefaults__, "retry_timeout_s", 0.0)
    assert archive.run("archive", "index").code == 1
    away = {each for each in TEN if each not in (HEADLESS, LOCKED)}
    with archive.daemon.client() as client:
        for name in ("n0", "n1"):  # agents at work; a thread that waits is given up once it is archived
            client.thread(name).append("messages", call_of(name))
    known = {*away, "n0", "n1"}
    aside = archive.bucket.with_name("aside")
    archive.bucket.rename(aside)
    archive.bucket.symlink_to(archive.bucket)
    try:
        archive.check(archive.run("threads", "--json"), set(), among=known)
        for command in (["tools"], ["export", "--all", "--versions"]):
            archive.check(archive.run(*command), away, among=known)
        for command in (["archive", "list"], ["archive", "verify"], ["restore"]):
            answer = archive.run(*command)
            assert answer.code == 1
            assert "cannot be reached" in answer.error
    finally:
        archive.bucket.unlink()
        aside.rename(archive.bucket)
