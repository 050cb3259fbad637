"""The danger: a blob is collected on one machine, and another one believes that the thread still has it. No sidecar may
say that a blob is there whose bytes are nowhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from tests.daemon.driven import Driven, append
from tests.daemon.small import BLOB_KEPT_S
from tests.daemon.town import Town, town

from stateward._operations.threads import spans_of
from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward.v1.archive_service_pb2 import RestoreArchiveRequest, VerifyArchiveRequest
from stateward.v1.backup_service_pb2 import ExportThreadRequest
from stateward.v1.blob_service_pb2 import WriteBlobResponse
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED, VersionRef
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, ForkThreadRequest, PruneThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.archive.fleet.inspect import Inspector
from stateward_sidecar.archive.fleet.restore import Restorer
from stateward_sidecar.errors import ArchiveUnavailable, BlobNotFound, Corrupt, InvalidField, VersionPruned
from stateward_sidecar.service.checks.check import DEFAULT_NAMESPACE as NAMESPACE
from stateward_sidecar.store.thread.thread import Identity, Thread
from stateward_sidecar.store.travel.outbox import Moment, WrittenBlob

CONTENT = b"a picture, " * 50


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Town]:
    with town(tmp_path) as made:
        yield made


def write(machine: Driven, content: bytes = CONTENT, *, announced: bool = True) -> WriteBlobResponse:
    return machine.write_blob("job", content, announced=announced)


def name(machine: Driven, content: bytes = CONTENT, *, slot: str = "s") -> None:
    """A version that names a blob."""
    request = append(b"names it")
    edit = request.diff.edits.add().set_slot
    edit.slot = slot
    edit.value.blob.sha256, edit.value.blob.size_bytes = sha256(content).digest(), len(content)
    machine.put(request)


def drop(machine: Driven, *, slot: str = "s") -> None:
    """A version that no longer does."""
    request = SaveRequest(
        namespace=NAMESPACE, thread="job", options=WriteOptions(request_id=f"drop {machine.thread().head.tip_sequence}")
    )
    request.diff.edits.add().delete_slot.slot = slot
    machine.put(request)


def prune(machine: Driven, *versions: int) -> None:
    request = PruneThreadRequest(namespace=NAMESPACE, thread="job", versions=spans_of(versions))
    machine.prune(request)


def read(machine: Driven, content: bytes = CONTENT, thread: str = "job") -> bytes:
    return machine.read_blob(thread, sha256(content).digest())


def take(machine: Driven) -> None:
    machine.archive.own(NAMESPACE, "job", take_over=True)


def objects(place: Town) -> list[str]:
    return [key for key in place.bucket.objects if key.endswith(".blob")]


def files(machine: Driven) -> list[Path]:
    return [path for path in (machine.disk.path / "blobs").rglob("*") if path.is_file()]


def begin(machine: Driven) -> None:
    """Version 1 names the blob, version 2 no longer does. Both are archived."""
    write(machine)
    name(machine)
    drop(machine)
    machine.ship_now()


def forget(place: Town, machine: Driven) -> None:
    """Prunes version 1, and collects the blob."""
    prune(machine, 1)
    machine.ship_now()
    place.time.sleep(BLOB_KEPT_S + 1)
    machine.sweep()
    machine.ship_now()
    assert objects(place) == []


def archive_verified(machine: Driven) -> list[str]:
    inspector = Inspector(machine.archive.state)
    answers = inspector.verify(VerifyArchiveRequest(data_percent=100))
    return [each.finding.message for each in answers if each.HasField("finding")]


def check_healthy(machine: Driven) -> None:
    """All that reads the whole thread does so."""
    assert machine.findings() == []
    assert archive_verified(machine) == []
    restored = list(Restorer(machine.archive.state).restore(RestoreArchiveRequest()))
    assert [each.problem for each in restored if each.problem] == []
    list(machine.store.exporter.open(ExportThreadRequest(namespace=NAMESPACE, thread="job")))
    copy = f"copy-{machine.disk.number}"
    machine.fork(ForkThreadRequest(namespace=NAMESPACE, thread="job", new_thread=copy, all_versions=True))


def test_a_copy_forgets_what_its_owner_collected(place: Town) -> None:
    """A machine with a copy takes the thread over after its owner collected a blob. The blob is taken again, and every
    machine reads it."""
    first, second = place.machine("first"), place.machine("second")
    begin(first)
    second.state()
    assert read(second) == CONTENT
    forget(place, first)
    first.archive.detach(NAMESPACE, "job")
    with pytest.raises(BlobNotFound):
        read(second)
    assert files(second) == []
    answer = write(second)
    assert (answer.existed, answer.receipt.durability) == (False, DURABILITY_COMMITTED)
    name(second)
    second.ship_now()
    assert read(second) == CONTENT
    assert read(place.machine("third")) == CONTENT


def test_an_owner_forgets_what_its_successor_collected(place: Town) -> None:
    """The first owner takes the thread back, with the file still on its disk. The blob reaches the bucket again."""
    first, second = place.machine("first"), place.machine("second")
    begin(first)
    for _ in range(6):
        first.put(append(b"x" * 400))  # the entry of the blob is in a pack
    first.ship_now()
    take(second)
    second.hydrate(HydrateRequest(namespace=NAMESPACE, thread="job", version=VersionRef(version=1)))
    forget(place, second)
    take(first)
    assert files(first) == []
    assert not write(first).existed
    name(first)
    first.ship_now()
    place.end(first)
    assert read(place.machine("third")) == CONTENT


@pytest.mark.parametrize("is_written", [False, True])
def test_a_collection_that_was_not_archived(place: Town, *, is_written: bool) -> None:
    """Nobody wrote its entry. If another machine goes on without it, there is nothing to keep apart; a version that was
    saved after it is kept."""
    first, second = place.machine("first"), place.machine("second")
    begin(first)
    prune(first, 1)
    first.ship_now()
    place.time.sleep(BLOB_KEPT_S + 1)
    common = first.thread().head.tip_sequence
    first.sweep()
    assert first.thread().head.tip_sequence == common + 1
    if is_written:
        first.put("mine")
    take(second)
    second.put("theirs")
    second.ship_now()
    first.ship_now()
    assert len(first.orphans()) == is_written
    assert first.words() == second.words()
    if is_written:
        assert first.words(first.orphans()[0])[-1] == "mine"
    check_healthy(second)
    assert first.findings() == []


def test_a_healthy_thread_stays_whole_after_a_takeover(place: Town) -> None:
    """Export, copy, restore and both verifies pass on every machine, also if nobody writes the blob again."""
    first, second = place.machine("first"), place.machine("second")
    begin(first)
    second.state()
    forget(place, first)
    first.archive.detach(NAMESPACE, "job")
    second.put(append(b"by the second"))
    second.ship_now()
    check_healthy(second)
    check_healthy(place.machine("third"))


def test_an_older_copy_of_the_disk_forgets_it_too(place: Town) -> None:
    """A disk that is set back to before a collection is behind HEAD, because the collection is an entry."""
    first = place.machine("first")
    begin(first)
    prune(first, 1)
    first.ship_now()
    first.write_rows()
    before = place.home / "before"
    first.copy_disk(before)
    place.time.sleep(BLOB_KEPT_S + 1)
    first.sweep()
    first.ship_now()
    assert objects(place) == []
    place.end(first)
    restored = place.machine("first", before)
    place.time.sleep(11.0)
    take(restored)
    assert not write(restored).existed
    name(restored)
    restored.ship_now()
    assert read(place.machine("third")) == CONTENT


def test_a_blob_written_again_is_kept_by_the_next_owner(place: Town) -> None:
    """A write of bytes that the thread has is known to every machine: the next owner does not collect the blob."""
    first, second = place.machine("first"), place.machine("second")
    write(first)
    first.put(append(b"another"))
    first.ship_now()
    place.time.sleep(BLOB_KEPT_S - 20)
    answer = write(first)
    assert (answer.existed, answer.receipt.durability) == (True, DURABILITY_ARCHIVED)
    first.ship_now()
    take(second)
    place.time.sleep(BLOB_KEPT_S - 20)
    second.sweep()
    name(second)
    second.ship_now()
    assert read(place.machine("third")) == CONTENT


def lose_object(place: Town) -> None:
    (key,) = objects(place)
    del place.bucket.objects[key]


@pytest.mark.parametrize("announced", [True, False])
def test_a_lost_object_is_taken_again(place: Town, announced: bool) -> None:
    """Neither the disk nor the bucket has the bytes: the write takes them, and the new blob replaces the old one."""
    first, second = place.machine("first"), place.machine("second")
    write(first)
    name(first)
    first.ship_now()
    place.end(first)
    lose_object(place)
    with pytest.raises(Corrupt, match="missing in the archive"):
        read(second)
    take(second)
    assert any("missing in the archive" in each.message for each in second.findings())
    answer = write(second, announced=announced)
    assert (answer.existed, answer.receipt.durability) == (False, DURABILITY_COMMITTED)
    second.ship_now()
    assert (read(second), second.findings()) == (CONTENT, [])
    check_healthy(place.machine("third"))


@pytest.mark.parametrize("announced", [True, False])
def test_a_lost_object_is_sent_again_from_the_disk(place: Town, announced: bool) -> None:
    """This disk has the file, the bucket has lost the object: the write is not called archived until it is there
    again."""
    first = place.machine("first")
    write(first)
    name(first)
    first.ship_now()
    lose_object(place)
    answer = write(first, announced=announced)
    assert (answer.existed, answer.receipt.durability) == (True, DURABILITY_COMMITTED)
    first.ship_now()
    assert len(objects(place)) == 1
    again = write(first, announced=announced)
    assert (again.existed, again.receipt.durability) == (True, DURABILITY_ARCHIVED)
    place.end(first)
    assert read(place.machine("third")) == CONTENT


def test_a_lost_file_is_not_called_archived(place: Town) -> None:
    """The file goes before it is uploaded: no HEAD names the blob, Verify finds it, and the same bytes are taken
    again."""
    first = place.machine("first")
    first.put(append())
    first.ship_now()
    write(first)
    name(first)
    for path in files(first):
        path.unlink()
    with pytest.raises(Corrupt, match="write the blob again"):
        first.ship_now()
    assert any("is missing" in each.message for each in first.findings())
    assert not write(first).existed
    first.ship_now()
    assert read(place.machine("third")) == CONTENT


def test_a_cut_file_is_not_called_archived(place: Town) -> None:
    """The file loses its end before it is uploaded. That counts as a lost file, and the same bytes are taken again."""
    first = place.machine("first")
    first.put(append())
    first.ship_now()
    write(first)
    name(first)
    (path,) = files(first)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Corrupt, match="write the blob again"):
        first.ship_now()
    assert objects(place) == []
    assert not write(first).existed
    first.ship_now()
    assert read(place.machine("third")) == CONTENT


@pytest.mark.parametrize("announced", [True, False])
def test_a_damaged_file_is_not_called_archived(place: Town, announced: bool) -> None:
    """A bit of the file flips before it is uploaded. That counts as a lost file, and the same bytes are taken again."""
    first = place.machine("first")
    first.put(append())
    first.ship_now()
    write(first)
    name(first)
    (path,) = files(first)
    path.write_bytes(flipped(path.read_bytes()))
    with pytest.raises(Corrupt, match="write the blob again"):
        first.ship_now()
    assert objects(place) == []
    assert not write(first, announced=announced).existed
    first.ship_now()
    assert read(place.machine("third")) == CONTENT


def flipped(data: bytes) -> bytes:
    """With a wrong bit in the first segment."""
    return data[:40] + bytes((data[40] ^ 1,)) + data[41:]


def test_a_damaged_object_leaves_no_file(place: Town) -> None:
    """An object with a flipped bit is CORRUPT at every read, and its bytes are read once the object is whole again."""
    first, second = place.machine("first"), place.machine("second")
    write(first)
    name(first)
    first.ship_now()
    (key,) = objects(place)
    whole = place.bucket.objects[key]
    for damaged in (flipped(whole), whole[:-1]):
        place.bucket.objects[key] = damaged
        with pytest.raises(Corrupt):
            read(second)
        assert files(second) == []
    place.bucket.objects[key] = whole
    assert read(second) == CONTENT


def test_an_orphan_keeps_its_files(place: Town) -> None:
    """The owner collects a blob that an orphan names: the orphan's machine keeps the file, another says why it is
    gone."""
    first, second = place.machine("first"), place.machine("second")
    begin(first)
    take(second)
    second.hydrate(HydrateRequest(namespace=NAMESPACE, thread="job", version=VersionRef(version=1)))
    first.put(append(b"after the takeover"))
    first.ship_now()
    forget(place, second)
    first.state()
    (orphan,) = [thread.name for thread in first.threads() if thread.name != "job"]
    assert read(first, thread=orphan) == CONTENT
    with pytest.raises(BlobNotFound):
        read(first)
    for path in files(first):
        path.unlink()
    with pytest.raises(VersionPruned, match="removed by the owner"):
        read(first, thread=orphan)


def test_a_save_that_names_a_collected_blob_is_refused(place: Town) -> None:
    """The next owner says which blob it does not have."""
    first, second = place.machine("first"), place.machine("second")
    begin(first)
    second.state()
    forget(place, first)
    take(second)
    with pytest.raises(InvalidField, match="write it first"):
        name(second)


def test_a_blob_that_is_collected_during_a_fetch_is_no_damage(place: Town) -> None:
    """The object is gone when a reader comes for it: HEAD says that its owner removed the blob."""
    first, second = place.machine("first"), place.machine("second")
    begin(first)
    second.state()
    forget(place, first)
    second.archive.fetch_blob(NAMESPACE, "job", sha256(CONTENT).digest())
    assert (files(second), second.findings()) == ([], [])


def test_a_ship_sees_rows_and_tip_at_one_moment(place: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blob is collected while a ship looks at its thread: a HEAD whose versions name the blob must have its row."""
    first = place.machine("first")
    begin(first)
    outbox, identity = first.archive.state.outbox, first.thread().identity
    copy = outbox._copy_hot

    def copy_then_collect(which: Identity) -> Thread | None:
        found = copy(which)
        monkeypatch.undo()
        prune(first, 1)
        place.time.sleep(BLOB_KEPT_S + 1)
        first.sweep()
        return found

    monkeypatch.setattr(outbox, "_copy_hot", copy_then_collect)
    moment = outbox.moment(identity)
    assert moment is not None
    assert moment.blobs or 1 in moment.thread.pruned
    assert files(first) == []


