"""The danger: what the daemon keeps of each key grows with the number of threads, or two keys are taken for one."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

from stateward_sidecar.storage.keystore import KeyStore

KEY = bytes(32)
THREADS = 20_000
BYTES_MAX = 16  # for each thread; with an object for each it is 180


def test_a_key_takes_few_bytes_of_memory(tmp_path: Path) -> None:
    """However many threads there are, and they are all found."""
    path = tmp_path / "keys"
    store = KeyStore(path, KEY)
    namespace = store.create_namespace("n")
    uids = [os.urandom(16) for _ in range(THREADS)]
    for uid in uids:
        store.add_thread(uid, namespace, uid * 2)
        store.mark_leaving(uid, is_leaving=False)
    store.sync()
    store.close()
    tracemalloc.start()
    try:
        store = KeyStore(path, KEY)
        assert tracemalloc.get_traced_memory()[0] < THREADS * BYTES_MAX
    finally:
        tracemalloc.stop()
    found = store.namespace("n")
    assert found is not None
    namespace = found
    assert all(store.thread_key(uid, namespace) == uid * 2 for uid in uids[::97])
    assert store.settled_threads() == set(uids)
    store.close()


def test_uids_that_begin_alike_have_their_own_keys(tmp_path: Path) -> None:
    """In any order of making and removing, and after a restart."""
    path = tmp_path / "keys"
    store = KeyStore(path, KEY)
    namespace = store.create_namespace("n")
    uids = [b"like" * 3 + number.to_bytes(4, "big") for number in range(300)]
    for uid in uids:
        store.add_thread(uid, namespace, uid * 2)
    for uid in uids[::2]:
        store.erase_thread(uid)
    for uid in uids[::4]:
        store.release(uid)
    for uid in uids[::8]:
        store.add_thread(uid, namespace, uid[::-1] * 2)
    for _ in range(2):
        found = store.namespace("n")
        assert found is not None
        for at, uid in enumerate(uids):
            there = uid * 2 if at % 2 else uid[::-1] * 2 if at % 8 == 0 else None
            assert store.thread_key(uid, found) == there
            assert store.is_erased(uid) is (at % 2 == 0 and at % 4 != 0)
        store.sync()
        store.close()
        store = KeyStore(path, KEY)
    store.close()
