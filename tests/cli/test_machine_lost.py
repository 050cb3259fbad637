"""The danger: a machine that is gone, and a person at another one who cannot get its threads back, or takes them from
somebody who is alive."""

import shutil

import pytest
from tests.cli.conftest import run, run_on_terminal

from stateward.archive import RestoreProgress
from stateward.errors import ServerUnavailable


@pytest.fixture
def first(own_pair):
    return lambda *arguments, **more: run("--target", own_pair.first.target, *arguments, **more)


@pytest.fixture
def second(own_pair):
    return lambda *arguments, **more: run("--target", own_pair.second.target, *arguments, **more)


@pytest.fixture
def archived(own_pair):
    """The first sidecar's client, after two threads were archived."""
    with own_pair.first.client() as client:
        for name in ("run/1", "run/2"):
            client.thread(name).append("l", 1)
            client.thread(name).append("l", 2, durability="archived")
        yield client


@pytest.fixture
def lost(own_pair, archived):
    """The first machine is gone, disk and all."""
    own_pair.first.kill()
    shutil.rmtree(own_pair.first.data_dir)


def test_held_by_the_living(archived, second):
    """Whoever has no claim to a thread is told who has it, and what to do if that machine is dead."""
    answer = second("attach", "run/1")
    assert answer.code == 1
    assert "first" in answer.error
    assert "--wait" in answer.error
    assert "--take-over" in answer.error
    assert second("attach", "run/1", "--read-only", "--json").json["access"] == "remote"
    assert archived.thread("run/1").append("l", 3).version == 3


def test_given_up_and_taken(archived, first, second):
    """What one sidecar detaches another one attaches."""
    assert "given up" in first("detach", "run/1").out
    answer = second("attach", "run/1")
    assert answer.code == 0, answer.err
    assert "written by this sidecar" in answer.out
    assert "newest version is 2" in answer.out
    assert first("attach", "run/1").code == 1
    assert first("attach", "run/1", "--take-over", "--json").json["access"] == "owned"


def test_wait_for_the_dead(lost, second):
    """With --wait the command returns when the lease of the dead machine has passed."""
    answer = second("attach", "run/2", "--wait", "30s", "--json")
    assert (answer.json["access"], answer.json["version"], answer.json["owner_id"]) == ("owned", 2, "second")


def test_restore(lost, second, own_pair):
    """Everything comes back, with its history; a dry run says so first, and a second run finds nothing new."""
    assert "would restore 2 threads" in second("restore", "--dry-run").out
    assert second("threads", "--json").json == []
    assert "restored 2 threads: 4 entries" in second("restore").out
    assert [each["thread"] for each in second("threads", "--json").json] in (["run/1", "run/2"], ["run/2", "run/1"])
    again = second("archive", "restore", "--json").json
    assert again == {"threads": 2, "entries": 0, "read_bytes": again["read_bytes"], "problems": [], "dry_run": False}
    shown = second("show", "run/1", "--at", "1", "--json").json
    assert shown["logs"] == {"l": [1]}
    assert shown["owner_id"] == "first"


def test_restore_one(lost, second):
    """One thread alone can be restored; one that nobody archived is an error with the next step."""
    assert second("restore", "run/2", "--json").json["threads"] == 1
    for command in (["restore"], ["attach"], ["archive", "verify"], ["verify", "--archive"]):
        answer = second(*command, "nope")
        assert answer.code == 1
        assert "`stateward archive list`" in answer.error


