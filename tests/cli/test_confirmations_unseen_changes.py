"""The danger: a person says yes to what the command shows, and the command does something else, because another client
changed it while the question was open."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.cli.conftest import Person, run, run_on_terminal
from tests.daemon.wire import Wire
from tests.messages import to_write

from stateward import Client, Put, Status, Thread, cli
from stateward.cli.app import app
from stateward.cli.options.catalog import LONGER, load
from stateward.errors import InvalidField, UidMismatch, VersionMismatch
from stateward.models import PruneResult, ThreadInfo
from stateward.signals import Question
from stateward.testing import Daemon
from stateward.v1.effect_pb2 import Effect
from stateward.v1.effect_service_pb2 import PutEffectsRequest

CHOSEN, ANCHOR = "chosen-by-the-agent", "a-checkpoint"


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
    return sorted(each.version for each in client.thread("t").checkpoints.list())


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


def tags(client: Client) -> dict[str, int]:
    return {each.name: each.version for each in client.thread("t").info().tags}


def answer_and_ask_again(client: Client, text: str = "Book Ibis for 120?", *, saves_between: bool = False) -> None:
    """Somebody else answers; the agent uses the answer, and asks in the same words, under the same wait id."""
    thread = client.thread("t")
    thread.approve("mine")
    state = thread.hydrate()
    assert state.answer is not None
    if saves_between:
        thread.save(state)
        state = thread.hydrate()
    thread.ask(state, text, wait_id=CHOSEN)


def work_and_ask_again(client: Client) -> None:
    """Nobody answers; the agent works on, and asks in the same words."""
    thread = client.thread("t")
    thread.save(thread.hydrate())
    thread.ask(thread.hydrate(), "Book Ibis for 120?", wait_id=CHOSEN)


def go_on_asking(client: Client) -> None:
    """The agent saves while its question stays open, and uses a signal that is no answer."""
    thread = client.thread("t")
    thread.signals.send("note")
    for number in range(3):
        state = thread.hydrate()
        state.slots["n"] = number
        asked = state.checkpoint
        thread.save(state, status=asked.status, wait_id=asked.wait_id, question=asked.question, ack=state.signals)


def is_unanswered(client: Client) -> bool:
    return not client.thread("t").signals.list()


KEEP = ["prune", "t", "--keep-latest", "4"]  # 1 and 2 of the six versions
CASES = {
    "prune: an agent saves": Case(
        KEEP, lambda client: fill(client, count=8), lambda client: versions(client) == list(range(3, 15)), 0
    ),
    "prune: a version gets a tag": Case(
        KEEP, lambda client: client.thread("t").tags.set("kept", 2), lambda client: versions(client) == [2, 3, 4, 5, 6],
        1, "1 version less",
    ),
    "prune: a branch begins": Case(
        KEEP,
        begin_branch,
        lambda client: versions(client) == list(range(2, 8)),
        1,
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
        lambda client: client.thread("t").tags.set("kept", 3),
        lambda client: versions(client) == [1, 2, 3, 4, 5, 6],
        1,
    ),
    "prune: another head would move": Case(
        ["prune", "t", "--versions", "5-6", "--move-heads"],
        lambda client: client.thread("t").branches.move("main", 5),
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
    "rm: the thread is made anew": Case(
        ["rm", "t"], anew, lambda client: versions(client) == [1, 2, 3, 4, 5, 6], 1, "'t' was deleted elsewhere"
    ),
    "rm: somebody else deletes it": Case(
        ["rm", "t"], lambda client: client.thread("t").delete(), lambda client: not list(client.threads()), 1,
        "'t' was deleted elsewhere",
    ),
    "rm: an agent saves": Case(["rm", "t"], fill, lambda client: len(versions(client)) == 12, 1, "has changed"),
    "rm: an agent saves to a branch": Case(
        ["rm", "t"],
        begin_branch,
        lambda client: len(versions(client)) == 7,
        1,
        "has changed",
    ),
    "rm: a record gets another value of the same size": Case(
        ["rm", "t"], lambda client: put(client, "a/1"), lambda client: len(versions(client)) == 6, 1, "has changed"
    ),
    "rm: a signal comes": Case(
        ["rm", "t"],
        lambda client: client.thread("t").signals.send("go"),
        lambda client: len(client.thread("t").signals.list()) == 1,
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
        1,
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
CASES |= {
    "records rm: a named record is written again": Case(
        ["records", "rm", "t", "a/1", "a/2"],
        lambda client: put(client, "a/2"),
        lambda client: keys(client) == ["a/2", "b/1"],
        1,
        "record 'a/2' of thread 't' was not deleted: it was written",
    ),
    "records rm: a thread made anew has the named record": Case(
        ["records", "rm", "t", "a/1"],
        lambda client: (anew(client), put(client, "a/1", "a/2", "b/1")),
        lambda client: keys(client) == ["a/1", "a/2", "b/1"],
        1,
        "0 records deleted",
    ),
    "branch --move-to: an agent saves": Case(
        ["branch", "t", "main", "--move-to", "3"], fill, lambda client: len(entries(client)) == 12, 1, "look again"
    ),
    "branch --move-to: the thread is made anew": Case(
        ["branch", "t", "main", "--move-to", "3"], anew, lambda client: len(entries(client)) == 6, 1
    ),
    "branch --delete: an agent saves": Case(
        ["branch", "t", "b", "--delete"],
        lambda client: client.thread("t", branch="b").append("l", "more"),
        lambda client: client.thread("t", branch="b").checkpoints.get().version == 8,
        1,
        "look again",
    ),
    "branch --delete: it is made anew": Case(
        ["branch", "t", "b", "--delete"],
        lambda client: (client.thread("t").branches.delete("b"), begin_branch(client)),
        lambda client: client.thread("t", branch="b").checkpoints.get().version == 8,
        1,
        "look again",
    ),
    "tag --delete: it moves": Case(
        ["tag", "t", "good", "--delete"],
        lambda client: client.thread("t").tags.set("good", 4),
        lambda client: tags(client) == {"good": 4},
        1,
        "lists the tags",
    ),
    "tag --delete: the thread is made anew": Case(
        ["tag", "t", "good", "--delete"],
        lambda client: (anew(client), client.thread("t").tags.set("good", 2)),
        lambda client: tags(client) == {"good": 2},
        1,
    ),
    "tag: somebody else moves it": Case(
        ["tag", "t", "good", "--at", "6"],
        lambda client: client.thread("t").tags.set("good", 4),
        lambda client: tags(client) == {"good": 4},
        1,
        "lists the tags",
    ),
    "tag: the head is another one": Case(
        ["tag", "t", "good"], fill, lambda client: tags(client) == {"good": 6}, 0
    ),
}
for command in (["approve", "t"], ["reject", "t"], ["answer", "t", "yes"]):
    for what, meanwhile in {
        "another question": lambda client: ask(client, "Delete the whole account?"),
        "no question any more": lambda client: client.thread("t").save(client.thread("t").hydrate()),
        "the same words, once another answer was used": answer_and_ask_again,
        "the same words, after other work": lambda client: answer_and_ask_again(client, saves_between=True),
        "the same words, without an answer": work_and_ask_again,
        "the same words, and nobody knows since when": lambda client: (
            answer_and_ask_again(client), client.thread("t").prune(keep_latest_per_branch=1)
        ),
        "the same words in a thread made anew": lambda client: (anew(client), ask(client, "Book Ibis for 120?")),
    }.items():
        CASES[f"{command[0]}: {what}"] = Case(command, meanwhile, is_unanswered, 1, "nothing was sent")
    CASES[f"{command[0]}: the same question, asked again"] = Case(
        command, lambda client: ask(client, "Book Ibis for 120?"), lambda client: not is_unanswered(client), 0
    )
    CASES[f"{command[0]}: the question stays open while its agent saves"] = Case(
        command, go_on_asking, lambda client: not is_unanswered(client), 0
    )


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, client: Client) -> Case:
    fill(client)
    found = CASES[request.param]
    if found.command[0] == "records":
        put(client, "a/1", "a/2", "b/1")
    if "same size" in request.param:
        put(client, "a/1")
    if found.command[0] == "branch" and "b" in found.command:
        begin_branch(client)
    if found.command[0] == "tag":
        client.thread("t").tags.set("good", 2)
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


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """All commands of the tree, by their words."""
    if not hasattr(command, "list_commands"):
        yield " ".join(path), command
        return
    for name in command.list_commands(None):
        yield from leaves(command.get_command(None, name), (*path, name))


def all_commands() -> dict[str, Any]:
    longer = {" ".join(words): load(" ".join(words), entry) for words, entry in LONGER.items()}
    return dict(leaves(typer.main.get_command(app))) | longer


LOOKING = {
    "threads", "show", "history", "diff", "replay", "watch", "effects", "records list", "records get", "tools",
    "failures", "waiting", "export", "archive status", "archive list", "archive verify", "doctor", "stats", "verify",
    "conformance", "demo", "completion", "status", "service print", "token list",
    "audit-log check", "audit-proof", "keys list", "workspace du",
    "workspace ls", "workspace cat", "workspace diff", "workspace plan", "workspace export",
}  # fmt: skip
"""They change nothing that anybody else has written."""
NOT_ASKING = {
    "records put": "writes the value that is given, as a save does; --expected names what it may replace",
    "workspace snapshot": "saves a version with the files that are there; the old ones stay",
    "fork": "makes a thread under a name that nobody has",
    "migrate": "saves new versions; the old ones stay",
    "signal": "adds a message",
    "run": "starts commands",
    "import": "adds threads, and versions to those that it made itself",
    "import langgraph": "adds threads",
    "archive restore": "copies to this disk; the daemon sets aside what differs",
    "archive repair": "puts back what this disk wrote last, if the archive has nothing newer",
    "archive gc": "removes what nobody can reach any more; no write can bring it back",
    "archive index": "adds names",
    "restore": "as archive restore",
    "attach": "removes nothing: an owner that lives keeps what it did not archive as an orphan; --take-over says it",
    "detach": "archives, and gives up the right to write, which anybody may take again",
    "drain": "the same for all threads",
    "compact": "removes what nobody can reach any more",
    "keys new": "refuses a file that exists",
    "keys rotate": "adds a key that opens the archive; data without one need the new key from then on",
    "keys retire": "refuses while a sidecar uses the key; whoever has it can be given the new one",
    "keys rekey": "seals the same content under another key; what is removed is the old key",
    "keys wrap": "refuses a file that exists, and leaves the key file as it is",
    "token new": "adds a token; the others stay",
    "token revoke": "who revokes a token is in a hurry, and makes a new one as easily",
    "workspace restore": "keeps what was there as an undo, and stops at what changes meanwhile",
    "workspace undo": "as workspace restore",
    "workspace import": "saves a version with the files of a tar; the old ones stay",
    "stop": "removes nothing; whoever has the daemon open starts it again",
    "service install": "writes one file that uninstall takes back; the data stay",
    "service uninstall": "takes back what install wrote; the data stay",
}
"""They act at once. The reason."""
WAYS = {
    "rm": ["rm t", "rm --prefix t"],
    "prune": ["prune t --keep-latest", "prune t --versions", "--move-heads"],
    "records rm": ["records rm t --prefix", "records rm t a/1"],
    "branch": ["--move-to", "--delete"],
    "tag": ["tag t good --at", "--delete"],
    "approve": ["approve t"],
    "reject": ["reject t"],
    "answer": ["answer t yes"],
}
"""The commands that ask, and the ways in which each acts after a yes: each has a case."""


def test_every_command_is_among_them():
    """A new command says that it only looks, or why it does not ask; or it asks, and has to show here that it acts on
    what it showed."""
    commands = all_commands()
    assert sorted(commands) == sorted([*LOOKING, *NOT_ASKING, *WAYS])
    assert {name for name, each in commands.items() if has_option(each, "--yes")} == set(WAYS)
    typed = [" ".join(each.command) for each in CASES.values()]
    for command, ways in WAYS.items():
        for way in ways:
            assert any(words.startswith(command) and way in words for words in typed), (command, way)
    asking = {
        path.stem
        for path in Path(cli.__file__).parent.glob("commands/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "confirm"
    }
    modules = {"reject": "approve", "answer": "approve", "records rm": "records"}
    assert asking == {modules.get(each, each) for each in WAYS}


DESTRUCTIVE = re.compile(r"remov|delet|destroy|overwrit|replac|rewrit|mov(e|es|ed)\b|\btakes?\b.* from", re.IGNORECASE)
HARMLESS = {
    "branch --unset": "edits the new branch",
    "prune --dry-run": "only reports",
    "verify --shredded": "only reports",
    "archive gc --dry-run": "only reports",
}


def test_every_option_that_removes_is_among_them():
    """A new option that moves, removes or replaces something has a case, or a reason."""
    found = {
        f"{name} {option}"
        for name, each in all_commands().items()
        for parameter in each.params
        for option in parameter.opts
        if option.startswith("--") and DESTRUCTIVE.search(getattr(parameter, "help", "") or "")
    }
    ways = {f"{command} {way}" for command, ways in WAYS.items() for way in ways}
    known = {"branch --expected", "attach --take-over", *HARMLESS}
    assert found - ways - known == set()


def has_option(command: Any, option: str) -> bool:
    return any(option in parameter.opts for parameter in command.params)


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
    assert [(each.name, each.wait_id) for each in client.thread("t").signals.list()] == [("approve", CHOSEN)]
    assert stateward("rm", "t", person=nobody).out == "removed t\n"
    assert nobody.questions == 4


def tell(daemon: Daemon, client: Client, key: str, *, acks: list[str], status: Status, **question: Any) -> None:
    """The agent records an effect of the version, and tells its status with it, as a LangGraph agent does."""
    effect = Effect(anchor=ANCHOR, key=key, value={"media_type": "application/json", "data": b"1"})
    request = to_write(
        PutEffectsRequest,
        namespace=client.namespace, thread="t", effects=[effect], request_id=key, ack_signals=acks, status=int(status),
        **question,
    )  # fmt: skip
    wire = Wire(daemon.target)
    try:
        wire.effects.PutEffects(request)
    finally:
        wire.close()


@pytest.mark.parametrize("command", [("approve", "t"), ("reject", "t"), ("answer", "t", "yes")])
def test_somebody_else_answers(stateward, client, command):
    """The error says who."""
    fill(client)
    ask(client, "Book Ibis for 120?")
    answer = stateward(*command, person=Person(lambda: client.thread("t").approve(sender="ana")))
    assert answer.code == 1
    assert "answered already, with signal 'approve' by 'ana'" in answer.err
    assert len(client.thread("t").signals.list()) == 1


@pytest.mark.parametrize("way", ["an answer was used", "it worked on", "it told nothing new"])
def test_a_question_that_an_effect_asks_again(daemon, stateward, client, way):
    """The thread has no new version by that; an answer is for the asking that was shown all the same."""
    thread = client.thread("t")
    asked = {"wait_id": CHOSEN, "question": Question("Book Ibis for 120?")}
    thread.save(thread.hydrate(), status=Status.WAITING, checkpoint_id=ANCHOR, **asked)
    shown = thread.info()
    again = {"wait_id": CHOSEN, "question": asked["question"].to_proto()}

    def meanwhile() -> None:
        acks = [thread.approve("mine").id] if way == "an answer was used" else []
        if way == "it worked on":
            tell(daemon, client, "first", acks=[], status=Status.RUNNING)
        tell(daemon, client, "second", acks=acks, status=Status.WAITING, **again)

    answer = stateward("approve", "t", person=Person(meanwhile))
    assert (thread.info().version, thread.info().question) == (shown.version, shown.question)
    if way == "it told nothing new":
        assert answer.code == 0, answer.err
    else:
        assert (answer.code, is_unanswered(client)) == (1, True)
        assert "nothing was sent" in answer.err


def test_an_entry_that_is_no_event(stateward, client, monkeypatch):
    """Nobody waits for ever for an event that does not come, and nothing is sent on a guess."""
    monkeypatch.setattr("stateward.cli.options.askings.EVENTS_TIMEOUT_S", 0.2)
    fill(client)
    ask(client, "Book Ibis for 120?")
    watch = Thread.watch
    monkeypatch.setattr(Thread, "watch", lambda self, **_: watch(self))
    answer = stateward("approve", "t", person=Person(lambda: client.thread("t").signals.send("note")))
    assert answer.code == 1
    assert [each.name for each in client.thread("t").signals.list()] == ["note"]


@pytest.mark.parametrize("command", [("approve", "t"), ("reject", "t"), ("answer", "t", "yes")])
def test_a_long_question_is_shown_whole(stateward, client, command):
    """Its end may be what matters: the prompt, `show` and what a script prints have it, and no control characters."""
    fill(client)
    ask(client, "Book it.\n\n\x1b[2J" + "word " * 2000 + "\nAnd delete the account?")
    asked = stateward(*command, person=Person(lambda: None)).err
    assert f"{'word ' * 2000}\n  And delete the account?\n" in asked
    assert "\x1b" not in asked
    assert asked.splitlines()[:2] == ["Thread 't' asks:", "  Book it."]
    assert "And delete the account?" in stateward("show", "t").out
    client.thread("t").save(client.thread("t").hydrate())
    ask(client, "word " * 2000 + "And delete the account?")
    assert "And delete the account?" in stateward(*command).out


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
    with pytest.raises(UidMismatch):
        client.thread("t").prune(keep_latest_per_branch=1, expected_uid=info.uid)
    with pytest.raises((VersionMismatch, UidMismatch)):
        client.thread("t").delete(expected_version=info)
    assert entries(client) == [0, 1, 2, 3, 4, 5]


def take_and_release(client: Client) -> None:
    with client.thread("t").lease():
        pass


CHANGES: dict[str, Callable[[Client], object]] = {
    "a version": fill,
    "a version of another branch": begin_branch,
    "a record of the same size": lambda client: put(client, "a/1"),
    "an effect": lambda client: client.thread("t").effects.run("k", lambda: 1),
    "a signal": lambda client: client.thread("t").signals.send("go"),
    "a tag": lambda client: client.thread("t").tags.set("good"),
    "a setting": lambda client: client.thread("t").update_options(labels={"a": "b"}),
    "a head": lambda client: client.thread("t").branches.move("main", 2),
    "pruned versions": lambda client: client.thread("t").prune(versions=[1]),
    "a lease": take_and_release,
}


@pytest.mark.parametrize("listed", [False, True])
def test_deletions_of_what_was_shown(client, listed):
    """`delete(unchanged_since=…)` deletes nothing once anything was written to the thread, whatever it was."""
    fill(client)
    put(client, "a/1")
    thread = client.thread("t")

    def show() -> ThreadInfo:
        return next(client.threads(name_prefix="t")) if listed else thread.info()

    for what, change in CHANGES.items():
        shown = show()
        change(client)
        assert thread.info().sequence > shown.sequence, what
        with pytest.raises(VersionMismatch, match="the journal of thread 't' ends with entry"):
            client.thread("t").delete(unchanged_since=shown)
        assert thread.info().uid == shown.uid, what
    shown = show()
    other = dataclasses.replace(shown, sequence_digest=b"another entry!!!")
    with pytest.raises(VersionMismatch, match="with another digest"):
        thread.delete(unchanged_since=other)
    for wrong in (dataclasses.replace(shown, sequence=-1), dataclasses.replace(shown, sequence_digest=b"short")):
        with pytest.raises(InvalidField, match="expected_sequence"):
            thread.delete(unchanged_since=wrong)
    anew(client)
    assert not client.thread("t").delete(missing_ok=True, unchanged_since=shown)
    assert client.thread("t").delete(unchanged_since=show())


def test_deletions_of_what_was_shown_in_the_archive(pair, namespace):
    """With an archive, the daemon compares before it deletes anything there, and again when no write can pass."""
    with pair.first.client(namespace=namespace) as client:
        client.thread("t").append("l", 1, durability="archived")
        shown = client.thread("t").info()
        client.records("t").put("a", 1)
        with pytest.raises(VersionMismatch):
            client.thread("t").delete(unchanged_since=shown)
        assert client.thread("t").append("l", 2).version == 2
        assert client.thread("t").delete(unchanged_since=client.thread("t").info())


def test_answers_of_the_library(client):
    """An answer with `unchanged_since` does not reach another question under the same wait id."""
    fill(client)
    ask(client, "Book Ibis for 120?")
    shown = client.thread("t").info()
    ask(client, "Delete the whole account?")
    with pytest.raises(VersionMismatch):
        client.thread("t").approve(wait_id=CHOSEN, unchanged_since=shown)
    assert is_unanswered(client)
    assert client.thread("t").approve(unchanged_since=client.thread("t").info()).wait_id == CHOSEN


def test_records_of_a_thread_made_anew(client):
    """`expected_uid` keeps a deletion of records from the next thread of the name, whose revisions are the same."""
    put(client, "a")
    info, revision = client.thread("t").info(), client.records("t").get("a").revision
    client.thread("t").delete()
    put(client, "a")
    records = client.records("t")
    assert records.get("a").revision == revision
    with pytest.raises(UidMismatch):
        records.delete("a", expected=revision, expected_uid=info.uid)
    with pytest.raises(UidMismatch):
        records.write([Put("b", 1)], expected_uid=info.uid)
    assert keys(client) == ["a"]


def test_a_tag_that_moved(stateward, client):
    """`tag --delete --expected V` leaves a tag alone that names another version by now, and so does `delete_tag`."""
    fill(client)
    thread = client.thread("t")
    old = thread.checkpoints.get(1)
    thread.tags.set("good", 2)
    refused = stateward("tag", "t", "good", "--delete", "--expected", "1")
    assert refused.code == 1
    assert "names version 2" in refused.error
    with pytest.raises(VersionMismatch):
        thread.tags.delete("good", expected=old)
    with pytest.raises(VersionMismatch):
        thread.tags.delete("good", expected=dataclasses.replace(thread.checkpoints.get(2), digest=old.digest))
    wrong = f"2:{old.digest.hex()}"
    assert "has the digest" in stateward("tag", "t", "good", "--delete", "--expected", wrong).error
    right = f"2:{thread.checkpoints.get(2).digest.hex()}"
    assert stateward("tag", "t", "good", "--delete", "--expected", right).code == 0


def test_expected_heads(stateward, client):
    """--expected takes VERSION or VERSION:DIGEST, and says what is wrong with anything else."""
    fill(client)
    begin_branch(client)
    shown = {each["branch"]: each for each in stateward("branch", "t", "--json").json}
    digests = {name: each["digest"] for name, each in shown.items()}
    move = ("branch", "t", "main", "--move-to", "3", "--expected")
    for wrong, said in (
        ("x", "neither VERSION nor VERSION:DIGEST"), ("6:", "32 hexadecimal digits"), ("6:zz", "32 hexadecimal"),
        (f"6:{digests['b']}", "has the digest"), (f"5:{'0' * 32}", "has the digest"), ("5", "version 6"),
    ):  # fmt: skip
        refused = stateward(*move, wrong)
        assert (refused.code, said in refused.error) == (1, True), refused.err
    assert stateward(*move, f"6:{digests['main'].upper()}").code == 0
    assert stateward("branch", "t", "b", "--delete", "--expected", f"7:{digests['b']}").code == 0
