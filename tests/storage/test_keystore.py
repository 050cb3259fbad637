"""The danger: the key of a deleted thread can still be read from the key store, or the key of a living one is gone
after a restart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stateward_sidecar.errors import KeyUnavailable, StartError
from stateward_sidecar.storage.keyslots import SLOT_BYTES
from stateward_sidecar.storage.keystore import KeyStore

KEY = b"k" * 32
UID = b"u" * 16
DATA_KEY = b"d" * 32


def open_store(path: Path, key: bytes = KEY) -> KeyStore:
    return KeyStore(path / "keys", key)


def add_thread(store: KeyStore, uid: bytes = UID, data_key: bytes = DATA_KEY) -> None:
    namespace = store.namespace("default") or store.create_namespace("default")
    store.add_thread(uid, namespace, data_key)
    store.sync()


def test_keys_come_back_after_a_restart(tmp_path: Path) -> None:
    """Namespace and thread keys are the same when the file is opened again."""
    first = open_store(tmp_path)
    add_thread(first)
    before = first.namespace("default")
    first.close()
    second = open_store(tmp_path)
    namespace = second.namespace("default")

    assert namespace is not None
    assert before is not None
    assert namespace.wrapping_key == before.wrapping_key
    assert namespace.names.thread("a") == before.names.thread("a")
    assert second.thread_key(UID, namespace) == DATA_KEY
    assert second.namespace("other") is None


def test_another_key_is_refused_at_once(tmp_path: Path) -> None:
    """A store made with another key-encryption key does not open, and the message names the key."""
    open_store(tmp_path).close()
    with pytest.raises(StartError, match="does not open"):
        open_store(tmp_path, b"x" * 32)


def test_an_erased_key_is_not_in_the_file(tmp_path: Path) -> None:
    """Erasing overwrites the wrapped key where it stood, and says so until the slot is released."""
    store = open_store(tmp_path)
    add_thread(store)
    before = (tmp_path / "keys").read_bytes()
    slot = before.index(UID) // SLOT_BYTES
    wrapped = before[slot * SLOT_BYTES + 36 : slot * SLOT_BYTES + 96]
    store.erase_thread(UID)
    namespace = store.namespace("default")

    assert namespace is not None
    assert wrapped not in (tmp_path / "keys").read_bytes()
    assert store.thread_key(UID, namespace) is None
    assert store.is_erased(UID)
    store.close()
    again = open_store(tmp_path)
    assert again.unfinished == {UID}
    again.release(UID)
    again.sync()
    assert again.unfinished == set()


def test_a_released_slot_is_used_again(tmp_path: Path) -> None:
    """Making and deleting threads for ever does not grow the file."""
    store = open_store(tmp_path)
    sizes = set()
    for _ in range(200):
        uid = os.urandom(16)
        add_thread(store, uid)
        store.erase_thread(uid)
        store.release(uid)
        sizes.add((tmp_path / "keys").stat().st_size)
    assert len(sizes) == 1


def test_a_damaged_slot_is_that_thread_s_loss_only(tmp_path: Path) -> None:
    """Every changed bit of a slot makes that key unavailable, never another key, and leaves its neighbour alone."""
    store = open_store(tmp_path)
    add_thread(store)
    add_thread(store, b"v" * 16, b"e" * 32)
    store.close()
    good = (tmp_path / "keys").read_bytes()
    start = good.index(UID) // SLOT_BYTES * SLOT_BYTES
    for position in range(start * 8, (start + 96) * 8, 7):
        damaged = bytearray(good)
        damaged[position // 8] ^= 1 << position % 8
        (tmp_path / "keys").write_bytes(bytes(damaged))
        store = open_store(tmp_path)
        namespace = store.namespace("default")
        assert namespace is not None
        try:
            found = store.thread_key(UID, namespace)
        except KeyUnavailable:
            found = None
        assert found is None
        assert store.thread_key(b"v" * 16, namespace) == b"e" * 32
        store.close()


def test_something_else_is_not_taken_for_a_key_store(tmp_path: Path) -> None:
    """A file of another kind or a later format is refused by name."""
    (tmp_path / "keys").write_bytes(b"hello" * 100)
    with pytest.raises(StartError, match="not a key store"):
        open_store(tmp_path)
    (tmp_path / "keys").write_bytes((b"SWKEYS" + bytes((9,))).ljust(256, b"\0"))
    with pytest.raises(StartError, match="format 9"):
        open_store(tmp_path)


def test_no_power_cut_makes_a_key_look_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever write was the last to reach the disk, a thread without a name has no key that counts."""
    store = open_store(tmp_path)
    write, seen = os.pwrite, list[set[bytes]]()

    def cut(fd: int, data: bytes, offset: int) -> int:
        written = write(fd, data, offset)
        (tmp_path / "cut").mkdir(exist_ok=True)
        (tmp_path / "cut" / "keys").write_bytes((tmp_path / "keys").read_bytes())
        after = open_store(tmp_path / "cut")
        seen.append(after.settled_threads())
        after.close()
        return written

    monkeypatch.setattr(os, "pwrite", cut)
    add_thread(store)
    assert len(seen) == 2
    assert seen == [set(), set()]
