"""The danger: two lines of one thread have versions of the same numbers, and one gets into the other without a word."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.daemon.driven import NAME, NAMESPACE, Driven, replacing
from tests.daemon.town import Twins, twins

from stateward.storage.v1.archive_pb2 import EpochStart
from stateward.v1.checkpoint_service_pb2 import DiffCheckpointsRequest, SaveRequest
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN, THREAD_ACCESS_REMOTE
from stateward.v1.thread_service_pb2 import ListThreadsRequest, WatchRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.archive.objects import heads
from stateward_sidecar.archive.objects.holds import row_of
from stateward_sidecar.archive.own import takeover
from stateward_sidecar.errors import Corrupt, Fenced, InvalidField


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Twins]:
    """Sidecars ``a`` and ``b``; ``a`` has archived two versions of the thread."""
    with twins(tmp_path) as made:
        made.a.put("one")
        made.a.put("two")
        made.a.archive_all()
        yield made


def test_a_state_that_was_prepared_on_another_line_is_prepared_anew(pair: Twins) -> None:
    """The thread is taken and comes back with another version 3 while a full state is compared with the first one."""
    pair.a.put("a three")
    whole = ["one", "two", "a three", "four"]
    save = pair.a.prepared(replacing(whole, after=3))
    pair.b.take()
    pair.b.put("b three")
    pair.b.archive_all()
    pair.a.take()
    assert pair.a.orphans() == ["job@@1"]
    assert pair.a.words() == ["one", "two", "b three"]
    pair.a.write(save.run)
    pair.a.restart()
    assert pair.a.words() == whole


# -- copies of a line that the bucket lost ----------------------------------------------------------------------------


def lose_line(pair: Twins, words: int) -> Driven:
    """``b`` reads two versions that the bucket loses; a third machine goes on from there with so many of its own."""
    pair.a.stop_and_start()
    pair.back_up()
    pair.a.put("lost three")
    pair.a.put("lost four")
    pair.a.archive_all()
    assert pair.b.words() == ["one", "two", "lost three", "lost four"]
    pair.a.stop_and_start()
    pair.set_back()
    third = pair.machine("c")
    for number in range(words):
        third.put(f"c {number}")
    third.archive_all()
    return third


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("words", [1, 2, 3])
def test_a_copy_of_a_lost_line(pair: Twins, words: int, restarts: bool) -> None:
    """The first read shows what HEAD has, be it shorter, as long, or longer; the lost versions are in an orphan."""
    third = lose_line(pair, words)
    if restarts:
        pair.b.restart()
    expected = ["one", "two", *(f"c {number}" for number in range(words))]
    assert pair.b.words() == expected
    (orphan,) = pair.b.orphans()
    assert pair.b.words(orphan) == ["one", "two", "lost three", "lost four"]
    pair.b.restart()
    assert pair.b.words() == expected
    pair.b.take()
    pair.b.put("b")
    pair.b.archive_all()
    assert pair.b.words() == [*expected, "b"]
    third.archive_all()
    third.restart()
    assert third.words() == [*expected, "b"]


def test_a_writer_that_has_a_copy_of_a_lost_line(pair: Twins) -> None:
    """It takes the thread without a read before: what it goes on from is what HEAD has."""
    lose_line(pair, 2)
    pair.b.take()
    pair.b.put("b")
    pair.b.restart()
    assert pair.b.words() == ["one", "two", "c 0", "c 1", "b"]
    assert len(pair.b.orphans()) == 1


@pytest.mark.parametrize("says_who", [False, True])
def test_a_copy_of_a_line_that_was_lost_long_ago(pair: Twins, says_who: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """HEAD's newest epochs began after the end of the copy: it tells by who began the older ones, or entries do."""
    if not says_who:  # as earlier versions wrote it
        for module in (heads, takeover):
            monkeypatch.setattr(module, "epoch_start", _start_by_nobody)
    lose_line(pair, 4)
    fourth = pair.machine("d")
    fourth.take()
    fourth.put("d")
    fourth.archive_all()
    expected = ["one", "two", "c 0", "c 1", "c 2", "c 3", "d"]
    assert pair.b.words() == expected
    (orphan,) = pair.b.orphans()
    assert pair.b.words(orphan) == ["one", "two", "lost three", "lost four"]
    thread = next(each for each in pair.b.threads() if each.access == THREAD_ACCESS_ORPHAN)
    assert thread.archive is not None
    assert thread.archive.common_sequence == 2
    pair.b.restart()
    assert pair.b.words() == expected


