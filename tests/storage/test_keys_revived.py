"""The danger: the start finishes an old deletion, and destroys the key or blobs of a thread that has come back from the
archive."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from tests.daemon.store import findings, get, hydrate, make_store, opened, save, settle, write
from tests.daemon.wire import appends

from stateward.storage.v1.archive_pb2 import ArchiveHead, ArchiveRow, ThreadImage
from stateward.v1.blob_service_pb2 import BlobBegin, ReadBlobRequest, WriteBlobResponse
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.effect_pb2 import Effect
from stateward.v1.effect_service_pb2 import PutEffectsRequest
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.archive.objects.image import Cutter
from stateward_sidecar.errors import DiskFull
from stateward_sidecar.storage.keystore import KeyStore
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread.context import ArchiveHooks, Claim
from stateward_sidecar.store.travel.install import Incoming, Installer
from stateward_sidecar.store.travel.orphans import Orphans
from stateward_sidecar.store.travel.outbox import Moment, Outbox
from stateward_sidecar.store.versions.save import SaveWrite

DATA_KEY = b"d" * 32


def image_of(moment: Moment) -> ThreadImage:
    """The image of a small thread, which needs no parts."""
    cut = Cutter().cut(moment.thread.identity.cipher, moment, 0)
    assert not cut.parts
    return cut.inline


def archived(store: Store) -> Callable[[Store], Incoming]:
    """The thread as an archive has it, to be put on a disk."""
    thread, outbox = get(store), Outbox(store.context, store.threads)
    moment = outbox.moment(thread.identity)
    assert moment is not None
    rows = [row for part in outbox.entries(moment.thread, 0, moment.tip_sequence) for row in part.rows]
    key = store.context.keystore.thread_key(thread.identity.uid, thread.identity.namespace_keys)
    assert key is not None
    uid, image, tip = thread.identity.uid, image_of(moment), moment.tip_sequence

    def incoming(there: Store) -> Incoming:
        namespace = there.context.keystore.namespace("default")
        assert namespace is not None
        return Incoming(namespace, uid, key, image, ArchiveRow(head=ArchiveHead(uid=uid, tip_sequence=tip)), rows)

    return incoming


def delete_and_die(store: Store, patch: pytest.MonkeyPatch, *, is_erased: bool) -> None:
    """A deletion that was committed, and nothing after it but, perhaps, the end of its key."""
    with patch.context() as broken:
        broken.setattr(store.deleter, "purge", lambda *_: None)
        if not is_erased:
            broken.setattr(KeyStore, "erase_thread", lambda *_: None)
        write(store, store.deleter.delete(DeleteThreadRequest(namespace="default", thread="t")))


@pytest.mark.parametrize("is_erased", [True, False], ids=["erased", "marked"])
def test_a_key_that_is_used_again_is_not_destroyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_erased: bool
) -> None:
    """The start decides in the writer: what came back while it read the names keeps its key, also after a restart."""
    with opened(tmp_path) as first:
        for number in range(3):
            save(first, f"{number}", expected_version=number)
        incoming = archived(first)
        delete_and_die(first, monkeypatch, is_erased=is_erased)
    second = make_store(tmp_path)
    read_names = second.recovery._look

    def come_back(*arguments: Any) -> Any:
        found = read_names(*arguments)
        Installer(second.context, second.threads).install(incoming(second))
        return found

    monkeypatch.setattr(second.recovery, "_look", come_back)
    second.start()
    settle(second)
    save(second, "after", expected_version=3)
    second.close()
    with opened(tmp_path) as third:
        assert hydrate(third).checkpoint.version == 4
        assert findings(third) == []
        assert third.context.keystore.unfinished == set()


def write_blob(store: Store, content: bytes) -> WriteBlobResponse:
    begin = BlobBegin(namespace="default", thread="t")
    blob = store.blobs.begin_write(get(store), begin)
    blob.finish(content)
    answer: WriteBlobResponse = write(store, partial(blob.commit, store.threads))
    return answer


def test_blobs_of_a_thread_that_came_back_are_not_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files lay under the uid that was deleted; what is written under it since the start stays."""
    with opened(tmp_path) as first:
        save(first, "0", expected_version=0)
        incoming = archived(first)
        write_blob(first, b"of the deleted thread")
        delete_and_die(first, monkeypatch, is_erased=True)
    second = make_store(tmp_path)
    read_names, answers = second.recovery._look, list[WriteBlobResponse]()

    def come_back(*arguments: Any) -> Any:
        found = read_names(*arguments)
        Installer(second.context, second.threads).install(incoming(second))
        answers.append(write_blob(second, b"written since"))
        return found

    monkeypatch.setattr(second.recovery, "_look", come_back)
    second.start()
    settle(second)
    request = ReadBlobRequest(namespace="default", thread="t", blob=answers[0].blob)
    assert b"".join(step().data for step in second.blobs.read(request)) == b"written since"
    second.close()


def test_a_key_nobody_came_back_for_is_destroyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start finishes a deletion whose key was marked and not yet destroyed."""
    with opened(tmp_path) as first:
        save(first, "0", expected_version=0)
        uid = get(first).identity.uid
        delete_and_die(first, monkeypatch, is_erased=False)
    with opened(tmp_path) as second:
        settle(second)
        assert second.context.keystore.namespace_of(uid) is None
    assert uid not in (tmp_path / "keys").read_bytes()


def test_a_second_slot_never_outlives_a_deletion(tmp_path: Path) -> None:
    """A key that is added twice, as two tries to make a claimed thread do, has one slot, and goes with it."""
    with opened(tmp_path) as store:
        save(store, "0", expected_version=0)
        keystore, identity = store.context.keystore, get(store).identity
        before = (tmp_path / "keys").read_bytes().count(identity.uid)
        write(store, lambda *_: keystore.add_thread(identity.uid, identity.namespace_keys, DATA_KEY))
        assert (tmp_path / "keys").read_bytes().count(identity.uid) == before == 1


@pytest.mark.parametrize("kind", ["save", "effect"])
def test_a_creation_that_fails_leaves_the_key_of_an_orphan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """What was set aside before anything of it was archived has the uid and key that its name is claimed with again."""
    with opened(tmp_path) as store:
        save(store, "0", expected_version=0)
        identity = get(store).identity
        key = store.context.keystore.thread_key(identity.uid, identity.namespace_keys)
        assert key is not None
        row = ArchiveRow(head=ArchiveHead(uid=identity.uid, epoch=2))
        name, _ = Orphans(store.context, store.threads).set_aside(get(store), 0, ArchiveRow(head=row.head))
        store.context.archive = hooks = MagicMock(spec=ArchiveHooks)
        hooks.claims = {("default", "t"): Claim(identity.uid, key, row)}
        request = SaveRequest(
            namespace="default", thread="t", diff=appends("1"), options=WriteOptions(request_id="1", expected_version=0)
        )
        run = SaveWrite(store.context, store.threads, request).run
        if kind == "effect":
            effects = [Effect(anchor="a", key="k")]
            run = store.effects.put(PutEffectsRequest(namespace="default", thread="t", effects=effects))
        with monkeypatch.context() as full:
            full.setattr("stateward_sidecar.store.journal.journal.pack", fill)
            with pytest.raises(DiskFull):
                write(store, run)
        store.context.archive = None
        store.threads.forget(get(store, name))
        assert hydrate(store, name).checkpoint.version == 1


def fill(*_: object) -> bytes:
    raise DiskFull("full")
