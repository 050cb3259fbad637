"""The danger: a version that was thought to survive its machine and does not, or that is saved twice because it was
not archived at once."""

import shutil
import time

import pytest
from tests.daemon.process import Pair, archive_flags

from stateward._operations import threads
from stateward.errors import DeadlineExceeded, NoArchive, NotArchivedYet, ThreadNotFound
from stateward.models import Access, Durability
from stateward.testing import run_daemon


@pytest.fixture
def on_first(pair, open_client):
    """A client of the first sidecar whose calls take five seconds at most: a busy machine saves in that."""
    return open_client(pair.first.target, call_timeout=5)


def told(call):
    """Makes a call until the daemon tells how it went. It answers half a second before the deadline, and a machine that
    stands still for so long has the answer too late: then nobody knows, and the same call may be made again."""
    while True:
        try:
            return call()
        except DeadlineExceeded:
            continue


def test_archived_survives_the_machine(own_pair, open_client):
    """A save that was answered ARCHIVED is read on another machine when its own one is gone, disk and all."""
    thread = open_client(own_pair.first.target).thread("t")
    state = thread.hydrate()
    state.slots["goal"] = "Paris"
    checkpoint = thread.save(state, durability="archived")
    assert checkpoint.durability is Durability.ARCHIVED
    assert thread.checkpoints.get().durability is Durability.ARCHIVED
    info = thread.info()
    assert (info.archived_sequence, info.access, info.owner_id) == (checkpoint.sequence, Access.OWNED, "first")
    own_pair.first.kill()
    shutil.rmtree(own_pair.first.data_dir)
    found = open_client(own_pair.second.target).thread("t").hydrate(must_exist=True)
    assert (found.slots["goal"], found.version, found.digest) == ("Paris", 1, checkpoint.digest)


def test_late_archive(pair, on_first, name):
    """A save that is not archived in time is made all the same: the error carries it, and waiting on is enough."""
    thread = on_first.thread(name)
    state = thread.hydrate()
    state.logs["l"].append(0)
    thread.save(state, durability="archived")
    with pair.slow():
        state.logs["l"].append(1)
        begun = time.monotonic()
        with pytest.raises(NotArchivedYet, match=r"is saved .* thread\.archive\.wait\(checkpoint\)") as caught:
            told(lambda: thread.save(state, durability="archived", request_id="late"))
        assert time.monotonic() - begun < 30, "the call waits for its deadline, and no longer"
        late = caught.value.checkpoint
        assert (late.version, state.version, late.durability) == (2, 2, Durability.COMMITTED)
        with pytest.raises(NotArchivedYet) as caught:
            thread.archive.wait(late, timeout=0.3)
        assert (caught.value.checkpoint, caught.value.sequence) == (late, late.sequence)
        with pytest.raises(NotArchivedYet, match=rf"archive\.wait\({late.sequence}\)"):
            thread.archive.wait(late.sequence, timeout=0.3)
        with pytest.raises(NotArchivedYet) as caught:
            told(lambda: thread.append("l", 2, durability="archived", request_id="later"))
        assert thread.hydrate().version == caught.value.checkpoint.version == 3
        assert thread.info().unarchived_entries == 2
    result = thread.archive.wait(caught.value.checkpoint)
    assert (result.durability, result.archived_sequence) == (Durability.ARCHIVED, 3)
    assert list(thread.hydrate().logs["l"]) == [0, 1, 2]
    assert thread.info().unarchived_entries == 0


def test_late_batch(pair, on_first, name):
    """Of a batch that is not archived in time every version is told, and every state continues."""
    threads = [on_first.thread(f"{name}-{number}") for number in range(2)]
    states = [thread.hydrate() for thread in threads]
    for thread, state in zip(threads, states, strict=True):
        state.slots["n"] = 1
        thread.save(state, durability="archived")
        state.slots["n"] = 2
    prepared = [
        thread.prepare(state, durability="archived", request_id="late")
        for thread, state in zip(threads, states, strict=True)
    ]
    with pair.slow(), pytest.raises(NotArchivedYet) as caught:
        told(lambda: on_first.save_all(prepared))
    assert [each.thread for each in caught.value.checkpoints] == [thread.name for thread in threads]
    assert [state.version for state in states] == [2, 2]
    for thread, checkpoint in zip(threads, caught.value.checkpoints, strict=True):
        assert thread.archive.wait(checkpoint).durability is Durability.ARCHIVED


def test_who_asked_for_nothing_is_told_nothing(open_client, tmp_path):
    """Where ARCHIVED is only the daemon's default, a save that is not archived in time is an answer, not an error."""
    flags = archive_flags(tmp_path / "bucket", "third")
    with run_daemon(default_durability="archived", **flags) as daemon:
        thread = open_client(daemon.target, call_timeout=5).thread("t")
        assert thread.append("l", 1).durability is Durability.ARCHIVED
        with Pair(tmp_path).slow():
            checkpoint = told(lambda: thread.append("l", 2, request_id="late"))
            assert (checkpoint.version, checkpoint.durability) == (2, Durability.COMMITTED)
        assert thread.archive.wait(checkpoint).durability is Durability.ARCHIVED


def test_without_an_archive(client):
    """ARCHIVED where there is no archive is refused before anything is written."""
    thread = client.thread("t")
    with pytest.raises(NoArchive):
        thread.append("l", 1, durability="archived")
    with pytest.raises(ThreadNotFound):
        thread.info()


def test_versions_of_other_threads(fake_client):
    """To wait for the version of another thread is a mistake of the program, and said at once."""
    checkpoint = fake_client.thread("a").append("l", 1)
    fake_client.thread("b").append("l", 1)
    with pytest.raises(ValueError, match="belongs to thread 'a', not 'b'"):
        fake_client.thread("b").archive.wait(checkpoint)


def test_another_version_of_that_number(fake_client):
    """The request names the very entry: after a takeover another one may stand at its place."""
    thread = fake_client.thread("a")
    checkpoint = thread.append("l", 1)
    operation = threads.wait_archived(thread._ref, checkpoint, None)
    request = next(operation).request
    assert (request.receipt.uid, request.receipt.digest) == (checkpoint.uid, checkpoint.digest)
    assert (request.receipt.sequence, request.durability) == (checkpoint.sequence, Durability.ARCHIVED)
    operation.close()
