"""The danger: an object is collected while a version, a copy or an upload needs it, or is kept for ever. The clock is
moved by hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.clocks import MovedClock
from tests.daemon.store import findings, make_store, prepared, rest, save_request, write
from tests.messages import to_write
from tests.trees.yard import KIB, Made, make, naming

from stateward._operations.threads import spans_of
from stateward.v1.backup_service_pb2 import ExportThreadRequest
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.thread_service_pb2 import DeleteTagRequest, ForkThreadRequest, PruneThreadRequest, SetTagRequest
from stateward.v1.workspace_pb2 import TreeRef
from stateward.v1.workspace_service_pb2 import (
    FindMissingRequest,
    ObjectsBegin,
    ReadObjectsRequest,
    ReadTreeRequest,
    StatWorkspaceRequest,
    StatWorkspaceResponse,
)
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import BlobNotFound, InvalidField, OutcomeUnknown, QueueFull, StatewardError
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.clean import objectsweep
from stateward_sidecar.store.clean.objectsweep import KEPT_S
from stateward_sidecar.store.copies import exporting, fork
from stateward_sidecar.store.kinds.objects import find_again, object_key, object_rows
from stateward_sidecar.store.thread.context import Limits
from stateward_sidecar.store.thread.thread import rows
from stateward_sidecar.store.trees.incoming import open_objects
from stateward_sidecar.store.versions.save import SaveWrite

NAMESPACE = "default"
HOUR_S = KEPT_S + 1


class Barn:
    """An open store, and short words for what tests do with trees in it."""

    def __init__(self, directory: Path) -> None:
        self.clock = MovedClock()
        self.directory = directory
        self.version: dict[str, int] = {}
        self.open()

    def open(self) -> None:
        self.store = make_store(self.directory, self.clock)
        self.store.start()

    def send(self, made: Made, thread: str = "t") -> None:
        """As WorkspaceService does it."""
        begin = ObjectsBegin(namespace=NAMESPACE, thread=thread, options=WriteOptions(create=ThreadOptions()))
        found = self.store.blobs.find_thread(begin)
        if found is None:
            write(self.store, self.store.blobs.make_thread(begin))
            found = self.store.blobs.find_thread(begin)
        assert found is not None
        sending = self.store.begin_objects(found, begin)
        try:
            packs = sending.add(open_objects(made.objects(), "objects"))
            packs += sending.finish()
            for at, full in enumerate(packs):
                try:
                    write(self.store, lambda txn, batch, full=full: sending.commit(full, txn, batch))
                except StatewardError:
                    for rest_ in packs[at:]:
                        sending.discard_pack(rest_)
                    raise
        finally:
            sending.end()

    def name(self, ref: TreeRef, thread: str = "t", objects: Any = (), **fields: Any) -> int:
        """A version that names a tree."""
        request = naming(ref, self.version.get(thread, 0), thread, objects)
        request.namespace = NAMESPACE
        request.MergeFrom(type(request)(**fields))
        self.version[thread] = save_request(self.store, request).version
        return self.version[thread]

    def keep(self, made: Made, thread: str = "t", *, inline: bool = False) -> int:
        if not inline:
            self.send(made, thread)
        return self.name(made.ref, thread, made.objects() if inline else ())

    def missing(self, made: Made, thread: str = "t") -> int:
        """How many objects the thread lacks, as a client asks."""
        request = FindMissingRequest(
            namespace=NAMESPACE, thread=thread, directories=list(made.directories), chunks=list(made.chunks)
        )
        found = self.store.read(self.store.trees.find_missing, request)
        return sum(each.bit_count() for each in found.missing_directories + found.missing_chunks)  # type: ignore[attr-defined]

    def is_whole(self, made: Made, version: int = 0, thread: str = "t") -> bool:
        """Whether a tree can be listed and read, every byte of it."""
        request = ReadTreeRequest(namespace=NAMESPACE, thread=thread, tree=made.ref.digest, max_bytes=64 << 20)
        try:
            if version:
                request.ClearField("tree")
                request.version.version = version
            assert self.store.read(self.store.trees.read, request).tree == made.ref
            chunks = ReadObjectsRequest(namespace=NAMESPACE, thread=thread, chunks=list(made.chunks))
            found = [
                each.data for answer in self.store.read(self.store.trees.objects, chunks) for each in answer.objects
            ]
        except BlobNotFound:
            return False
        return found == list(made.chunks.values())

    def stat(self, thread: str = "t") -> StatWorkspaceResponse:
        return self.store.read(self.store.trees.stat, StatWorkspaceRequest(namespace=NAMESPACE, thread=thread))

    def prune(self, *versions: int, thread: str = "t") -> None:
        request = PruneThreadRequest(namespace=NAMESPACE, thread=thread, versions=spans_of(versions))  # type: ignore[arg-type]
        self.store.pruner.prune(request)

    def sweep_later(self, seconds: float = HOUR_S, times: int = 1) -> None:
        """Lets time pass, and sweeps."""
        for _ in range(times):
            self.clock.ahead_s += seconds
            self.store.sweeper.sweep()

    def files(self) -> int:
        return sum(path.is_file() for path in (self.directory / "blobs").rglob("*"))

    def stored(self, thread: str = "t") -> int:
        with self.store.context.engine.read() as txn:
            return int(self.store.threads.get(txn, NAMESPACE, thread).head.stored_bytes)

    def check(self) -> None:
        assert findings(self.store) == []


@pytest.fixture
def barn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Barn]:
    monkeypatch.setattr(objectsweep, "INTERVAL_S", 0)  # each sweep looks at each thread
    opened = Barn(tmp_path)
    yield opened
    opened.store.close()


def tree(name: str, files: int = 6, size: int = 2 * KIB) -> Made:
    """A tree whose files nothing else has, and do not compress."""
    return make({name.encode(): {b"%d" % number: os.urandom(size) for number in range(files)}})


def test_objects_that_nothing_names_go_after_an_hour(barn: Barn) -> None:
    """Not before, and with their packs, entries and bytes. Those of a version stay."""
    kept, doomed = tree("kept"), tree("doomed")
    barn.keep(kept)
    before = barn.stored()
    barn.send(doomed)
    assert barn.files() == 4
    barn.sweep_later(60)
    barn.sweep_later(HOUR_S / 2)
    barn.sweep_later(HOUR_S / 2 - 60)
    assert barn.files() == 4
    barn.sweep_later(HOUR_S / 2)
    barn.sweep_later(times=2)
    assert barn.files() == 2
    assert barn.missing(doomed) == len(doomed.objects())
    assert barn.stored() - before < 4 * KIB  # the entries of the upload and of its end stay for retries
    assert barn.is_whole(kept)
    with pytest.raises(InvalidField, match="does not have"):
        barn.name(doomed.ref)
    barn.keep(doomed)
    assert barn.is_whole(doomed)
    barn.check()


def test_whoever_is_told_that_it_is_there_has_an_hour(barn: Barn) -> None:
    """Each question keeps the objects for an hour more, also between two sweeps that would remove them."""
    asked, silent = tree("asked"), tree("silent")
    barn.send(asked)
    barn.send(silent)
    barn.sweep_later(times=1)
    for _ in range(4):
        barn.clock.ahead_s += HOUR_S - 60
        assert barn.missing(asked) == 0
        barn.sweep_later(61)
    assert barn.missing(silent) == len(silent.objects())
    barn.name(asked.ref)
    assert barn.is_whole(asked)
    barn.sweep_later(times=4)
    assert barn.is_whole(asked, 1)
    barn.check()


def test_the_hour_is_counted_from_the_look(barn: Barn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round may last: who was told before the sweep came to the thread has the whole hour from then on."""
    asked = tree("asked")
    barn.keep(tree("kept"))
    barn.send(asked)
    objects = barn.store.sweeper._objects
    count = objects._count

    def slowly(thread: Any) -> Any:
        found = count(thread)
        barn.clock.ahead_s += KEPT_S - 60
        assert barn.missing(asked) == 0
        return found

    with monkeypatch.context() as patched:
        patched.setattr(objects, "_count", slowly)
        barn.store.sweeper.sweep()
    barn.sweep_later(KEPT_S - 60)
    barn.name(asked.ref)
    assert barn.is_whole(asked)
    barn.check()