def _start_by_nobody(epoch: int, _boot_id: bytes, sequence: int = 0, digest: bytes = b"") -> EpochStart:
    return EpochStart(epoch=epoch, sequence=sequence, digest=digest)


def test_an_owner_whose_line_was_lost(pair: Twins) -> None:
    """Another process took the same epoch in the bucket that was set back: what is here is no history any more."""
    lose_line(pair, 3)
    assert pair.a.words() == ["one", "two", "c 0", "c 1", "c 2"]
    (orphan,) = pair.a.orphans()
    assert pair.a.words(orphan) == ["one", "two", "lost three", "lost four"]


@pytest.mark.parametrize("unshipped", [0, 1])
@pytest.mark.parametrize("epochs", [1, 14, 15, 20])
def test_an_owner_whose_line_was_lost_many_epochs_ago(pair: Twins, epochs: int, unshipped: int) -> None:
    """HEAD names the last 16 epochs only, and what was known of it is in no line any more: entries tell."""
    a = pair.a
    a.stop_and_start()
    pair.back_up()
    a.put("lost three")
    a.put("lost four")
    a.archive_all()
    a.archive.schedule._rows.add(a.thread().number)
    a.write_rows()  # what is known of HEAD outlives the process
    for number in range(unshipped):
        a.put(f"never shipped {number}")
    pair.set_back()
    for number in range(epochs):
        other = pair.machine(f"other {number}")
        other.take()
        other.put(f"other {number}")
        other.archive_all()
        other.stop()
    a.restart()
    assert a.words() == ["one", "two", *(f"other {number}" for number in range(epochs))]
    (orphan,) = (each for each in a.threads() if each.access == THREAD_ACCESS_ORPHAN)
    assert orphan.archive is not None
    assert orphan.archive.common_sequence == 2


def test_a_copy_that_is_newer_than_a_bucket_that_was_set_back(pair: Twins) -> None:
    """Nobody went on from there: reads are refused by name, lists say what is archived, and nothing is set aside. When
    the bucket is as it was, so is all else."""
    pair.a.stop_and_start()
    pair.back_up()
    pair.a.put("lost three")
    pair.a.archive_all()
    assert pair.b.words() == ["one", "two", "lost three"]
    newest = dict(pair.bucket.objects)
    pair.set_back()
    for _ in range(2):
        with pytest.raises(Corrupt, match="the bucket was set back"):
            pair.b.words()
        (shown,) = pair.b.store.lister.threads(ListThreadsRequest(namespace=NAMESPACE)).threads
        assert (shown.sequence, shown.archived_sequence) == (3, 2)
        pair.b.restart()
    assert pair.b.orphans() == []
    pair.bucket.objects = newest
    assert pair.b.words() == ["one", "two", "lost three"]
    (shown,) = pair.b.store.lister.threads(ListThreadsRequest(namespace=NAMESPACE)).threads
    assert (shown.sequence, shown.archived_sequence) == (3, 3)


# -- copies that are ahead of HEAD, as earlier versions left them -----------------------------------------------------


def strand(twin: Driven, word: str) -> None:
    """Has a version acknowledged in a copy: what could happen while a thread was being given up."""
    twin.put(word)
    thread = twin.find(NAME)
    assert thread is not None
    hold = twin.archive.state.holds.pop(thread.number)
    twin.archive.reconciler.write_row(thread, row_of(hold.head, THREAD_ACCESS_REMOTE))


def let_go(twin: Driven) -> None:
    """Gives the thread up in HEAD, whatever this disk says."""
    twin.archive.detach(NAMESPACE, NAME)


def give_up(pair: Twins) -> None:
    """``a`` has given the thread up, and one more version of it was acknowledged there."""
    let_go(pair.a)
    pair.a.take()
    strand(pair.a, "a three")


