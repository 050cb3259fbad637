"""The danger: somebody sets rows of a stopped daemon back to an older copy, and the daemon serves the past without a
finding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lmdb
import pytest
from tests.daemon.store import findings, get, hydrate, make_store, opened, save, settle, write
from tests.storage.test_prune_slow import line

from stateward.v1.blob_service_pb2 import BlobBegin
from stateward_sidecar.codec import parts
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.codec.snapshot import to_snapshot
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.storage import layout
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread import blocks


def rows_of(directory: Path, number: int) -> dict[bytes, bytes]:
    """All rows of one thread, and its places in lists."""
    with lmdb.open(str(directory), map_size=1 << 30) as env, env.begin() as txn:
        tail = (layout.NUMBER_MAX - number).to_bytes(4, "big")
        prefix = layout.thread_prefix(number)
        return {
            bytes(key): bytes(value)
            for key, value in txn.cursor()
            if key.startswith(prefix) or (key[:1] in (b"U", b"S") and key.endswith(tail))
        }


def change(directory: Path, gone: Any, put: dict[bytes, bytes]) -> None:
    """Removes and puts rows behind the daemon's back."""
    with lmdb.open(str(directory), map_size=1 << 30) as env, env.begin(write=True) as txn:
        for key in gone:
            txn.delete(key)
        for key, value in put.items():
            txn.put(key, value)


def test_a_thread_that_was_set_back_as_a_whole_is_a_finding(tmp_path: Path) -> None:
    """All its rows are those of version 1 again: the feed of all entries still names what came after, sweeps or not."""
    with opened(tmp_path) as store:
        save(store, "1", expected_version=0)
        number = get(store).number
    old = rows_of(tmp_path, number)
    with opened(tmp_path) as store:
        save(store, "2", expected_version=1)
        save(store, "3", expected_version=2)
        save(store, "of another", thread="other")
    change(tmp_path, rows_of(tmp_path, number), old)
    with opened(tmp_path) as store:
        assert hydrate(store).checkpoint.version == 1  # which no read of this thread alone can see
        for _ in range(2):
            assert ["was set back" in each.message for each in findings(store)] == [True]
            assert (findings(store)[0].thread, findings(store)[0].sequence) == ("t", 3)
            store.sweeper.sweep()


def test_a_removed_name_is_put_again(tmp_path: Path) -> None:
    """The thread's own head says how it is called: it is found again, with its files, and is not taken for new."""
    with opened(tmp_path) as store:
        save(store, "1", expected_version=0)
        identity = get(store).identity
        name = layout.name_key(identity.namespace_keys.names.thread("t"))
        put_blob(store, b"a blob")
    change(tmp_path, [name], {})
    with opened(tmp_path) as store:
        settle(store)
        assert hydrate(store).checkpoint.version == 1
        assert get(store).identity.uid == identity.uid
        assert save(store, "2", expected_version=1).version == 2
        assert findings(store) == []  # its blob among them


def put_blob(store: Store, data: bytes) -> None:
    """A blob of the thread, as BlobService writes it."""
    begin = BlobBegin(namespace="default", thread="t")
    found = store.blobs.find_thread(begin)
    assert found is not None
    blob = store.blobs.begin_write(found, begin)
    blob.finish(data)
    write(store, lambda txn, batch: blob.commit(store.threads, txn, batch))


def test_a_name_that_another_thread_has_by_now_is_left_to_it(tmp_path: Path) -> None:
    """The thread that lost it is never taken for the one that has it, and Verify names it."""
    with opened(tmp_path) as store:
        save(store, "1", expected_version=0)
        old = get(store).identity
    change(tmp_path, [layout.name_key(old.namespace_keys.names.thread("t"))], {})
    store = make_store(tmp_path)
    store.context.writer.start()  # somebody saves before the start comes to it
    save(store, "anew", expected_version=0)
    store.recovery.run(store.context.next_thread)
    with store.context.engine.read() as txn, pytest.raises(Corrupt, match="does not lead to it"):
        store.threads.by_number(txn, old.number)
    assert get(store).identity.uid != old.uid
    assert "no name leads to the thread" in [each.message for each in findings(store)]
    store.close()


def test_a_thread_whose_rows_are_gone_is_a_finding(tmp_path: Path) -> None:
    """Its key is still there."""
    with opened(tmp_path) as store:
        save(store, "1", expected_version=0)
        save(store, "x", thread="other")
        number, identity = get(store).number, get(store).identity
    name = layout.name_key(identity.namespace_keys.names.thread("t"))
    change(tmp_path, [name, *rows_of(tmp_path, number)], {})
    with opened(tmp_path) as store:
        settle(store)
        found = findings(store)
        assert [(each.uid, each.message) for each in found] == [(identity.uid_text, "a thread has a key, but no rows")]


def test_a_snapshot_of_another_line_is_no_state(tmp_path: Path) -> None:
    """It is sealed under the thread's key and for the same version, and belongs to another history."""
    with opened(tmp_path) as store:
        line(store, 6)
        swap_snapshot(store, 3, b"of another line!")
        store.threads.forget(get(store))
        with pytest.raises(Corrupt, match="another history"):
            hydrate(store, version=4)
        assert hydrate(store, version=2).checkpoint.version == 2


def test_a_digest_in_clear_is_not_believed(tmp_path: Path) -> None:
    """Nor is it where the entry's header was changed to name the digest of the swapped snapshot."""
    with opened(tmp_path) as store:
        line(store, 6)
        foreign = b"of another line!"
        swap_snapshot(store, 3, foreign)
        keys = get(store).identity.keys

        def edit(txn: lmdb.Transaction, batch: object) -> None:
            record = blocks.get_entry(txn, keys, 3)
            assert record is not None
            digest = unpack(record, 3).header.digest
            blocks.shrink_entry(txn, keys, 3, record.replace(digest, foreign))

        write(store, edit)
        store.threads.forget(get(store))
        with pytest.raises(Corrupt):
            hydrate(store, version=4)


def swap_snapshot(store: Store, version: int, digest: bytes) -> None:
    """Puts a snapshot as the thread's key would seal it for another line."""
    thread = get(store)
    with store.context.engine.read() as txn:
        content = parts.pack_snapshot(to_snapshot(replay.state_at(txn, thread, version - 1, store.context.cache)))
    identity = thread.identity
    row = parts.seal_piece(identity.cipher, parts.SNAPSHOT_MAGIC, content, 0, digest, identity.uid, layout.u64(version))
    write(store, lambda txn, batch: txn.put(identity.keys.snapshot_piece(version, 0), row))