@pytest.mark.parametrize("off_s", [-0.9 * KEPT_S, 0.9 * KEPT_S])
def test_a_wall_clock_that_is_set_neither_hurries_nor_stops_a_sweep(
    barn: Barn, monkeypatch: pytest.MonkeyPatch, off_s: float
) -> None:
    """An object that nothing names has its hour, and is gone within two; a move by more than an hour stops all."""
    monkeypatch.setattr(objectsweep, "INTERVAL_S", KEPT_S)
    doomed = tree("doomed")
    barn.keep(tree("kept"))
    barn.store.sweeper.sweep()  # just before the upload
    barn.send(doomed)
    barn.sweep_later()
    barn.clock.off_s = off_s
    barn.sweep_later(KEPT_S - 60)
    assert has_rows(barn, doomed)
    barn.sweep_later(90)
    assert not has_rows(barn, doomed)
    barn.check()


def has_rows(barn: Barn, made: Made) -> bool:
    """Whether all objects are there, without asking for them."""
    with barn.store.context.engine.read() as txn:
        identity = barn.store.threads.get(txn, NAMESPACE, "t").identity
        keys = [object_key(identity, each, is_directory=True) for each in made.directories]
        keys += [object_key(identity, each, is_directory=False) for each in made.chunks]
        return all(txn.get(key) is not None for key in keys)


