"""The danger: a copy, an orphan, or what is not archived, that looks like the thread itself."""

import pytest
from tests.cli.conftest import run

from stateward.errors import Fenced


@pytest.fixture
def first(pair, namespace):
    return lambda *arguments: run("--target", pair.first.target, "-n", namespace, *arguments)


@pytest.fixture
def second(pair, namespace):
    return lambda *arguments: run("--target", pair.second.target, "-n", namespace, *arguments)


@pytest.fixture
def clients(pair, namespace):
    with pair.first.client(namespace=namespace) as one, pair.second.client(namespace=namespace) as other:
        yield one, other


def columns(answer):
    assert answer.code == 0, answer.err
    return answer.out.splitlines()[0].split()


def test_own_threads_look_as_ever(first, clients):
    """Where every thread is this sidecar's and archived, no column is spent on that."""
    clients[0].thread("t").append("l", 1, durability="archived")
    assert columns(first("threads")) == ["THREAD", "VERSION", "STEP", "STATUS", "CHANGED", "STORED", "LABELS"]
    (shown,) = first("threads", "--json").json
    assert (shown["access"], shown["owner_id"], shown["orphan"]) == ("owned", "first", None)
    assert shown["archived_sequence"] == shown["sequence"] == 1


def test_copies_and_orphans_are_marked(first, second, clients):
    """A thread that another sidecar took says who writes it, and what this disk alone had is called an orphan."""
    here, there = (client.thread("t") for client in clients)
    here.append("l", 1, durability="archived")
    there.archive.attach(take_over=True)
    there.append("l", 2, durability="archived")
    with pytest.raises(Fenced) as caught:
        write_late(here)
    orphan = caught.value.orphan
    assert "sidecar second; this is its newest archived version" in first("show", "t").out
    answer = first("threads")
    assert "WRITTEN BY" in answer.out.splitlines()[0]
    rows = {line.split()[0]: line for line in answer.out.splitlines()[1:]}
    assert "second" in rows["t"]
    assert "orphan of t" in rows[orphan]
    by_name = {each["thread"]: each for each in first("threads", "--json").json}
    assert by_name["t"]["access"] == "remote"
    assert (by_name[orphan]["access"], by_name[orphan]["orphan"]["thread"]) == ("orphan", "t")
    history = first("history", "t")
    assert "sidecar second" in history.error
    assert "orphan of t" in first("history", orphan).error
    assert first("show", orphan, "--json").json["logs"] == {"l": [1, "too late"]}
    assert first("fork", orphan, "kept").code == 0
    assert columns(second("threads"))[-2:] == ["STORED", "LABELS"]
    facts = first("stats")
    assert "orphans" in facts.out
    assert first("stats", "--json").json["stats"]["archive"]["orphans"] >= 1


def test_a_thread_that_was_given_up_has_no_owner(first, second, clients):
    """No sidecar owns it, also if the one that is asked wrote it; once another one writes it, that one is named."""
    here, there = (client.thread("t") for client in clients)
    here.append("l", 1, durability="archived")
    here.archive.detach()
    assert "no sidecar owns now; first archived it last" in first("history", "t").error
    there.append("l", 2, durability="archived")
    history = first("history", "t").error
    assert "a copy of what sidecar second archived" in history
    assert "owns now" not in second("history", "t").err


def test_an_orphan_in_a_backup_is_restored_beside_it(first, clients, tmp_path):
    """No thread has the name of an orphan, so the restored one has an ending; a second restore makes nothing more."""
    here, there = (client.thread("t") for client in clients)
    here.append("l", 1, durability="archived")
    there.archive.attach(take_over=True)
    there.append("l", 2, durability="archived")
    with pytest.raises(Fenced) as caught:
        write_late(here)
    orphan = caught.value.orphan
    assert first("export", orphan, "--versions", "-o", str(tmp_path / "backup.jsonl")).code == 0
    for _ in range(2):
        assert first("import", str(tmp_path / "backup.jsonl")).code == 0
    (restored,) = {each.name for each in clients[0].threads()} - {"t", orphan}
    assert restored.startswith(f"{orphan}~")
    assert list(clients[0].thread(restored).hydrate().logs["l"]) == [1, "too late"]


def write_late(thread):
    thread.archive.wait(thread.append("l", "too late"))


def test_what_is_not_archived(first, clients, pair):
    """Versions that only this disk has are told from those that are archived, in every list."""
    thread = clients[0].thread("t")
    thread.append("l", 1, durability="archived")
    with pair.slow():
        thread.append("l", 2)
        assert "1 entry" in first("threads").out
        rows = first("history", "t").out.splitlines()
        assert "ARCHIVED" in rows[0]
        assert ["not yet" in rows[1], " yes " in rows[2] or rows[2].endswith(" yes")] == [True, True]
        assert [each["durability"] for each in first("history", "t", "--json").json] == ["committed", "archived"]
        assert "1 entry of 1 thread" in first("archive", "status").out
        assert "1 entry of 1 thread" in first("stats").out
        assert first("archive", "status", "--json").json["stats"]["lag_entries"] == 1
    thread.archive.wait(2)
    assert "not yet" not in first("history", "t").out
    assert "everything is archived" in first("archive", "status").out


def test_status(first, pair):
    """The status names the archive and this sidecar."""
    answer = first("archive", "status")
    assert answer.code == 0, answer.err
    assert f"file://{pair.bucket}" in answer.out
    found = first("archive", "status", "--json").json
    assert (found["owner_id"], found["interval"], found["stats"]["away"]) == ("first", pytest.approx(0.2), False)


def test_no_archive_no_columns(stateward, client):
    """Without an archive nothing speaks of one."""
    client.thread("t").append("l", 1)
    shown = [stateward(*each) for each in (["threads"], ["history", "t"], ["stats"])]
    assert [each.code for each in shown] == [0, 0, 0]
    assert "ARCHIVED" not in shown[1].out
    assert "WRITTEN" not in shown[0].out
    assert "bucket" not in shown[2].out
    assert stateward("stats", "--json").json["stats"]["archive"] is None


def test_what_the_archive_alone_has_is_said(first, second, clients, monkeypatch):
    """On a machine that has lost its disk, lists say what is in the archive only; scripts with --json are told
    nothing. A thread that the disk knows is asked for no more."""
    monkeypatch.setattr("stateward.cli.commands.threads.ELSEWHERE_S", 100.0)  # a busy machine lists as many
    for name in ("a", "b"):
        clients[0].thread(name).append("l", 1, durability="archived")
    told = "2 more threads are in the archive only: `stateward archive list`, `stateward restore`"
    for command in ("threads", "waiting"):
        answer = second(command)
        assert answer.code == 0
        assert answer.err.splitlines()[-1] == f"stateward: {told}"
        assert second(command, "--json").err == ""
        assert "archive only" not in first(command).err
    assert clients[1].thread("a").hydrate().version == 1
    assert "1 more thread is in the archive only" in second("threads").error
    assert [each.thread.name for each in clients[1].archive.list(elsewhere=True)] == ["b"]