def test_a_stranded_version_that_nobody_went_past(pair: Twins) -> None:
    """HEAD is still our own: the version goes on into history."""
    give_up(pair)
    assert pair.a.words() == ["one", "two", "a three"]
    pair.a.archive_all()
    assert pair.b.words() == ["one", "two", "a three"]
    assert pair.a.orphans() == []


@pytest.mark.parametrize("words", [0, 1, 2])
@pytest.mark.parametrize("touch", [Driven.words, Driven.take])
def test_a_stranded_version_and_another_of_its_number(
    pair: Twins, words: int, touch: Callable[[Driven], object]
) -> None:
    """HEAD may be older, as long or longer by now: the stranded version becomes an orphan, and none is mixed."""
    give_up(pair)
    pair.b.take()
    for number in range(words):
        pair.b.put(f"b {number}")
    pair.b.archive_all()
    touch(pair.a)
    expected = ["one", "two", *(f"b {number}" for number in range(words))]
    assert pair.a.words() == expected
    (orphan,) = pair.a.orphans()
    assert pair.a.words(orphan) == ["one", "two", "a three"]
    pair.a.restart()
    assert pair.a.words() == expected


# -- watches that go on -----------------------------------------------------------------------------------------------


def watch(twin: Driven, cursor: str = "", after: int = 0) -> tuple[list[int], str]:
    """The sequences that a watch tells from there on, and where it has come to."""
    request = WatchRequest(namespace=NAMESPACE, thread=NAME, after_cursor=cursor)
    if not cursor:
        request.after_sequence = after
    opened = twin.store.watcher.open(request)
    return [event.sequence for event in twin.store.watcher.read(opened)], opened.position


def test_a_watch_that_goes_on_from_an_event_that_is_no_history(pair: Twins) -> None:
    """The cursor has the event's digest: its reader is told that it was left out, and from where to go on."""
    told, common = watch(pair.a)
    assert told == [1, 2]
    pair.a.put("a three")
    told, own = watch(pair.a, common)
    assert told == [3]
    pair.b.take()
    with pytest.raises(Fenced) as elsewhere:
        watch(pair.b, own)  # the other line is still shorter
    assert elsewhere.value.metadata["orphan"] == ""
    pair.b.put("b three")
    pair.b.put("b four")
    pair.b.archive_all()
    pair.a.archive_all()
    pair.a.words()
    with pytest.raises(Fenced) as caught:
        watch(pair.a, own)
    assert caught.value.metadata["orphan"] == "job@@1"
    assert caught.value.metadata["common_sequence"] == "2"
    for twin in (pair.a, pair.b):
        assert watch(twin, common)[0] == [3, 4]
        assert watch(twin, common.rpartition(".")[0])[0] == [3, 4]  # as earlier versions gave it out
        assert watch(twin, watch(twin, common)[1])[0] == []


# -- pages of one answer ----------------------------------------------------------------------------------------------


def two_slots(value: str) -> SaveRequest:
    """A save of two slots."""
    request = SaveRequest(namespace=NAMESPACE, thread=NAME, options=WriteOptions(request_id=value))
    for slot in ("x", "y"):
        edit = request.diff.edits.add().set_slot
        edit.slot, edit.value.media_type, edit.value.data = slot, "text/plain", value.encode()
    return request


def test_the_next_page_of_a_difference_is_of_the_same_line(pair: Twins) -> None:
    """The thread is taken between two pages, and has another version 3 now: the token is refused."""
    pair.a.save(two_slots("a three"))
    request = DiffCheckpointsRequest(namespace=NAMESPACE, thread=NAME, max_bytes=1)
    request.base.version = 2
    request.target.version = 3
    first = pair.a.store.reader.diff(request)
    assert len(first.diff.edits) == 1
    pair.b.take()
    pair.b.save(two_slots("b three"))
    pair.b.archive_all()
    pair.a.archive_all()
    pair.a.words()
    request.page_token = first.next_page_token
    with pytest.raises(InvalidField, match="page_token"):
        pair.a.store.reader.diff(request)
    request.thread = "job@@1"
    request.page_token = ""
    first = pair.a.store.reader.diff(request)
    request.page_token = first.next_page_token
    second = pair.a.store.reader.diff(request)
    assert len(second.diff.edits) == 1
    assert not second.next_page_token