def test_a_pruned_version_gives_its_objects_back(barn: Barn) -> None:
    """What other retained versions name stays: shared files, tagged versions, other branches."""
    first, second, third = tree("one"), tree("two"), tree("three")
    barn.keep(first)
    barn.keep(second)
    barn.keep(third)
    barn.prune(1)
    barn.sweep_later(times=4)
    assert not barn.is_whole(first)
    assert barn.is_whole(second, 2)
    assert barn.is_whole(third, 3)
    assert barn.stat().trees == 2
    barn.check()


def test_a_pack_that_is_mostly_unnamed_is_packed_anew(barn: Barn) -> None:
    """The rest is moved into a new pack, byte for byte, and the old one goes."""
    tree_ = {b"d": {b"%d" % number: os.urandom(4 * KIB) for number in range(20)}}
    first = make(tree_)
    barn.keep(first)
    second = make({b"d": {name: data for name, data in tree_[b"d"].items() if name in (b"1", b"2")}})
    barn.keep(second)
    barn.prune(1)
    before = barn.stored()
    barn.sweep_later(times=5)
    assert barn.is_whole(second, 2)
    assert barn.stored() < before / 2
    assert barn.stat().chunks == 2
    barn.check()


def test_objects_in_entries_come_into_packs(barn: Barn) -> None:
    """Once there are many: then the entries give their bytes back."""
    trees = [tree(f"{number}", 2, 1 * KIB) for number in range(objectsweep.INLINE_LISTS)]
    for each in trees[:-1]:
        barn.keep(each, inline=True)
    barn.sweep_later(times=3)
    assert barn.files() == 0
    barn.keep(trees[-1], inline=True)
    barn.sweep_later(times=4)
    assert barn.files() == 2
    assert all(barn.is_whole(each, version) for version, each in enumerate(trees, 1))
    barn.check()
    barn.sweep_later(times=2)
    with barn.store.context.engine.read() as txn:
        thread = barn.store.threads.get(txn, NAMESPACE, "t")
    assert len(thread.pruned.objects.pairs()) == 1
    rest(barn.store)
    barn.store.close()
    barn.open()
    assert all(barn.is_whole(each, version) for version, each in enumerate(trees, 1))
    barn.check()


