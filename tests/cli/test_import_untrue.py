"""The danger: an import says that a backup is there, and what it says is there was removed since."""

import gzip
import time

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
    assert f"thread 'job' was imported before and changed since: it lacks {12 - left} versions" in answer.err
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
    client.thread("job").branches.move("main", 5)
    answer = command("import", path)
    assert answer.code == 1
    assert "branch 'main' is at version 5, not 12" in answer.err


def test_trailing_bytes(restored, tmp_path):
    """A damaged file says whether anything of it was imported."""
    _, command, path = restored
    packed = tmp_path / "backup.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()) + b"trailing bytes")
    answer = command("import", packed, "--thread-prefix", "again/")
    assert answer.code == 1
    assert "damaged gzip" in answer.error
    assert answer.error.endswith("; nothing was imported")


def test_what_is_no_run(restored):
    """Verify finds nothing wrong with a thread that is no recorded run."""
    _, command, _ = restored
    answer = command("export", "--all")
    assert answer.code == 1
    assert "stateward verify" not in answer.err
    assert answer.err.splitlines()[-1].endswith("`stateward export --versions` exports threads that are no runs")


def test_expired_records(daemon, tmp_path):
    """No reader sees them any more, and no backup brings them back, although the sweep has not removed them."""
    path, namespace = tmp_path / "backup.jsonl", f"ttl-{tmp_path.name}"
    with Client(daemon.target, namespace=namespace) as client:
        records = client.records("scope")
        records.put("kept", 1)
        for key in ("a", "b"):
            records.put(key, 2, ttl=1)
        end = time.monotonic() + 30
        while records.get_many(["a", "b"]):
            assert time.monotonic() < end
            time.sleep(0.02)
    answer = run("--target", daemon.target, "-n", namespace, "export", "scope", "--versions", "-o", path)
    assert "1 record," in answer.error
    assert path.read_text().count('"kind":"record"') == 1
