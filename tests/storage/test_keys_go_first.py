"""The danger: a reader is older than the deletion of a thread, finds rows and no key, and calls that damage."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.store import opened, save, write

from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.errors import KeyUnavailable
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.keystore import KeyStore
from stateward_sidecar.store.store import Store

READERS: dict[str, Callable[[Store, Any, int], Any]] = {
    "find": lambda store, txn, _: store.threads.find(txn, "default", "t"),
    "by_number": lambda store, txn, number: store.threads.by_number(txn, number),
    "head": lambda store, txn, number: store.threads.head(txn, number),
    "stored_head": lambda store, txn, number: store.threads.stored_head(txn, number),
}
STEPS = ["is_erased", "namespace_of", "namespace_by_id", "thread_key"]


@pytest.mark.parametrize("removed", [False, True], ids=["erased", "removed"])
@pytest.mark.parametrize("step", ["", *STEPS])
@pytest.mark.parametrize("name", READERS)
def test_a_reader_that_is_older_than_a_deletion_finds_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, step: str, removed: bool
) -> None:
    """Whatever it has looked at when the key goes; `removed`: the slot of the key is free again, too."""
    with opened(tmp_path) as store:
        save(store, "1")
        with store.context.engine.read() as txn:
            number = store.threads.get(txn, "default", "t").number
    with opened(tmp_path) as store:
        uid = _uid(store, number)
        deletions = [DeleteThreadRequest(namespace="default", thread="t")]
        if not removed:
            monkeypatch.setattr(store.deleter, "purge", lambda *_: None)

        def delete() -> None:
            while deletions:
                write(store, store.deleter.delete(deletions.pop()))
            while removed and store.context.keystore.has_thread(uid):
                time.sleep(0.001)

        with store.context.engine.read() as txn:
            if step:
                real = getattr(KeyStore, step)

                def go(keystore: KeyStore, *arguments: Any) -> Any:
                    if deletions:
                        delete()
                    return real(keystore, *arguments)

                monkeypatch.setattr(KeyStore, step, go)
            else:
                delete()
            found = READERS[name](store, txn, number)
            assert (found is None) == (deletions == [])
            assert deletions == [] or name == "find"  # which looks at the name of the namespace, not at its id


def _uid(store: Store, number: int) -> bytes:
    with store.context.engine.read() as txn:
        return bytes(txn.get(layout.ThreadKeys(number).head)[:16])


def test_a_key_that_is_missing_is_said(tmp_path: Path) -> None:
    """As long as the thread is there."""
    with opened(tmp_path) as store:
        save(store, "1")
        with store.context.engine.read() as txn:
            number = store.threads.get(txn, "default", "t").number
    with opened(tmp_path) as store:
        store.context.keystore.give_up(_uid(store, number))
        store.context.keystore.release(_uid(store, number))
        with store.context.engine.read() as txn:
            for read in READERS.values():
                with pytest.raises(KeyUnavailable, match="missing"):
                    read(store, txn, number)