def test_a_thread_that_nobody_writes_is_not_walked_again(barn: Barn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a sweep has found nothing to do; the next write makes it look again."""
    made, looks = tree("kept"), list[str]()
    barn.keep(made)
    barn.sweep_later(times=3)
    sweeper = barn.store.sweeper._objects
    count = sweeper._count
    monkeypatch.setattr(sweeper, "_count", lambda thread: looks.append(thread.name) or count(thread))
    barn.sweep_later(times=3)
    assert looks == []
    barn.keep(tree("more"))
    barn.prune(1)
    barn.sweep_later(times=4)
    assert looks
    assert not barn.is_whole(made)
    barn.check()


def test_a_copy_keeps_what_its_source_gives_up(barn: Barn) -> None:
    """Each thread has its own rows, and a second name of each pack."""
    first, second = tree("one"), tree("two")
    barn.keep(first)
    barn.keep(second)
    request = to_write(
        ForkThreadRequest, namespace=NAMESPACE, thread="t", new_thread="copy", version=VersionRef(version=1)
    )
    barn.store.forker.fork(request)
    barn.prune(1)
    barn.sweep_later(times=4)
    assert not barn.is_whole(first)
    assert barn.is_whole(first, 1, "copy")
    assert not barn.is_whole(second, thread="copy")
    barn.check()


def test_a_tree_is_tagged_just_before_it_is_dropped(barn: Barn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every time that the sweep is about to drop it, in a thread that is too large: its objects stay."""
    first = tree("first", 10, 10 * KIB)
    barn.keep(first)
    barn.keep(tree("second", 10, 10 * KIB))
    barn.keep(tree("third", 10, 10 * KIB))
    barn.store.context.limits = Limits(workspace_bytes=360 * KIB)  # one is to go
    objects, found = barn.store.sweeper._objects, list[str]()
    sizes = objects._sizes
    tag = {"namespace": NAMESPACE, "thread": "t", "tag": "kept"}

    def and_tag(*given: Any) -> Any:
        found.append("tagged")
        write(barn.store, barn.store.settings.set_tag(to_write(SetTagRequest, **tag, version=VersionRef(version=1))))
        return sizes(*given)

    monkeypatch.setattr(objects, "_sizes", and_tag)
    barn.sweep_later(times=1)
    write(barn.store, barn.store.settings.delete_tag(to_write(DeleteTagRequest, **tag)))
    barn.sweep_later(times=1)
    assert found == ["tagged", "tagged"]
    assert barn.is_whole(first, 1)
    barn.check()


def moved_inline(barn: Barn) -> None:
    """Has many trees in entries, which the next sweep moves into packs."""
    for number in range(objectsweep.INLINE_LISTS):
        barn.keep(tree(f"{number}", 2, 1 * KIB), inline=True)


def once(barn: Barn, call: Callable[..., Any]) -> Callable[..., Any]:
    """A function before whose first call the objects are moved, as if a sweep were just in time."""
    waiting = [barn.sweep_later]

    def moved_first(*given: Any, **more: Any) -> Any:
        if waiting:
            waiting.pop()()
        return call(*given, **more)

    return moved_first


def test_objects_are_moved_during_a_copy(barn: Barn, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be made again, and nobody is told of damage."""
    moved_inline(barn)
    monkeypatch.setattr(fork, "read_listed", once(barn, fork.read_listed))
    request = to_write(ForkThreadRequest, namespace=NAMESPACE, thread="t", new_thread="copy", all_versions=True)
    with pytest.raises(QueueFull, match="try again"):
        barn.store.forker.fork(request)
    barn.store.forker.fork(request)
    barn.check()


def test_objects_are_moved_during_an_export(barn: Barn, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be made again, and nobody is told of damage."""
    moved_inline(barn)
    monkeypatch.setattr(exporting, "export_objects", once(barn, exporting.export_objects))
    request = ExportThreadRequest(namespace=NAMESPACE, thread="t")
    with pytest.raises(QueueFull, match="try again"):
        list(barn.store.exporter.open(request))
    assert list(barn.store.exporter.open(request))
    barn.check()


def test_after_a_start_the_hour_begins_anew(barn: Barn) -> None:
    """What was unnamed is forgotten with the process."""
    doomed = tree("doomed")
    barn.keep(tree("kept"))
    barn.send(doomed)
    barn.sweep_later(times=1)
    rest(barn.store)
    barn.store.close()
    barn.clock.ahead_s += HOUR_S
    barn.open()
    barn.store.sweeper.sweep()
    with barn.store.context.engine.read() as txn:
        number = barn.store.threads.get(txn, NAMESPACE, "t").number
    assert len(barn.store.context.trees.unnamed(number) or ()) == len(doomed.objects())
    barn.sweep_later(times=2)
    assert barn.missing(doomed) == len(doomed.objects())
    barn.check()


def test_a_save_that_was_checked_before_a_removal_is_checked_again(barn: Barn) -> None:
    """Its objects went between the check and the write: the version is refused, and names nothing that is gone."""
    barn.keep(tree("kept"))
    doomed = tree("doomed")
    barn.send(doomed)
    barn.sweep_later(times=1)
    request = naming(doomed.ref, 1)
    request.namespace = NAMESPACE
    save = prepared(barn.store, request)
    with barn.store.context.engine.read() as txn:
        number = barn.store.threads.get(txn, NAMESPACE, "t").number
    # Nobody asks for an hour: the check of the save did, so this is a client that is slower than that.
    keys = {key for key, _ in objects_of(barn) if key not in named_of(barn)}
    barn.store.context.trees.watch(number, keys)
    barn.sweep_later(times=2)
    with pytest.raises(InvalidField, match="does not have"):
        write(barn.store, save.run)
    barn.check()


def test_a_save_that_is_checked_while_a_removal_is_committed_is_checked_again(
    barn: Barn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its check sees the objects, because the removal is not on disk yet."""
    barn.keep(tree("kept"))
    doomed, checked = tree("doomed"), list[SaveWrite]()
    barn.send(doomed)
    barn.sweep_later(times=1)
    request = naming(doomed.ref, 1)
    request.namespace = NAMESPACE
    remove = barn.store.sweeper._objects._remove_rows

    def watched(*given: Any) -> Any:
        run = remove(*given)

        def and_check(txn: Any, batch: Batch) -> None:
            run(txn, batch)
            with ThreadPoolExecutor(1) as pool:
                checked.append(pool.submit(prepared, barn.store, request).result())

        return and_check

    monkeypatch.setattr(barn.store.sweeper._objects, "_remove_rows", watched)
    barn.sweep_later(times=1)
    assert len(checked) == 1
    with pytest.raises(InvalidField, match="does not have"):
        write(barn.store, checked[0].run)
    barn.check()


def test_a_save_that_reads_as_before_a_removal_is_checked_again(barn: Barn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its transaction is older than the removal, its check is younger."""
    barn.keep(tree("kept"))
    doomed = tree("doomed")
    barn.send(doomed)
    barn.sweep_later(times=1)
    request = naming(doomed.ref, 1)
    request.namespace = NAMESPACE
    monkeypatch.setattr(barn.store.sweeper._objects, "_remove_lists", lambda *_: None)  # the packs are still there
    save = SaveWrite(barn.store.context, barn.store.threads, request)
    with barn.store.context.engine.read() as txn:
        thread = barn.store.threads.get(txn, NAMESPACE, "t")
        barn.sweep_later(times=1)
        save.prepare(txn, thread)
    assert barn.missing(doomed) == len(doomed.objects())
    with pytest.raises(InvalidField, match="does not have"):
        write(barn.store, save.run)
    barn.check()


def objects_of(barn: Barn) -> list[tuple[bytes, Any]]:
    with barn.store.context.engine.read() as txn:
        thread = barn.store.threads.get(txn, NAMESPACE, "t")
        return list(object_rows(txn, thread.identity))


def named_of(barn: Barn) -> set[bytes]:
    with barn.store.context.engine.read() as txn:
        thread = barn.store.threads.get(txn, NAMESPACE, "t")
    return barn.store.sweeper._objects._count(thread).named


def test_a_pack_whose_commit_may_have_landed_stays(barn: Barn, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fails while a sweep commits the list of a new pack. A row may lead to its file after the next start."""
    for number in range(objectsweep.INLINE_LISTS):
        barn.keep(tree(f"{number}", 2, 1 * KIB), inline=True)
    writer = barn.store.context.writer
    submit = writer.submit

    def fail(write: Write, **how: Any) -> Any:
        if not write.is_alone:
            return submit(write, **how)
        write.error = OutcomeUnknown("the disk failed")
        raise write.error

    monkeypatch.setattr(writer, "submit", fail)
    assert barn.files() == 0
    barn.sweep_later(times=4)
    assert barn.files() > 0


def test_rows_are_found_again_while_their_page_is_divided(barn: Barn) -> None:
    """Small entries lie in the page into which the rows are put, and both are new in the transaction. However full the
    page is, each entry is read as it is."""
    barn.keep(make({b"a": b"one", b"b": b"two"}), inline=True)
    barn.keep(make({b"c": b"three"}), inline=True)
    before, wrong = objects_of(barn), list[str]()

    def lose_and_find(fillers: int, txn: Any, batch: Batch) -> None:
        draft = barn.store.threads.draft(txn, batch, NAMESPACE, "t")
        assert draft is not None
        keys = draft.identity.keys
        for key, row in [(bytes(key), bytes(row)) for key, row in rows(txn, keys.all_of(b"J"))]:
            txn.delete(key)
            txn.put(key, row)  # as if the entry had just come from the archive
        for key, _ in before:
            txn.delete(key)
        for _ in range(fillers):
            txn.put(keys.object(os.urandom(16)), b"filler")
        try:
            find_again(txn, draft, {key for key, _ in before})
        except StatewardError as error:
            wrong.append(f"{fillers}: {error}")
        wrong.extend(f"{fillers}: a row is missing" for key, _ in before if txn.get(key) is None)
        raise InvalidField("fillers", "nothing of this is kept")

    for fillers in (*range(40, 90), *range(40, 90), *range(40, 90)):
        with pytest.raises(InvalidField, match="nothing of this"):
            write(barn.store, partial(lose_and_find, fillers))
    assert wrong == []
