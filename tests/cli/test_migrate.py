"""The danger: a command that migrates the wrong things, or hides what it could not migrate."""

import sys

import pytest
from tests.cli.conftest import environment, run

from stateward import ThreadOptions
from stateward.changes import SetSlot
from stateward.testing import run_daemon

PROGRAM = """
print("a program that talks")
from stateward import Migrations

class Registry:
    migrations = Migrations(current="2")

@Registry.migrations.step("1", "2")
def rename(state):
    print("while it works")
    state.slots["new"] = state.slots.pop("old")

number = 7
"""


@pytest.fixture(scope="module")
def daemon():
    with run_daemon() as made:
        yield made


@pytest.fixture
def command(daemon, tmp_path, monkeypatch, request):
    """Runs it in a namespace of its own, from a directory that holds the program `shop<number>`."""
    module = f"shop{abs(hash(request.node.nodeid)) % 10**9}"
    (tmp_path / f"{module}.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with daemon.client(namespace=module) as client:

        def call(*arguments, name="Registry.migrations"):
            given = ["--target", daemon.target, "-n", module, *arguments]
            return run("migrate", f"{module}:{name}", *given)

        call.client = client
        yield call


def save(client, name, slot="old", schema=1):
    thread = client.thread(name)
    state = thread.hydrate()
    state.slots[slot] = name
    thread.save(state, schema_version=schema)


def test_all_threads_of_the_namespace(command):
    """A dry run says what would be and writes nothing; the run does it; another finds nothing to do."""
    for number in range(3):
        save(command.client, f"t{number}")
    dry = command("--dry-run")
    assert dry.code == 0
    assert dry.err.splitlines() == ["a program that talks", *["while it works"] * 3]
    assert "3 branches would go from schema 1 to 2" in dry.out
    assert command.client.thread("t0").info().version == 1
    assert command("--json").json == {
        "current": 2,
        "dry_run": False,
        "threads": 3,
        "migrated": [{"from": 1, "to": 2, "branches": 3}],
        "unchanged": 0,
        "remote": 0,
        "orphans": 0,
        "failures": [],
    }
    assert dict(command.client.thread("t2").hydrate().slots) == {"new": "t2"}
    assert command().out == "3 threads looked at, 3 branches had schema 2 already\n"


def test_failures_are_said_and_end_with_1(command):
    """What could not be migrated is named with its reason, on the terminal and as JSON; the rest is migrated."""
    save(command.client, "good")
    save(command.client, "odd", slot="other")
    save(command.client, "future", schema=9)
    answer = command("--thread", "odd", "-t", "future", "--json")
    assert answer.code == 1
    assert '"thread": "odd", "branch": "main", "kind": "MigrationFailed"' in answer.out
    answer = command()
    assert answer.code == 1
    assert "1 branch went from schema 1 to 2" in answer.out
    assert "failed: thread 'odd' version 1: the migration from 1 to 2 failed: MissingSlot" in answer.out
    assert "has schema 9, and no migration leads from 9 to 2" in answer.out
    assert answer.err.splitlines()[-1] == "stateward: 2 branches could not be migrated and stay as before"


def test_what_a_migration_raises_is_one_line(command, tmp_path):
    """The text of the program's own exception cannot control the terminal."""
    (path,) = tmp_path.glob("*.py")
    raising = "def rename(state):\n    raise ValueError('a\\x1b[31m\\x07b')"
    path.write_text(path.read_text().replace("def rename(state):", raising))
    save(command.client, "odd")
    answer = command()
    assert answer.code == 1
    assert "ValueError: a\\x1b[31m\\x07b" in answer.out


def test_a_thread_that_does_not_exist(command):
    """It is said to be missing, and not to stay as it was."""
    save(command.client, "good")
    answer = command("-t", "nope", "-t", "good")
    assert answer.code == 1
    assert "1 branch went from schema 1 to 2" in answer.out
    assert answer.err.splitlines()[-1] == "stateward: there is no thread 'nope'"
    assert "nope" not in answer.out
    assert "stay" not in answer.err


def test_what_another_sidecar_wrote_is_said(pair, tmp_path, monkeypatch):
    """A dry run says of such threads that it cannot know, and does not end as if all were fine."""
    (tmp_path / "shop_of_two.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pair.first.client(namespace="two") as first, pair.second.client(namespace="two") as second:
        save(first, "t")
        first.thread("t").append("l", 1, durability="archived")
        second.thread("t").hydrate()
    place = ["shop_of_two:Registry.migrations", "--target", pair.second.target, "-n", "two", "-t", "t"]
    dry = run("migrate", *place, "--dry-run")
    assert (dry.code, "1 branch of threads that another sidecar wrote last" in dry.out) == (1, True)
    assert '"remote": 1' in run("migrate", *place, "--dry-run", "--json").out


def test_the_help_says_what_is_left_out():
    """Which threads are looked at, and what a migration does to a TTL."""
    told = " ".join(run("migrate", "--help").out.split())
    for words in ("threads on this daemon's disk", "stateward restore", "TTL of a finished thread"):
        assert words in told


@pytest.mark.parametrize(
    ("place", "told", "code"),
    [
        ("nothing", "module:name", 2),
        ("no_such_module:x", "No module named", 1),
        ("json:nothing", "nothing", 1),
        ("json:dumps", "not a stateward.Migrations", 1),
    ],
)
def test_wrong_places(place, told, code):
    """What is no Migrations object is said in one line, before any daemon is asked."""
    answer = run("migrate", place, **environment())
    assert answer.code == code
    assert told in answer.error


def test_some_threads_of_the_namespace(command):
    """By prefix and label; the others stay as they are. --thread names threads, so both together are refused."""
    for name, team in (("a/1", "red"), ("a/2", "blue"), ("b/1", "red")):
        options = ThreadOptions(labels={"team": team})
        command.client.thread(name).apply([SetSlot("old", name)], schema_version=1, create=options)
    assert command("--prefix", "a/", "--label", "team=red", "--json").json["threads"] == 1
    assert {each.name: each.version for each in command.client.threads()} == {"a/1": 2, "a/2": 1, "b/1": 1}
    assert "leave --prefix and --label out" in command("--thread", "a/1", "--prefix", "a/").error
