"""The danger: a write that does not fit on the disk leaves its change in memory, and the next write of the batch builds
on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
from tests.daemon.store import WAIT_S, apply_together, findings, get, opened, save
from tests.daemon.wire import appends, text

from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.effect_pb2 import Effect
from stateward.v1.effect_service_pb2 import ListEffectsRequest, PutEffectsRequest
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.thread_service_pb2 import SetTagRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import DiskFull
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.queue import Write
from stateward_sidecar.store.journal import journal
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.versions.save import SaveWrite

# What the last rows of an entry are put with. Each one may be the row that does not fit.
LAST_ROWS = ["outbox_key", "feed_key"]


def together(store: Store, runs: list[Callable[..., Any]]) -> list[Write]:
    """Several writes in one commit."""
    writes = [Write(run=run) for run in runs]
    apply_together(store.context.writer, writes)
    for write in writes:
        assert write._done is not None
        assert write._done.wait(WAIT_S)
    return writes


def full_at(patch: pytest.MonkeyPatch, name: str, call: int) -> None:
    """The map has no room for one row."""
    real, calls = getattr(layout, name), [0]

    def key(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            raise lmdb.MapFullError("full")
        return real(*arguments)

    patch.setattr(journal.layout, name, key)


@pytest.mark.parametrize("row", LAST_ROWS)
def test_a_row_that_does_not_fit_leaves_the_batch_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str
) -> None:
    """Of three writes the second is refused; the third goes on from the first, in memory as on the disk."""
    with opened(tmp_path) as store:
        save(store, "0", expected_version=0)
        store.context.had_archive = True
        runs = [
            SaveWrite(
                store.context, store.threads, SaveRequest(namespace="default", thread="t", diff=appends(each))
            ).run
            for each in ("1", "2", "3")
        ]
        with monkeypatch.context() as full:
            full_at(full, row, 2)
            done = together(store, runs)
        assert isinstance(done[1].error, DiskFull)
        assert [done[0].result.version, done[2].result.version] == [2, 3]
        assert get(store).head.tip_sequence == 3
        assert findings(store) == []
        store.threads.forget(get(store))
        assert get(store).head.tip_sequence == 3


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("call", [4, 5, 6])
def test_results_of_which_one_does_not_fit_leave_the_batch_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, is_new: bool
) -> None:
    """Of three calls with three effects each the second is refused at one of them: it leaves none, the others all."""
    with opened(tmp_path) as store:
        if not is_new:
            save(store, "0", expected_version=0)
        store.context.had_archive = True
        puts = [
            PutEffectsRequest(
                namespace="default", thread="t", options=WriteOptions(create=ThreadOptions()),
                effects=[Effect(key=f"{name}{number}", value=text("x")) for number in range(3)],
            )
            for name in "abc"
        ]  # fmt: skip
        with monkeypatch.context() as full:
            full_at(full, "feed_key", call)
            done = together(store, [store.effects.put(put) for put in puts])
        assert isinstance(done[1].error, DiskFull)
        assert [done[0].error, done[2].error] == [None, None]
        request = ListEffectsRequest(namespace="default", thread="t")
        listed = [each.effect.key for each in store.effect_list.read(request).effects]
        assert listed == ["a0", "a1", "a2", "c0", "c1", "c2"]
        assert get(store).head.tip_sequence == 6 + (not is_new)
        assert findings(store) == []
        assert store.context.writer.commits == 1 + (not is_new)


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("call", [3, 4])
def test_a_version_that_does_not_fit_leaves_no_effects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, is_new: bool
) -> None:
    """Of three saves with an effect each the second is refused at its effect or its version: it leaves neither, and the
    others share a commit."""
    with opened(tmp_path) as store:
        if not is_new:
            save(store, "0", expected_version=0)
        store.context.had_archive = True
        saves = [
            SaveRequest(
                namespace="default", thread="t", diff=appends(name), options=WriteOptions(create=ThreadOptions()),
                effects=[Effect(key=name, value=text("x"))],
            )
            for name in "abc"
        ]  # fmt: skip
        with monkeypatch.context() as full:
            full_at(full, "feed_key", call)
            done = together(store, [SaveWrite(store.context, store.threads, each).run for each in saves])
        assert isinstance(done[1].error, DiskFull)
        assert [done[0].result.version, done[2].result.version] == [1 + (not is_new), 2 + (not is_new)]
        request = ListEffectsRequest(namespace="default", thread="t")
        assert [each.effect.key for each in store.effect_list.read(request).effects] == ["a", "c"]
        assert get(store).head.tip_sequence == 4 + (not is_new)
        assert findings(store) == []
        assert store.context.writer.commits == 1 + (not is_new)
        store.threads.forget(get(store))
        assert get(store).head.tip_sequence == 4 + (not is_new)


@pytest.mark.parametrize("call", [1, 2])
def test_a_new_thread_that_does_not_fit_is_made_by_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """The first save of a thread is refused at its effect or its version: the second one in the commit makes it."""
    with opened(tmp_path) as store:
        saves = [
            SaveRequest(
                namespace="default", thread="t", diff=appends(name), options=WriteOptions(create=ThreadOptions()),
                effects=[Effect(key=name, value=text("x"))],
            )
            for name in "ab"
        ]  # fmt: skip
        with monkeypatch.context() as full:
            full_at(full, "feed_key", call)
            done = together(store, [SaveWrite(store.context, store.threads, each).run for each in saves])
        assert isinstance(done[0].error, DiskFull)
        assert done[1].result.version == 1
        assert get(store).head.tip_sequence == 2
        assert findings(store) == []


def test_a_tag_that_does_not_fit_is_not_seen_by_the_next_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for settings."""
    with opened(tmp_path) as store:
        save(store, "0", expected_version=0)
        store.context.had_archive = True
        tags = [store.settings.set_tag(SetTagRequest(namespace="default", thread="t", tag=tag)) for tag in "abc"]
        with monkeypatch.context() as full:
            full_at(full, "outbox_key", 2)
            done = together(store, tags)
        assert isinstance(done[1].error, DiskFull)
        assert sorted(get(store).tags) == ["a", "c"]
        assert findings(store) == []


def test_a_thread_whose_name_does_not_fit_leaves_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three new threads the second is refused at its first row: Verify finds no key without a thread."""
    with opened(tmp_path) as store:
        runs = [
            SaveWrite(
                store.context, store.threads, SaveRequest(namespace="default", thread=name, diff=appends("x"))
            ).run
            for name in "abc"
        ]
        with monkeypatch.context() as full:
            full_at(full, "pack_name", 2)
            done = together(store, runs)
        assert isinstance(done[1].error, DiskFull)
        assert [done[0].result.version, done[2].result.version] == [1, 1]
        assert findings(store) == []