def test_a_blob_that_is_collected_during_its_ship_is_in_no_head(place: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """No version named it in time, and its file goes after the ship's moment, before its upload: the ship begins anew
    with what is there now."""
    first = place.machine("first")
    first.put(append(b"names nothing"))
    write(first)
    outbox = first.archive.state.outbox
    blobs = outbox.blobs

    def blobs_then_collect(moment: Moment, headers: Iterable[EntryHeader]) -> tuple[list[WrittenBlob], set[bytes]]:
        found = blobs(moment, headers)
        monkeypatch.undo()
        place.time.sleep(BLOB_KEPT_S + 1)
        first.sweep()
        assert (len(found[0]), files(first), objects(place)) == (1, [], [])
        return found

    monkeypatch.setattr(outbox, "blobs", blobs_then_collect)
    first.ship_now()
    second = place.machine("second")
    take(second)
    check_healthy(second)


def test_a_fetched_file_goes_when_nobody_reads_it(place: Town) -> None:
    """A copy keeps what readers fetched for a day after the last read, and what was restored for ever."""
    first, second, third = place.machine("first"), place.machine("second"), place.machine("third")
    write(first)
    name(first)
    first.ship_now()
    read(second)
    list(Restorer(third.archive.state).restore(RestoreArchiveRequest()))
    for machine, kept in ((first, 1), (second, 0), (third, 1)):
        place.time.sleep(BLOB_KEPT_S + 1)
        machine.sweep()
        assert len(files(machine)) == kept
        assert read(machine) == CONTENT
        machine.sweep()
        assert len(files(machine)) == 1


def test_a_deleted_orphan_takes_its_own_files(place: Town) -> None:
    """The files that only the orphan names go with it. Those that it shares with its thread stay."""
    first, second = place.machine("first"), place.machine("second")
    write(first)
    name(first)
    first.ship_now()
    take(second)
    second.put(append(b"after the takeover"))
    second.ship_now()
    write(first, b"only here " * 50)
    first.ship_now()
    first.state()
    (orphan,) = [thread.name for thread in first.threads() if thread.name != "job"]
    assert len(files(first)) == 2
    first.delete(DeleteThreadRequest(namespace=NAMESPACE, thread=orphan))
    assert len(files(first)) == 1
    assert read(first) == CONTENT


def test_an_object_goes_only_with_the_head_that_removes_it(place: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ship that removes a blob fails, and the next HEAD has only earlier entries: whoever takes the thread over then
    needs the object."""
    machine = place.machine("first")
    begin(machine)
    prune(machine, 1)
    earlier = machine.archive.state.outbox.moment(machine.thread().identity)
    assert earlier is not None
    place.time.sleep(BLOB_KEPT_S + 1)
    machine.sweep()
    replace = machine.wire.replace

    def away(*_: object) -> str:
        raise ArchiveUnavailable("away")

    def once(key: str, data: bytes, etag: str) -> str:
        monkeypatch.setattr(machine.wire, "replace", away)
        return replace(key, data, etag)

    for answer in (away, once):
        monkeypatch.setattr(machine.wire, "replace", answer)
        with pytest.raises(ArchiveUnavailable):
            machine.ship_now()
        hold = machine.hold_of("job")
        assert hold is not None
        hold.before_large.append(earlier)  # a large entry was committed while the ship looked
    machine.wire.background()
    assert machine.thread().archived_sequence == earlier.tip_sequence
    second = place.machine("second")
    take(second)
    assert len(objects(place)) == 1
    check_healthy(second)


def test_an_idle_owner_that_was_replaced_collects_nothing(place: Town) -> None:
    """Its sweep asks HEAD first: an entry of its own would only become an orphan."""
    first, second = place.machine("first"), place.machine("second")
    begin(first)
    prune(first, 1)
    first.ship_now()
    take(second)
    name(second, slot="again")
    second.ship_now()
    place.time.sleep(BLOB_KEPT_S + 1)
    first.sweep()
    if first.holds("job"):
        first.ship_now()
    assert [each.name for each in first.threads()] == ["job"]
    assert read(first) == read(second) == CONTENT
