"""The danger: threads or versions that are gone without anybody having said so."""

import json

import pytest
from tests.cli.conftest import run_on_terminal

from stateward.errors import NotOwner, ServerUnavailable, ThreadNotFound


@pytest.fixture
def three(client):
    """Three threads of two versions each."""
    for name in ("a/1", "a/2", "b"):
        client.thread(name).append("l", 1)
        client.thread(name).append("l", 2)
    return client


@pytest.fixture
def typed(daemon, namespace):
    """Runs the command on a terminal, and types an answer."""
    return lambda answer, *arguments: run_on_terminal(
        "--target", daemon.target, "-n", namespace, *arguments, typed=answer + "\n"
    )


def names(client):
    return sorted(info.name for info in client.threads())


@pytest.mark.parametrize("arguments", [["rm", "b"], ["rm", "--prefix", "a/"], ["prune", "b", "--keep-latest", "1"]])
def test_without_a_terminal_only_yes_will_do(stateward, three, arguments):
    """Where nobody can be asked, nothing is removed without --yes, and the error says so."""
    answer = stateward(*arguments)
    assert answer.code == 1
    assert "--yes" in answer.error
    assert names(three) == ["a/1", "a/2", "b"]
    assert three.thread("b").info().retained_versions == 2
    assert stateward(*arguments, "--yes").code == 0
    assert names(three) == (["b"] if "--prefix" in arguments else ["a/1", "a/2", "b"][: 3 - (arguments[0] == "rm")])
    assert arguments[0] == "rm" or three.thread("b").info().retained_versions == 1


@pytest.mark.parametrize("answer", ["", "yes please"])
def test_anything_but_yes_means_no(typed, three, answer):
    """On a terminal the question says how much would go, and only y or yes removes it."""
    code, shown = typed(answer, "rm", "--prefix", "a/")
    assert code == 1
    assert "Remove 2 threads of namespace" in shown
    assert "with 4 versions for good? [y/N]" in shown
    assert "nothing was removed" in shown
    assert names(three) == ["a/1", "a/2", "b"]


def test_a_thread_that_cannot_be_removed(stateward, client, monkeypatch):
    """The others go, it is named, and JSON says what is gone."""
    for name in ("t1", "t2", "t3"):
        client.thread(name).append("l", 1)
    delete = type(client.thread("t2")).delete

    def refuse(self, **options):
        if self.name == "t2":
            raise NotOwner("another machine has it")
        return delete(self, **options)

    monkeypatch.setattr(type(client.thread("t2")), "delete", refuse)
    answer = stateward("rm", "--prefix", "t", "--yes", "--json")
    kept = [{"thread": "t2", "reason": "another machine has it"}]
    assert (answer.code, json.loads(answer.out)) == (1, {"removed": ["t1", "t3"], "not_removed": kept})
    assert "thread 't2': another machine has it" in answer.err
    assert [info.name for info in client.threads()] == ["t2"]


def test_a_thread_that_came_while_the_question_was_open(stateward, three, monkeypatch):
    """A yes is about the threads that were there when the command asked."""

    def answer(*_, **__):
        three.thread("b").delete()
        three.thread("b").append("l", "next")

    monkeypatch.setattr("stateward.cli.commands.rm.confirm", answer)
    said = stateward("rm", "b", "a/1", "--json")
    (kept,) = json.loads(said.out)["not_removed"]
    assert (said.code, json.loads(said.out)["removed"], kept["thread"]) == (1, ["a/1"], "b")
    assert "deleted elsewhere" in kept["reason"]
    assert "thread 'b' was deleted elsewhere" in said.err
    assert list(three.thread("b").hydrate().logs["l"]) == ["next"]
    alone = stateward("rm", "b", "--json")
    assert (alone.code, json.loads(alone.out)["not_removed"][0]["thread"]) == (1, "b")


def test_the_daemon_goes_away(stateward, three, monkeypatch):
    """JSON then names the threads that were not tried, too."""
    thread = type(three.thread("b"))

    def refuse(self, **_):
        raise ServerUnavailable("it went away")

    monkeypatch.setattr(thread, "delete", refuse)
    answer = stateward("rm", "a/1", "b", "--yes", "--json")
    assert answer.code == 1
    assert json.loads(answer.out) == {
        "removed": [],
        "not_removed": [
            {"thread": "a/1", "reason": "it went away"}, {"thread": "b", "reason": "it was not tried"}
        ],
    }  # fmt: skip


