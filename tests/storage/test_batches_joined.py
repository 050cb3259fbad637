"""The danger: work of the background is committed with somebody's save, and spoils it, or is spoilt by it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from tests.daemon.store import WAIT_S, findings, get, hydrate, opened, save, settle
from tests.daemon.wire import appends
from tests.storage.test_drafts_shared import full_at, together

from stateward.storage.v1.archive_pb2 import ArchiveHead, ArchiveRow
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import DiskFull, NotOwner
from stateward_sidecar.storage.queue import Write
from stateward_sidecar.store.copies.hidden import Hidden
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread.context import ArchiveHooks, Claim
from stateward_sidecar.store.versions.save import SaveWrite


def at_the_same_time(store: Store, verb: Callable[[], object], request: SaveRequest) -> Write:
    """Runs a verb of the background while the writer is busy, and a save that comes after it. Returns the save."""
    writer, begun, go_on = store.context.writer, threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        begun.set()
        assert go_on.wait(WAIT_S)

    writer.submit(Write(run=hold))
    assert begun.wait(WAIT_S)
    queued, submit = threading.Event(), writer.submit

    def submitted(write: Write, **how: Any) -> Write:
        try:
            return submit(write, **how)
        finally:
            queued.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "submit", submitted)
        working = threading.Thread(target=verb)
        working.start()
        assert queued.wait(WAIT_S)
    saving = submit(Write(run=SaveWrite(store.context, store.threads, request).run), wait=True)
    go_on.set()
    working.join(WAIT_S)
    assert saving._done is not None
    assert saving._done.wait(WAIT_S)
    return saving


def test_a_copy_that_fails_leaves_the_key_of_a_save_under_the_same_claim(tmp_path: Path) -> None:
    """A claim fixes uid and key of a name, so both have the same. The save was answered, and must be readable."""
    request = SaveRequest(
        namespace="default", thread="c", diff=appends("1"), options=WriteOptions(request_id="1", expected_version=0)
    )
    with opened(tmp_path) as store:
        save(store, "0", expected_version=0)
        uid, key = os.urandom(16), os.urandom(32)
        store.context.archive = hooks = MagicMock(spec=ArchiveHooks)
        row = ArchiveRow(head=ArchiveHead(uid=uid, epoch=1))
        hooks.claims = {("default", "c"): Claim(uid, key, row)}
        copy = Hidden(store.context, store.threads, store.deleter, "default", "c")
        saving = at_the_same_time(store, copy.discard, request)
        assert saving.error is None
        settle(store)
        store.context.archive = None
    with opened(tmp_path) as store:
        settle(store)
        assert hydrate(store, "c").checkpoint.version == 1
        assert findings(store) == []


def test_a_copy_that_could_not_be_shown_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last row did not fit. A save that is written at that moment does not make it visible."""
    request = SaveRequest(namespace="default", thread="t", diff=appends("1"), options=WriteOptions(request_id="1"))
    errors = list[BaseException]()
    with opened(tmp_path) as store:
        save(store, "0", expected_version=0)
        store.context.had_archive = True
        copy = Hidden(store.context, store.threads, store.deleter, "default", "copy")

        def reveal() -> None:
            try:
                copy.reveal(lambda head: None)
            except DiskFull as error:
                errors.append(error)

        with monkeypatch.context() as full:
            full_at(full, "outbox_key", 2)
            saving = at_the_same_time(store, reveal, request)
        assert (saving.error, len(errors)) == (None, 1)
        assert store.threads.cached("default", "copy") is None
        assert get(store).head.last_version == 2
        copy.discard()
        settle(store)
        assert findings(store) == []


def test_a_thread_is_not_made_with_the_key_of_the_one_that_its_batch_deleted(tmp_path: Path) -> None:
    """A first save, its deletion on this disk and the next first save share a commit, and their claim fixes one key."""
    first, again = (
        SaveRequest(
            namespace="default", thread="c", diff=appends(each),
            options=WriteOptions(request_id=each, expected_version=0)
        )
        for each in ("1", "2")
    )
    with opened(tmp_path) as store:
        save(store, "0", expected_version=0)
        uid, key = os.urandom(16), os.urandom(32)
        claim = Claim(uid, key, ArchiveRow(head=ArchiveHead(uid=uid, epoch=1)))
        store.context.archive = hooks = MagicMock(spec=ArchiveHooks)
        hooks.claims = {("default", "c"): claim}
        made = SaveWrite(store.context, store.threads, first).run
        deleted = store.deleter.delete(DeleteThreadRequest(namespace="default", thread="c"))
        made_again = SaveWrite(store.context, store.threads, again).run
        done = together(store, [made, deleted, made_again])
        assert [each.error for each in done[:2]] == [None, None]
        assert isinstance(done[2].error, NotOwner)  # the service claims the name, and saves again
        hooks.claims = {("default", "c"): claim}
        assert together(store, [made_again])[0].error is None
        settle(store)
        store.context.archive = None
    with opened(tmp_path) as store:
        settle(store)
        assert hydrate(store, "c").checkpoint.version == 1
        assert findings(store) == []
