"""The danger: a save is acknowledged into a thread that is being given up, so that it is neither history nor orphan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.archive_model.faults import Death
from tests.daemon.driven import NAME, NAMESPACE, Driven, append
from tests.daemon.town import Twins, twins

from stateward.v1.checkpoint_pb2 import WORK_STATUS_WAITING
from stateward.v1.thread_pb2 import THREAD_ACCESS_OWNED, Retention
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, UpdateThreadRequest
from stateward_sidecar.archive.own.takeover import Attacher
from stateward_sidecar.bucket.base import BucketUnavailable
from stateward_sidecar.errors import ArchiveUnavailable, DiskFull, NotOwner, ThreadNotFound


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Twins]:
    """``a`` has archived a version."""
    with twins(tmp_path) as made:
        made.a.put("one")
        made.a.archive_all()
        yield made


def save_now(sidecar: Driven, word: str) -> bool:
    """A save by another call, in the middle of a ship: whether it was acknowledged."""
    with suppress(NotOwner):
        return sidecar.save_held(append(word)) is not None
    return False


def give_up_and(pair: Twins, act: Callable[[], bool]) -> bool:
    """Archives a version that waits, which gives the thread up; ``act`` runs while that HEAD is on its way."""
    found: list[bool] = []
    pair.a.put("two", status=WORK_STATUS_WAITING)
    pair.before_head(lambda: found.append(act()))
    pair.a.archive_all()
    return found[0]


def check_nothing_is_lost(pair: Twins, acknowledged: list[str]) -> None:
    """What was acknowledged is read here, and by the other machine once it is archived; both go on."""
    pair.a.put("later")
    words = ["one", "two", *acknowledged, "later"]
    assert pair.a.words() == words
    pair.a.archive_all()
    assert pair.b.words() == words
    assert pair.a.orphans() == pair.b.orphans() == []


def test_a_save_while_the_head_is_on_its_way(pair: Twins) -> None:
    """It is not acknowledged; the same call takes the thread again afterwards."""
    assert not give_up_and(pair, lambda: save_now(pair.a, "three"))
    check_nothing_is_lost(pair, [])


def test_a_save_after_the_schedule_wrote_its_rows(pair: Twins) -> None:
    """Once a second it writes down what is known of threads: that must not let writes pass."""

    def act() -> bool:
        pair.a.archive.schedule._rows.add(pair.a.thread().number)
        pair.a.archive.schedule.write_rows(wait=True)
        return save_now(pair.a, "three")

    assert not give_up_and(pair, act)
    check_nothing_is_lost(pair, [])


def test_a_save_after_the_thread_was_forgotten(pair: Twins) -> None:
    """Any thread may leave memory at any time: what is read from disk again is given up all the same."""

    def act() -> bool:
        thread = pair.a.find(NAME)
        assert thread is not None
        pair.a.store.threads.forget(thread)
        pair.a.page_in()  # for a reader
        return save_now(pair.a, "three")

    assert not give_up_and(pair, act)
    check_nothing_is_lost(pair, [])


def test_retention_while_the_head_is_on_its_way(pair: Twins) -> None:
    """No verb appends to what is given up, also not one that nobody asked for."""
    change = UpdateThreadRequest(namespace=NAMESPACE, thread=NAME)
    change.update.retention.CopyFrom(Retention(keep_last=1))
    change.update_mask.paths.append("retention")
    pair.a.write(pair.a.store.settings.update(change))

    def act() -> bool:
        with suppress(NotOwner):
            return bool(pair.a.store.pruner.retain(NAMESPACE, NAME))
        return False

    assert not give_up_and(pair, act)
    check_nothing_is_lost(pair, [])


def test_a_save_right_before_the_thread_is_given_up(pair: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    """HEAD was made without it, so HEAD must not give the thread up: the release looks, in the writer."""
    release, saved = Attacher.release, list[bool]()

    def save_and_release(self: Attacher, *arguments: object) -> bool:
        saved.append(save_now(pair.a, "three"))
        return release(self, *arguments)  # type: ignore[arg-type]

    pair.a.put("two", status=WORK_STATUS_WAITING)
    monkeypatch.setattr(Attacher, "release", save_and_release)
    pair.a.archive_all()
    monkeypatch.undo()
    assert saved == [True]
    thread = pair.a.find(NAME)
    assert thread is not None
    assert thread.access == THREAD_ACCESS_OWNED
    with pytest.raises(NotOwner):
        pair.b.put("b three")  # it is held: no other machine takes it at once
    check_nothing_is_lost(pair, ["three"])


def test_a_head_that_does_not_land(pair: Twins) -> None:
    """The thread is ours again; what is saved then is shipped, whether the HEAD had landed or not."""
    for landed in (False, True):
        pair.a.put(f"waits {landed}", status=WORK_STATUS_WAITING)
        refuse_head(pair, landed=landed)
        with pytest.raises(ArchiveUnavailable):
            pair.a.archive_all()
        pair.mend()
        pair.a.put(f"after {landed}")
        pair.a.archive_all()
    words = ["one", "waits False", "after False", "waits True", "after True"]
    assert pair.a.words() == pair.b.words() == words
    assert pair.a.orphans() == []


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("touch", [None, Driven.words, Driven.take])
def test_a_head_that_does_not_land_and_a_disk_that_cannot_say_so(
    pair: Twins, monkeypatch: pytest.MonkeyPatch, landed: bool, touch: Callable[[Driven], object] | None
) -> None:
    """The row that takes the thread back is not written: what was to be shipped is shipped by the next try."""
    number = pair.a.thread().number
    pair.a.put("two", status=WORK_STATUS_WAITING)
    refuse_head(pair, landed=landed)

    def fail(*_: object) -> None:
        raise DiskFull("there is no room for a row")

    monkeypatch.setattr(pair.a.archive.reconciler, "write_row", fail)
    with pytest.raises(DiskFull):
        pair.a.ship(number)
    monkeypatch.undo()
    pair.mend()
    if touch is not None:
        touch(pair.a)
    pair.a.ship(number)
    pair.a.write_rows()
    assert pair.a.outbox() == set()
    assert pair.b.words() == ["one", "two"]
    check_nothing_is_lost(pair, [])


def test_a_crash_after_head_and_before_the_row(pair: Twins) -> None:
    """HEAD says that anybody may take the thread: it is taken again, in HEAD, before anything is acknowledged."""
    pair.a.put("two", status=WORK_STATUS_WAITING)
    pair.bucket.after = die
    with pytest.raises(Death):
        pair.a.archive_all()
    pair.mend()
    pair.a.restart()
    pair.a.put("three")
    with pytest.raises(NotOwner):
        pair.b.put("b three")
    pair.a.archive_all()
    assert pair.b.words() == ["one", "two", "three"]


def test_a_crash_before_head(pair: Twins) -> None:
    """The thread is ours, and what waited for HEAD is shipped after the next start."""
    pair.a.put("two", status=WORK_STATUS_WAITING)
    pair.bucket.before = die
    with pytest.raises(Death):
        pair.a.archive_all()
    pair.mend()
    pair.a.restart()
    assert pair.a.outbox() == {pair.a.thread().number}
    check_nothing_is_lost(pair, [])


def test_a_save_after_a_tombstone_of_which_nobody_knows(pair: Twins) -> None:
    """It may have landed: what is saved before HEAD was asked would go with the thread, also after a crash."""
    refuse_head(pair, landed=True)
    with pytest.raises(ArchiveUnavailable):
        pair.a.delete(DeleteThreadRequest(namespace=NAMESPACE, thread=NAME))
    with pytest.raises(ArchiveUnavailable):
        pair.a.put("two")
    pair.mend()
    pair.a.restart()
    with pytest.raises(ThreadNotFound):
        pair.a.words()


def test_a_save_while_a_tombstone_is_on_its_way(pair: Twins) -> None:
    """The rows that the schedule writes let no write pass: what is acknowledged now would go with the thread."""
    saved = list[bool]()

    def act() -> None:
        pair.a.archive.schedule._rows.add(pair.a.thread().number)
        pair.a.archive.schedule.write_rows(wait=True)
        saved.append(save_now(pair.a, "two"))

    pair.before_head(act)
    pair.a.delete(DeleteThreadRequest(namespace=NAMESPACE, thread=NAME))
    assert saved == [False]


def test_a_deletion_that_did_not_land(pair: Twins) -> None:
    """Its caller heard of it; the thread is written again as soon as HEAD was asked."""
    refuse_head(pair, landed=False)
    with pytest.raises(ArchiveUnavailable):
        pair.a.delete(DeleteThreadRequest(namespace=NAMESPACE, thread=NAME))
    pair.mend()
    pair.a.put("two")
    check_nothing_is_lost(pair, [])


def test_a_deletion_of_a_thread_that_waits_and_is_not_archived_yet(pair: Twins) -> None:
    """What is archived for the deletion gives nothing up: nobody else has taken it, and the tombstone follows."""
    pair.a.put("two", status=WORK_STATUS_WAITING)
    pair.a.delete(DeleteThreadRequest(namespace=NAMESPACE, thread=NAME))
    with pytest.raises(ThreadNotFound):
        pair.b.words()


def refuse_head(pair: Twins, *, landed: bool) -> None:
    """The next HEAD has no answer, and then the bucket is away until it is mended."""

    def away(_method: str, key: str) -> None:
        raise BucketUnavailable(f"{key}: away")

    def strike(method: str, key: str) -> None:
        if method == "replace" and key.endswith("/HEAD"):
            pair.bucket.before = away
            raise BucketUnavailable(f"{key}: no answer", is_unclear=True)

    if landed:
        pair.bucket.after = strike
    else:
        pair.bucket.before = strike


def die(method: str, key: str) -> None:
    """The end of the process, at a HEAD."""
    if method == "replace" and key.endswith("/HEAD"):
        raise Death
