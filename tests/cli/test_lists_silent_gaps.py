"""The danger: a list or a backup of everything lacks a thread, and nobody says so."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import run

from stateward.errors import StatewardError, ThreadsUnreadable
from stateward.models import Status
from stateward.testing import run_daemon
from stateward_sidecar.storage.keyslots import SLOT_BYTES
from stateward_sidecar.storage.keywraps import THREAD

NAMES = ("one", "two", "three")


def flip(data_dir: Path, at: int) -> None:
    """Flips a bit in the first slot of the key store that holds a thread's key."""
    path = data_dir / "keys"
    data = bytearray(path.read_bytes())
    slot = next(place for place in range(2 * SLOT_BYTES, len(data), SLOT_BYTES) if data[place] == THREAD)
    data[slot + at] ^= 4
    path.write_bytes(data)


def read(client, name):
    try:
        return client.thread(name).hydrate().version
    except StatewardError as error:
        return error.reason


def read_list(listed):
    """What a list shows, and the error in which it ends."""
    found = []
    try:
        for each in listed:
            found.append(each)  # noqa: PERF402
    except ThreadsUnreadable as error:
        return found, error
    pytest.fail("the list ended without an error")


@pytest.fixture(params=[0, 7, 30, 60], ids=["kind", "uid", "namespace", "key"])
def damaged(request, tmp_path):
    """A daemon with three threads in one namespace and one in another, and a damaged slot; the field in which."""
    with run_daemon(tmp_path / "data") as daemon:
        with daemon.client() as client:
            for name in NAMES:
                client.thread(name).append("log", name)
        with daemon.client(namespace="other") as client:
            client.thread("elsewhere").append("log", 1)
        daemon.stop()
        flip(daemon.data_dir, request.param)
        daemon.start()
        yield daemon, request.param


def test_lists_end_with_an_error_that_names_the_thread(damaged):
    """After all threads that can be opened; and so do lists of versions, and counts, which know missing keys."""
    daemon, field = damaged
    with daemon.client() as client:
        (lost,) = (name for name in NAMES if not isinstance(read(client, name), int))
        for listed in (client.threads(), client.threads(page_size=1), client.checkpoints()):
            found, error = read_list(listed)
            assert {getattr(each, "thread", "") or each.name for each in found} == set(NAMES) - {lost}
            (unreadable,) = error.threads
            assert len(unreadable.uid) == 32
            assert unreadable.uid in str(error) or unreadable.name == lost
        if field in (0, 7):  # the slot is no longer that of a thread with a name
            with pytest.raises(ThreadsUnreadable) as caught:
                client.count_threads()
            assert caught.value.counts == {Status.RUNNING: 3}
        else:
            assert client.count_threads() == {Status.RUNNING: 3}
    with daemon.client(namespace="other") as client:
        assert [each.name for each in client.threads()] == ["elsewhere"]
        assert client.count_threads() == {Status.RUNNING: 1}


def test_commands_do_the_rest_and_fail(damaged, tmp_path):
    """A table, a backup of everything, and a removal by prefix; a restore of the backup has what could be read."""
    daemon, _ = damaged
    asked = ("--target", daemon.target)
    with daemon.client() as client:
        left = {name for name in NAMES if isinstance(read(client, name), int)}
    assert len(left) == 2
    answer = run(*asked, "threads")
    assert (answer.code, {line.split()[0] for line in answer.out.splitlines()[1:]}) == (1, left)
    assert "1 thread cannot be opened" in answer.error
    path = tmp_path / "all.jsonl"
    answer = run(*asked, "export", "--all", "--versions", "-o", path)
    assert answer.code == 1
    assert "the export lacks threads: 1 thread cannot be opened" in answer.err
    with run_daemon(tmp_path / "restored") as other:
        assert run("--target", other.target, "import", path).code == 0
        with other.client() as client:
            assert {each.name for each in client.threads()} == left
    answer = run(*asked, "rm", "--prefix", "t", "--yes", "--json")
    assert (answer.code, "1 thread cannot be opened" in answer.error) == (1, True)
    told = json.loads(answer.out)
    assert told["removed"] == sorted(left - {"one"})
    assert len(told["not_removed"]) == 1
    assert told["not_removed"][0]["reason"]


def test_a_healthy_store_is_listed_without_a_word(tmp_path):
    """Threads that are deleted while they are listed are no damage."""
    with run_daemon(tmp_path / "data") as daemon, daemon.client() as client:
        for number in range(40):
            client.thread(f"t{number}").append("log", 1)
        for number, info in enumerate(client.threads(page_size=3)):
            if number % 2:
                client.thread(info.name).delete()
        assert len(list(client.threads())) == 20
        assert client.count_threads() == {Status.RUNNING: 20}
        assert run("--target", daemon.target, "export", "--all", "--versions", "-o", tmp_path / "x.jsonl").code == 0
