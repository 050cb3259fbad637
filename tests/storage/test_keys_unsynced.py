"""The danger: a power cut brings back the key of a deleted thread, or leaves rows whose key never reached the disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.daemon.store import get, opened, save, write
from tests.storage.test_keys_revived import archived

from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.archive.objects.keys import Keys, key_object
from stateward_sidecar.archive.requests.metered import Wire
from stateward_sidecar.storage import keystore
from stateward_sidecar.storage.keyslots import SLOT_BYTES
from stateward_sidecar.storage.keystore import KeyStore
from stateward_sidecar.storage.keywraps import NAMESPACE, THREAD
from stateward_sidecar.store.travel.install import Installer


class CutDisk:
    """A key store's file as a power cut would leave it."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self._path, self.synced = path, path.read_bytes()
        sync = os.fdatasync

        def fdatasync(file: int) -> None:
            sync(file)
            self.synced = path.read_bytes()

        patch.setattr(keystore.os, "fdatasync", fdatasync)

    def has(self, kind: int, identity: bytes) -> bool:
        """Whether the slot of a key is durable."""
        at = self.synced.find(identity)
        return at >= 0 and self.synced[at // SLOT_BYTES * SLOT_BYTES] == kind

    def is_marked(self, identity: bytes) -> bool:
        """Whether the mark of a key that goes at the next start is durable."""
        return bool(self.synced[(self.synced.index(identity) // SLOT_BYTES + 1) * SLOT_BYTES - 1])


def test_a_deleted_key_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was answered that a thread is deleted relies on the end of its key, whatever happens to the power."""
    with opened(tmp_path) as store:
        save(store, "1", expected_version=0)
        uid = get(store).identity.uid
        disk, seen = CutDisk(tmp_path / "keys", monkeypatch), list[bool]()
        erase = KeyStore.erase_thread

        def look(keys: KeyStore, doomed: bytes) -> None:
            assert disk.is_marked(doomed)  # committed: if it ended here, the next start would have to know
            erase(keys, doomed)

        monkeypatch.setattr(KeyStore, "erase_thread", look)
        monkeypatch.setattr(store.deleter, "purge", lambda *_: seen.append(disk.has(THREAD, uid)))
        assert disk.has(THREAD, uid)
        write(store, store.deleter.delete(DeleteThreadRequest(namespace="default", thread="t")))
        assert seen == [False]


def test_an_installed_thread_has_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that came from the archive are committed after the key that opens them is durable."""
    with opened(tmp_path / "a") as store:
        save(store, "1", expected_version=0)
        uid, incoming = get(store).identity.uid, archived(store)
        slots = store.context.keystore.namespace_slots(get(store).identity.namespace_keys.id)
        root = store.context.keystore.root_slot()
    (tmp_path / "b").mkdir()
    with opened(tmp_path / "b", root=root) as store:
        keys, disk = store.context.keystore, CutDisk(tmp_path / "b" / "keys", monkeypatch)
        Keys(store.context, Mock(spec=Wire))._adopt(keys.namespace_id("default"), key_object(*slots))
        assert disk.has(NAMESPACE, keys.namespace_id("default"))
        committed, publish = list[bool](), store.threads._publish

        def look(draft: Any) -> None:
            committed.append(disk.has(THREAD, uid))
            publish(draft)

        monkeypatch.setattr(store.threads, "_publish", look)
        Installer(store.context, store.threads).install(incoming(store))
        assert committed == [True]
