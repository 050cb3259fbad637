"""The danger: an entry is called archived that a bucket lost when it was set back, and pruned as if it were there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.daemon.driven import CALLER, NAME, NAMESPACE, Driven, append
from tests.daemon.town import Town, Twins, twins
from tests.daemon.unthreaded import run

from stateward._operations.threads import numbers_of
from stateward.storage.v1.archive_pb2 import ArchiveHead
from stateward.v1.archive_service_pb2 import RepairThreadRequest
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED, WORK_STATUS_WAITING
from stateward.v1.checkpoint_service_pb2 import HydrateRequest
from stateward.v1.thread_service_pb2 import ListThreadsRequest, PruneThreadRequest, WaitDurableRequest
from stateward.v1.write_pb2 import Receipt
from stateward_sidecar.archive.fleet.repair import Repairer
from stateward_sidecar.archive.objects.holds import Hold
from stateward_sidecar.archive.ship.ship import Shipper
from stateward_sidecar.bucket.base import BucketUnavailable
from stateward_sidecar.errors import ArchiveUnavailable, Corrupt, NotOwner

WORDS = ["one", "two", "three", "four"]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Twins]:
    """``a`` has archived four versions; the bucket was set back to the first one, and nobody has asked it since."""
    with twins(tmp_path) as made:
        made.bucket.objects = archive_words(made)
        yield made


def archive_words(pair: Twins) -> dict[str, bytes]:
    """Archives the words one by one. Returns the bucket as it was after the first one."""
    older = dict[str, bytes]()
    for word in WORDS:
        pair.a.put(word)
        pair.a.archive_all()
        older = older or dict(pair.bucket.objects)
    return older


def repair(pair: Twins) -> None:
    """What `stateward archive repair` asks for."""
    Repairer(pair.a.archive.state).repair(RepairThreadRequest(namespace=NAMESPACE, thread=NAME))


def find_out(pair: Twins) -> None:
    """``a`` sees it when it ships."""
    pair.a.put("five")
    pair.a.archive_all()
    assert pair.a.archive.stats().rolled_back == 1


def check(sidecar: Driven, archived: int) -> None:
    """All that says how far a thread is archived says this; retries are answered likewise."""
    hydrated = sidecar.hydrate(HydrateRequest(namespace=NAMESPACE, thread=NAME, max_bytes=1 << 20))
    assert hydrated.archived_sequence == archived
    listed = run(sidecar.threads_.list_threads(ListThreadsRequest(namespace=NAMESPACE), CALLER))
    assert [thread.archived_sequence for thread in listed.threads] == [archived]
    for sequence, word in enumerate(WORDS, 1):
        wanted = DURABILITY_ARCHIVED if sequence <= archived else DURABILITY_COMMITTED
        again = sidecar.put(word)
        assert (again.receipt.replayed, again.receipt.sequence, again.receipt.durability) == (True, sequence, wanted)
        assert again.receipt.archived_sequence == archived
        for asked in (DURABILITY_COMMITTED, DURABILITY_ARCHIVED):
            request = WaitDurableRequest(
                namespace=NAMESPACE, thread=NAME, receipt=Receipt(sequence=sequence, digest=again.receipt.digest),
                durability=asked
            )
            answer = asyncio.run(sidecar.threads_.wait_durable(request, CALLER))
            assert (answer.receipt.durability, answer.receipt.archived_sequence) == (wanted, archived)


@pytest.mark.parametrize("began", ["restarted", "was not answered"])
def test_a_head_that_was_not_asked_in_time_is_not_written_over(pair: Twins, began: str) -> None:
    """The bucket was away when the thread was first used, or when HEAD was written, and came back as it was once: the
    HEAD that it has now is shipped no more than any other that is older."""

    def away(_method: str, key: str) -> None:
        raise BucketUnavailable(f"{key}: away", is_unclear=True)

    older = dict(pair.bucket.objects)
    if began == "restarted":
        pair.a.archive.schedule._rows.add(pair.a.thread().number)
        pair.a.write_rows()
        pair.a.restart()
    pair.bucket.before = away
    if began == "restarted":
        pair.a.put("five")
    else:
        pair.a.put("five", status=WORK_STATUS_WAITING)
        with pytest.raises(ArchiveUnavailable):
            pair.a.archive_all()
    pair.mend()
    pair.a.archive_all()
    assert pair.bucket.objects == older
    assert pair.a.archive.stats().rolled_back == 1
    check(pair.a, 1)


@pytest.mark.parametrize("then", ["goes on", "is pushed out of memory", "restarts"])
def test_what_the_bucket_lost_is_not_archived(pair: Twins, then: str) -> None:
    """Answers of all kinds say how far HEAD goes now, in this process and the next."""
    find_out(pair)
    if then == "is pushed out of memory":
        pair.a.archive.schedule._rows.add(pair.a.thread().number)
        pair.a.write_rows()
        pair.a.forget()
    elif then == "restarts":
        pair.a.restart()
    check(pair.a, 1)


def test_nothing_is_archived_where_head_is_gone(pair: Twins) -> None:
    """There is no HEAD any more that would have anything; the archive itself is there."""
    for key in [key for key in pair.bucket.objects if key.endswith("/HEAD")]:
        del pair.bucket.objects[key]
    find_out(pair)
    check(pair.a, 0)
    pair.a.restart()
    check(pair.a, 0)


def test_what_only_this_disk_has_is_not_pruned(pair: Twins) -> None:
    """A prune takes what HEAD has, and nothing beyond."""
    find_out(pair)
    pruned = pair.a.prune(PruneThreadRequest(namespace=NAMESPACE, thread=NAME, keep_latest_per_branch=1))
    assert (list(numbers_of(pruned.pruned)), pruned.receipt.archived_sequence) == ([1], 1)
    pair.a.restart()
    assert pair.a.words(version=2) == WORDS[:2]


def test_a_repair_archives_it_again(pair: Twins) -> None:
    """HEAD is written anew from this disk: then all of it is archived."""
    find_out(pair)
    repair(pair)
    check(pair.a, 5)
    pair.a.restart()
    check(pair.a, 5)


def test_a_bucket_that_is_newer_again_has_it_again(tmp_path: Path) -> None:
    """Somebody put the newest HEAD back: a repair takes the mark away, and what it has is archived."""
    with twins(tmp_path) as pair:
        older = archive_words(pair)
        pair.back_up()
        pair.bucket.objects = older
        find_out(pair)
        check(pair.a, 1)
        pair.set_back()
        repair(pair)
        check(pair.a, 4)
        pair.a.restart()
        check(pair.a, 4)


@pytest.mark.parametrize("reads", [True, False])
def test_a_bucket_set_back_to_a_name_that_was_only_claimed(tmp_path: Path, reads: bool) -> None:
    """Whoever has a copy says so: it neither calls the thread new nor makes a history of what the copy has."""
    with twins(tmp_path) as made:
        made.a.put("one")  # the name is claimed
        claimed = dict(made.bucket.objects)
        made.a.archive_all()
        made.b.hydrate(HydrateRequest(namespace=NAMESPACE, thread=NAME))
        made.bucket.objects = claimed
        if not reads:
            with pytest.raises(NotOwner):
                made.b.put("two")
            made.time.sleep(100)
        with pytest.raises(Corrupt, match="older than the copy"):
            made.b.hydrate(HydrateRequest(namespace=NAMESPACE, thread=NAME)) if reads else made.b.put("two")
        assert made.bucket.objects == claimed


def test_a_head_that_is_refused_deletes_nothing(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the next HEAD would have dropped for good is what an older HEAD may name."""
    machine = driven.machine("first")
    for _ in range(8):
        machine.put(append(os.urandom(300)))
        machine.ship_now()
    hold = machine.hold_of("job")
    assert hold is not None
    ref = hold.head.objects[0]

    def refuse(self: Shipper, hold: Hold, head: ArchiveHead) -> bool:
        raise ArchiveUnavailable("HEAD was set back")

    monkeypatch.setattr(Shipper, "_unlink", lambda *_: [ref])
    monkeypatch.setattr(Shipper, "_put", refuse)
    machine.put(append())
    with suppress(ArchiveUnavailable):
        machine.ship_now()
    machine.wire.background()
    assert hold.place.object(ref) in driven.bucket.objects
