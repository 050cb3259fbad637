"""The danger: a person says yes to what the command shows, and the command does something else, because another client
changed it while the question was open."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from tests.cli.conftest import Person, run, run_on_terminal

from stateward import Client, cli
from stateward.errors import ThreadNotFound, VersionMismatch
from stateward.models import PruneResult

CHOSEN = "chosen-by-the-agent"


@dataclass
class Case:
    """A command, what another client does while it asks, and what is there afterwards."""

    command: list[str]
    meanwhile: Callable[[Client], object]
    is_right: Callable[[Client], bool]
    code: int
    says: str = ""


def fill(client: Client, name: str = "t", count: int = 6) -> None:
    for number in range(count):
        client.thread(name).append("l", number)


def anew(client: Client, count: int = 6) -> None:
    """The thread is deleted, and there is another one of its name."""
    client.thread("t").delete()
    fill(client, count=count)


def versions(client: Client) -> list[int]:
    return sorted(each.version for each in client.thread("t").checkpoints())


def entries(client: Client) -> list[int]:
    return list(client.thread("t").hydrate().logs["l"])


def ask(client: Client, prompt: str) -> None:
    thread = client.thread("t")
    thread.ask(thread.hydrate(), prompt, wait_id=CHOSEN)


def put(client: Client, *keys: str) -> None:
    for key in keys:
        client.records("t").put(key, key)


def keys(client: Client) -> list[str]:
    return [each.key for each in client.records("t").list()]


def begin_branch(client: Client) -> None:
    branch = client.thread("t").branch("b", at=2)
    state = branch.hydrate()
    state.slots["n"] = 1
    branch.save(state)


def is_unanswered(client: Client) -> bool:
    return not client.thread("t").signals()


KEEP = ["prune", "t", "--keep-latest", "4"]  # 1 and 2 of the six versions
CASES = {
    "prune: an agent saves": Case(
        KEEP, lambda client: fill(client, count=8), lambda client: versions(client) == list(range(3, 15)), 0
    ),
    "prune: a version gets a tag": Case(
        KEEP, lambda client: client.thread("t").tag("kept", 2), lambda client: versions(client) == [2, 3, 4, 5, 6], 0,
        "1 version less",
    ),
    "prune: a branch begins": Case(
        KEEP,
        begin_branch,
        lambda client: versions(client) == list(range(2, 8)),
        0,
        "1 version less",
    ),
    "prune: the thread is made anew": Case(
        KEEP, lambda client: anew(client, 9), lambda client: versions(client) == list(range(1, 10)), 1, "look again"
    ),
    "prune: somebody else prunes": Case(
        KEEP,
        lambda client: client.thread("t").prune(keep_latest_per_branch=3),
        lambda client: versions(client) == [4, 5, 6],
        1,
        "look again",
    ),
    "prune: a named version gets a tag": Case(
        ["prune", "t", "--versions", "2-4"],
        lambda client: client.thread("t").tag("kept", 3),
        lambda client: versions(client) == [1, 2, 3, 4, 5, 6],
        1,
    ),
    "prune: another head would move": Case(
        ["prune", "t", "--versions", "5-6", "--move-heads"],
        lambda client: client.thread("t").move_head(5),
        lambda client: versions(client) == [1, 2, 3, 4, 5, 6] and client.thread("t").info().version == 5,
        1,
        "other heads",
    ),
    "prune: the head is not among them any more": Case(
        ["prune", "t", "--versions", "5-6", "--move-heads"],
        fill,
        lambda client: versions(client) == list(range(1, 13)),
        1,
        "other heads",
    ),
    "rm: the thread is made anew": Case(["rm", "t"], anew, lambda client: versions(client) == [1, 2, 3, 4, 5, 6], 0),
    "rm: an agent saves": Case(["rm", "t"], fill, lambda client: len(versions(client)) == 12, 1, "has changed"),
    "rm: an agent saves to a branch": Case(
        ["rm", "t"],
        begin_branch,
        lambda client: len(versions(client)) == 7,
        1,
        "has changed",
    ),
    "rm: a record is written": Case(
        ["rm", "t"], lambda client: put(client, "a"), lambda client: keys(client) == ["a"], 1, "has changed"
    ),
    "rm --prefix: a thread comes": Case(
        ["rm", "--prefix", "t"],
        lambda client: fill(client, "t2"),
        lambda client: [each.name for each in client.threads()] == ["t2"],
        0,
    ),
    "rm --prefix: one changes": Case(
        ["rm", "--prefix", "t"], fill, lambda client: len(versions(client)) == 12, 1, "has changed"
    ),
    "records rm: a record comes": Case(
        ["records", "rm", "t", "--prefix", "a/"],
        lambda client: put(client, "a/3"),
        lambda client: keys(client) == ["a/3", "b/1"],
        0,
    ),
    "records rm: a record is written again": Case(
        ["records", "rm", "t", "--prefix", ""],
        lambda client: put(client, "a/2"),
        lambda client: keys(client) == ["a/2"],
        0,
        "1 record less",
    ),
    "records rm: the thread is made anew": Case(
        ["records", "rm", "t", "--prefix", "a/"],
        lambda client: (anew(client), put(client, "a/1")),
        lambda client: keys(client) == ["a/1"],
        1,
        "nothing was deleted",
    ),
}
for command in (["approve", "t"], ["reject", "t"], ["answer", "t", "yes"]):
    for what, meanwhile in {
        "another question": lambda client: ask(client, "Delete the whole account?"),
        "no question any more": lambda client: client.thread("t").save(client.thread("t").hydrate()),
        "the same words in a thread made anew": lambda client: (anew(client), ask(client, "Book Ibis for 120?")),
    }.items():
        CASES[f"{command[0]}: {what}"] = Case(command, meanwhile, is_unanswered, 1, "nothing was sent")


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, client: Client) -> Case:
    fill(client)
    found = CASES[request.param]
    if found.command[0] == "records":
        put(client, "a/1", "a/2", "b/1")
    if found.command[0] in ("approve", "reject", "answer"):
        ask(client, "Book Ibis for 120?")
    return found


def test_a_yes_is_about_what_was_shown(stateward, client, case):
    """Whatever changes while a question is open: what came since stays, and what changed is not acted on."""
    person = Person(lambda: case.meanwhile(client))
    answer = stateward(*case.command, person=person)
    assert person.questions == 1
    assert case.is_right(client), answer
    assert answer.code == case.code, answer.err
    assert case.says in answer.err


def test_every_command_that_asks_is_among_them():
    """A new command that asks before it acts has to show here that it acts on what it showed."""
    places = sorted(Path(cli.__file__).parent.glob("*.py"))
    asking = {
        path.stem
        for path in places
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "confirm"
    }
    modules = {"reject": "approve", "answer": "approve"}
    assert asking == {modules.get(each.command[0], each.command[0]) for each in CASES.values()}


def test_nothing_changes(stateward, client):
    """With nobody else at work, a yes does all that the question says."""
    nobody = Person(lambda: None)
    fill(client)
    assert stateward(*KEEP, person=nobody).out == "removed 2 versions (1-2); 4 left\n"
    put(client, "a/1", "a/2", "b/1")
    assert stateward("records", "rm", "t", "--prefix", "a/", person=nobody).out == "2 records deleted\n"
    ask(client, "Book Ibis for 120?")
    answer = stateward("approve", "t", person=nobody)
    assert "Book Ibis for 120?" in answer.err
    assert [(each.name, each.wait_id) for each in client.thread("t").signals()] == [("approve", CHOSEN)]
    assert stateward("rm", "t", person=nobody).out == "removed t\n"
    assert nobody.questions == 4


@pytest.mark.parametrize("command", [("approve", "t"), ("reject", "t"), ("answer", "t", "yes")])
def test_a_script_is_told_what_it_answered(stateward, client, command):
    """Without a terminal nobody can be asked: the question that is open is answered, and its text is repeated."""
    fill(client)
    ask(client, "Book Ibis for 120?")
    assert f"'Book Ibis for 120?' (question {CHOSEN})" in stateward(*command).out
    assert not is_unanswered(client)


def test_no_means_no(daemon, namespace, client):
    """On a real terminal: anything but yes sends nothing and removes nothing."""
    fill(client)
    ask(client, "Book Ibis for 120?")
    where = ("--target", daemon.target, "-n", namespace)
    for command, kept in ((["approve", "t"], "nothing was sent"), (["rm", "t"], "nothing was removed")):
        code, shown = run_on_terminal(*where, *command, typed="n\n")
        assert code == 1
        assert kept in shown
    assert is_unanswered(client)


def test_a_copy_on_this_disk(pair, namespace):
    """`rm --local-only` also leaves a thread alone that got a version since the question."""
    with pair.first.client(namespace=namespace) as client:
        client.thread("t").append("l", 1, durability="archived")
        person = Person(lambda: client.thread("t").append("l", 2))
        where = ("--target", pair.first.target, "--namespace", namespace)
        answer = run(*where, "rm", "t", "--local-only", person=person)
        assert (answer.code, person.questions) == (1, 1)
        assert entries(client) == [1, 2]
        assert "has changed" in answer.err


def test_plans_of_the_library(client):
    """`prune(plan=…)` removes no more than the plan, and refuses a plan of other versions with the same numbers."""
    thread = client.thread("t")
    fill(client)
    rule = {"older_than": timedelta(microseconds=1)}
    plan = thread.prune(**rule, dry_run=True)
    assert plan.pruned_versions == (1, 2, 3, 4, 5)
    fill(client)
    assert thread.prune(**rule, plan=plan).pruned_versions == plan.pruned_versions
    plan = thread.prune(keep_latest_per_branch=4, dry_run=True)
    other = type(plan.plan)()
    other.CopyFrom(plan.plan)
    other.newest_digest = b"another version!"
    with pytest.raises(VersionMismatch, match="make a new plan"):
        thread.prune(keep_latest_per_branch=4, plan=dataclasses.replace(plan, plan=other))
    with pytest.raises(TypeError, match="dry run"):
        thread.prune(keep_latest_per_branch=4, plan=PruneResult((1,), 1))
    with pytest.raises(TypeError, match="not both"):
        thread.prune(keep_latest_per_branch=4, plan=plan, dry_run=True)
    info = thread.info()
    anew(client)
    with pytest.raises(ThreadNotFound):
        client.thread("t").prune(keep_latest_per_branch=1, expected_uid=info.uid)
    with pytest.raises((VersionMismatch, ThreadNotFound)):
        client.thread("t").delete(expected_version=info)
    assert entries(client) == [0, 1, 2, 3, 4, 5]


def test_a_tag_that_moved(stateward, client):
    """`tag --delete --expected V` leaves a tag alone that names another version by now, and so does `delete_tag`."""
    fill(client)
    thread = client.thread("t")
    old = thread.checkpoint(1)
    thread.tag("good", 2)
    refused = stateward("tag", "t", "good", "--delete", "--expected", "1")
    assert refused.code == 1
    assert "names version 2" in refused.error
    with pytest.raises(VersionMismatch):
        thread.delete_tag("good", expected=old)
    with pytest.raises(VersionMismatch):
        thread.delete_tag("good", expected=dataclasses.replace(thread.checkpoint(2), digest=old.digest))
    assert stateward("tag", "t", "good", "--delete", "--expected", "2").code == 0
