"""The danger: an import says that a backup is there, and what it says is there was removed since."""

import pytest
from tests.cli.conftest import run

from stateward import Client


@pytest.fixture
def restored(daemon, tmp_path):
    """A thread of twelve versions and three records that was exported, and imported into another namespace."""
    origin, here = f"from-{tmp_path.name}", f"to-{tmp_path.name}"
    path = tmp_path / "backup.jsonl"
    with Client(daemon.target, namespace=origin) as client:
        thread = client.thread("job")
        for number in range(12):
            thread.set_slot("number", number)
        for key in ("a", "b", "c"):
            thread.records.put(key, key)

    def command(*arguments):
        return run("--target", daemon.target, "-n", here, *arguments)

    answer = run("--target", daemon.target, "-n", origin, "export", "job", "--versions", "-o", path)
    assert answer.code == 0, answer.err
    assert command("import", path).code == 0
    with Client(daemon.target, namespace=here) as client:
        yield client, command, path


def test_all_is_there(restored):
    """Also when the thread went on."""
    client, command, path = restored
    for _ in range(2):
        answer = command("import", path)
        assert (answer.code, answer.err) == (0, "")
        assert "12 versions were there already" in answer.out
        client.thread("job").set_slot("number", 100)
        client.thread("job").records.put("d", 1)


@pytest.mark.parametrize("goes_on", [False, True])
def test_pruned_versions(restored, goes_on):
    """They are not there, and are not counted."""
    client, command, path = restored
    if goes_on:
        client.thread("job").set_slot("number", 100)
    assert command("prune", "job", "--keep-latest", "1", "--yes").code == 0
    answer = command("import", path)
    assert answer.code == 1
    left = 0 if goes_on else 1
    assert f"thread 'job' was imported before, and was changed since: it lacks {12 - left} versions" in answer.err
    assert "12 versions were there already" not in answer.out
    assert ("1 version was there already" in answer.out) is (left == 1)


def test_removed_records(restored):
    """One that was removed is missing, whatever was put since."""
    client, command, path = restored
    client.thread("job").records.delete("b")
    client.thread("job").records.put("d", 1)
    answer = command("import", path)
    assert answer.code == 1
    assert "it lacks 1 record of the file" in answer.err


def test_moved_heads(restored):
    """A head before that of the file."""
    client, command, path = restored
    client.thread("job").move_head(5)
    answer = command("import", path)
    assert answer.code == 1
    assert "branch 'main' is at version 5, not 12" in answer.err
