"""The danger: a disk that is gone, and an archive that does not hold what was thought to be in it."""

import shutil
from datetime import timedelta

import pytest

from stateward.errors import ThreadNotFound
from stateward.models import Access

ZERO = timedelta(0)


@pytest.fixture
def lost(own_pair, open_client):
    """The second sidecar's client, after three threads were archived by the first one, whose disk is gone."""
    first = open_client(own_pair.first.target)
    for number in range(3):
        thread = first.thread(f"t{number}")
        for entry in range(3):
            thread.append("l", entry)
        thread.append("l", "last", durability="archived")
    own_pair.first.kill()
    shutil.rmtree(own_pair.first.data_dir)
    return open_client(own_pair.second.target)


def test_restore(lost):
    """Everything comes to the new disk with its history, once; a dry run writes nothing."""
    last = list(lost.archive.restore(dry_run=True))[-1]
    assert (last.threads, last.total_threads) == (3, 3)
    assert list(lost.threads()) == []
    progress = list(lost.archive.restore())
    assert [each.problem for each in progress if each.problem] == []
    assert (progress[-1].threads, progress[-1].entries) == (3, 12)
    assert sorted(info.name for info in lost.threads()) == ["t0", "t1", "t2"]
    assert list(lost.thread("t1").hydrate(2).logs["l"]) == [0, 1]
    assert list(lost.archive.restore())[-1].entries == 0
    assert {info.access for info in lost.threads()} == {Access.REMOTE}  # nobody lost a thread by it


def test_restore_one(lost):
    """One thread can be restored alone; one that is not there is an error."""
    assert list(lost.archive.restore("t2"))[-1].threads == 1
    assert [info.name for info in lost.threads()] == ["t2"]
    with pytest.raises(ThreadNotFound):
        list(lost.archive.restore("nope"))


def test_index(lost):
    """The list of the archive names every thread and who wrote it, and with `index` keeps them for other lists."""
    found = {each.thread.name: each for each in lost.archive.list()}
    assert sorted(found) == ["t0", "t1", "t2"]
    assert {(each.thread.version, each.thread.owner_id, each.detached, each.problem) for each in found.values()} == {
        (4, "first", False, "")
    }
    assert list(lost.threads()) == []
    list(lost.archive.list(index=True))
    assert sorted(info.name for info in lost.threads()) == ["t0", "t1", "t2"]
    assert list(lost.thread("t0").hydrate().logs["l"]) == [0, 1, 2, "last"]


def test_damage_is_found(lost, own_pair):
    """Whole objects pass, and one whose bytes were changed is found and named."""
    progress = list(lost.archive.verify(data_percent=100))
    assert [each.finding for each in progress if each.finding] == []
    assert progress[-1].threads == 3
    head = max(own_pair.objects().items(), key=lambda each: (each[0].endswith("HEAD"), len(each[1])))[0]
    path = own_pair.bucket / head
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    findings = [each.finding for each in lost.archive.verify(data_percent=100) if each.finding]
    assert {each.reason for each in findings} == {"CORRUPT"}
    with pytest.raises(ValueError, match="between 0 and 100"):
        lost.archive.verify(data_percent=101)


def test_garbage(lost, own_pair):
    """A collection removes what a dry run named, and nothing that anybody needs."""
    lost.thread("t0").archive.attach(take_over=True)
    lost.thread("t0").delete()
    before = own_pair.settled().keys()
    named = {each.key for each in lost.archive.collect(dry_run=True, older_than=ZERO) if each.key}
    assert own_pair.objects().keys() == before
    assert named <= before
    list(lost.archive.collect(older_than=ZERO))
    assert named <= before - own_pair.objects().keys()
    assert list(lost.thread("t1").hydrate().logs["l"]) == [0, 1, 2, "last"]
    with pytest.raises(ThreadNotFound):
        lost.thread("t0").hydrate(must_exist=True)


def test_repair(own_pair, open_client):
    """A thread whose place in the bucket was lost is written anew from the disk that has it."""
    first = open_client(own_pair.first.target)
    before = own_pair.objects().keys()
    first.thread("t").append("l", 1, durability="archived")
    heads = [key for key in own_pair.objects().keys() - before if key.endswith("HEAD")]
    assert len(heads) == 1
    (own_pair.bucket / heads[0]).unlink()
    assert first.archive.repair("t", dry_run=True).findings
    assert heads[0] not in own_pair.objects()
    assert first.archive.repair("t").findings
    assert heads[0] in own_pair.objects()
    assert first.archive.repair("t").findings == ()
    second = open_client(own_pair.second.target)
    assert list(second.thread("t").hydrate().logs["l"]) == [1]


def test_status(own_pair, open_client):
    """The status says where the archive is and how far it is behind; so do the daemon's counts."""
    client = open_client(own_pair.first.target)
    client.thread("t").append("l", 1, durability="archived")
    found = client.archive.status()
    assert (found.url, found.owner_id) == (f"file://{own_pair.bucket}", "first")
    assert (found.stats.lag_entries, found.stats.dirty_threads, found.stats.lag, found.stats.away) == (
        0,
        0,
        None,
        False,
    )
    assert found.stats.owned_threads == 1
    assert found.interval.total_seconds() == pytest.approx(0.2)
    with own_pair.slow():
        client.thread("t").append("l", 2)
        behind = client.stats().archive
        assert (behind.lag_entries, behind.dirty_threads) == (1, 1)
        assert behind.lag_bytes > 0
        assert behind.lag.total_seconds() >= 0