def test_list_and_index(lost, second):
    """The archive's threads can be listed from anywhere, and found by `threads` once they are indexed."""
    answer = second("archive", "list")
    assert answer.code == 0, answer.err
    assert answer.out.splitlines()[0].split() == [
        "NAMESPACE", "THREAD", "VERSION", "STATUS", "WRITTEN", "BY", "ARCHIVED", "SIZE",
    ]  # fmt: skip
    assert sorted(line.split()[1:5] for line in answer.out.splitlines()[1:]) == [
        ["run/1", "2", "running", "first"],
        ["run/2", "2", "running", "first"],
    ]
    listed = second("archive", "list", "--json").json
    assert {(each["thread"], each["owner_id"], each["detached"]) for each in listed} == {
        ("run/1", "first", False),
        ("run/2", "first", False),
    }
    assert second("--namespace", "elsewhere", "archive", "list", "--json").json == []
    assert second("archive", "index", "--json").json == {"threads": 2, "problems": []}
    assert len(second("threads", "--json").json) == 2


def test_missing_objects_are_reported(archived, first, second, own_pair):
    """What the archive lost is a finding and exit code 1; where the disk has it, repair writes it anew."""
    assert "all is well" in first("archive", "verify", "--read-data", "100").out
    assert first("verify", "--archive", "--json").json["findings"] == []
    for key, data in own_pair.objects().items():
        if key.endswith("HEAD"):
            (own_pair.bucket / key).write_bytes(data[:-1])
    answer = first("archive", "verify", "--json", "--read-data", "100%")
    assert answer.code == 1
    assert "CORRUPT" in answer.out
    assert "archive repair THREAD" in answer.error
    assert second("archive", "list").code == 1
    answer = first("archive", "repair", "run/1", "--dry-run")
    assert answer.code == 0, answer.err
    assert "nothing was written" in answer.out
    assert first("archive", "repair", "run/1", "--json").json["findings"]
    assert first("archive", "repair", "run/2").code == 0
    assert first("archive", "verify", "--read-data", "100").code == 0
    assert second("show", "run/1", "--json").json["logs"] == {"l": [1, 2]}


def test_garbage(archived, first, own_pair):
    """A dry run names what a collection would remove, and removes nothing; no version is lost by the real one."""
    archived.thread("run/2").delete()
    before = own_pair.settled().keys()
    would = first("archive", "gc", "--dry-run", "--older-than", "0.01s", "--json").json
    assert own_pair.objects().keys() == before
    assert set(would["keys"]) <= before
    answer = first("archive", "gc", "--older-than", "0.01s")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("removed ")
    assert set(would["keys"]) <= before - own_pair.objects().keys()
    assert first("verify", "--archive").code == 0
    assert list(archived.thread("run/1").hydrate().logs["l"]) == [1, 2]


def test_progress(lost, own_pair):
    """On a terminal long work shows how far it is."""
    for command in ("restore", "verify"):
        code, shown = run_on_terminal("--target", own_pair.second.target, "archive", command)
        assert code == 0, shown
        assert f"{command.removesuffix('e').removesuffix('y')}" in shown


def test_make_room(archived, first, own_pair):
    """What is removed from this disk only comes back from the archive, which need not even answer."""
    answer = first("rm", "run/1", "--local-only")
    assert answer.code == 1
    assert "from this disk" in answer.error
    assert first("rm", "run/1", "--local-only", "--yes").out == "removed run/1 from this disk\n"
    assert [each["thread"] for each in first("threads", "--json").json] == ["run/2"]
    assert first("show", "run/1", "--json").json["logs"] == {"l": [1, 2]}
    own_pair.go_away()
    assert first("rm", "run/2", "--local-only", "--yes").code == 0


class CutOff:
    """A restore whose daemon goes away after the first of two threads."""

    def __enter__(self):
        return iter(self)

    def __exit__(self, *error):
        return None

    def __iter__(self):
        yield RestoreProgress(2, 1, 4, 100, "run/1", "")
        raise ServerUnavailable("no stateward daemon answers")


def test_cut_off_restore(first, monkeypatch):
    """A restore that is cut off says how far it came, and that it may be run again."""
    monkeypatch.setattr("stateward._sync.archive.Archive.restore", lambda *_, **__: CutOff())
    answer = first("restore")
    assert answer.code == 1
    assert "1 of 2 threads were done: run it again" in answer.error