def test_the_question_says_what_is_lost(stateward, three):
    """Not only versions: records, effects and signals, too."""
    three.records("b").put("k", 1)
    three.records("b").put("l", 1)
    three.thread("b").signals.send("go")
    three.thread("b").effects.run("e", lambda: 1)
    assert "with 2 versions, 2 records, 1 effect and 1 waiting signal for good?" in stateward("rm", "b").error
    assert "with 4 versions, 2 records, 1 effect and 1 waiting signal for good?" in stateward("rm", "b", "a/1").error


def test_yes_on_the_terminal(typed, three):
    """A yes removes what the question named, and nothing else."""
    code, shown = typed("YES", "rm", "b", "a/2")
    assert code == 0, shown
    assert names(three) == ["a/1"]


def test_one_wrong_name_costs_nothing(stateward, three):
    """If one of the names does not exist, none is removed; with --missing-ok the others are."""
    answer = stateward("rm", "b", "nope", "--yes")
    assert answer.code == 1
    assert "nothing was removed" in answer.error
    assert "--missing-ok" in answer.error
    assert names(three) == ["a/1", "a/2", "b"]
    assert stateward("rm", "b", "nope", "--yes", "--missing-ok", "--json").json["removed"] == ["b"]
    assert stateward("rm", "nope", "--missing-ok").code == 0  # nothing to ask about
    assert stateward("rm", "--prefix", "nope", "--missing-ok").code == 0


def test_prefix_is_no_pattern(stateward, client):
    """A prefix removes the names that begin so, letter for letter."""
    for name in ("a*", "ab", "a"):
        client.thread(name).append("l", 1)
    assert stateward("rm", "--prefix", "a*", "--yes", "--json").json == {"removed": ["a*"], "not_removed": []}
    assert names(client) == ["a", "ab"]


def test_copies_live_on(stateward, three):
    """What was forked stays readable when its source is removed."""
    assert stateward("fork", "b", "copy", "--at", "1").code == 0
    assert stateward("fork", "b", "all", "--whole").code == 0
    assert stateward("rm", "b", "--yes").code == 0
    assert list(three.thread("copy").hydrate().logs["l"]) == [1]
    assert list(three.thread("all").hydrate(1).logs["l"]) == [1]
    assert list(three.thread("all").hydrate().logs["l"]) == [1, 2]
    with pytest.raises(ThreadNotFound):
        three.thread("b").info()


def test_dry_run_removes_nothing(stateward, client):
    """A dry run names the versions that the same command then removes."""
    for number in range(6):
        client.thread("t").append("l", number)
    client.thread("t").tags.set("kept", 3)
    expected = {"pruned_versions": [1, 2, 4], "retained_versions": 3}
    rule = ("prune", "t", "--keep-latest", "2", "--json")
    assert stateward(*rule, "--dry-run").json == {**expected, "dry_run": True}
    assert client.thread("t").info().retained_versions == 6
    assert stateward(*rule, "--yes").json == {**expected, "dry_run": False}
    assert sorted(each.version for each in client.thread("t").checkpoints.list()) == [3, 5, 6]
    assert "removed 0 versions; 3 left" in stateward("prune", "t", "--older-than", "30d").out


def test_pruned_ranges(stateward, client):
    """Ranges and single versions may be mixed, and a version that is gone already is passed over."""
    for number in range(8):
        client.thread("t").append("l", number)
    answer = stateward("prune", "t", "--versions", "2-3, 5", "--yes")
    assert answer.out == "removed 3 versions (2-3, 5); 5 left\n"
    assert stateward("prune", "t", "--versions", "1-5", "--yes", "--json").json["pruned_versions"] == [1, 4]


def test_tags_are_moved_on_purpose(stateward, client):
    """--expected makes a tag move only from where it was thought to be; removing one keeps its version."""
    client.thread("t").append("l", 1)
    client.thread("t").append("l", 2)
    assert stateward("tag", "t", "good", "--at", "1", "--expected", "0").code == 0
    answer = stateward("tag", "t", "good", "--expected", "2")
    assert answer.code == 1
    assert "names version 1" in answer.error
    assert stateward("tag", "t", "--json").json == [{"tag": "good", "version": 1}]
    assert stateward("tag", "t", "good", "--expected", "1").code == 0
    assert stateward("tag", "t").out.split() == ["TAG", "VERSION", "good", "2"]
    assert stateward("tag", "t", "good", "--delete", "--yes").out == "good deleted; it named version 2\n"
    assert stateward("tag", "t", "--json").json == []
    assert client.thread("t").info().version == 2
