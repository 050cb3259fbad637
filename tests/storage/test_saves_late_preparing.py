"""The danger: a save that is prepared with its batch meets another state of memory than when it came."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.store import get, hydrate, opened, save, write
from tests.daemon.wire import appends
from tests.messages import to_write

from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward_sidecar.errors import EditConflict, RequestIdReused
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.versions.save import SaveWrite


def begin(store: Store, text: str = "new", **fields: Any) -> SaveWrite:
    """A save that came while everything was in memory."""
    hydrate(store)
    fields = {"request_id": text, "diff": appends(text)} | fields
    late = SaveWrite(store.context, store.threads, to_write(SaveRequest, namespace="default", thread="t", **fields))
    assert late.is_hot(get(store))
    return late


def drop_state(store: Store) -> None:
    store.context.cache.drop_state(get(store).number, 2)


def drop_everything(store: Store) -> None:
    store.context.cache.drop_thread(get(store).number)
    store.threads.forget(get(store))


def save_another(store: Store) -> None:
    save(store, "other")


@pytest.mark.parametrize("meanwhile", [drop_state, drop_everything, save_another])
def test_what_went_meanwhile_is_read_in_the_writer(tmp_path: Path, meanwhile: Callable[[Store], None]) -> None:
    """The version is made all the same, from the newest head, and its retry gets the same answer."""
    with opened(tmp_path) as store:
        save(store, "a")
        save(store, "b")
        late = begin(store)
        meanwhile(store)
        late.prepare_late()
        answer = write(store, late.run)
        entries = hydrate(store).state.logs["messages"].entries
        assert [each.data for each in entries][-1] == b"new"
        assert len(entries) == answer.version
        again = begin(store)
        again.prepare_late()
        replayed = write(store, again.run)
        assert replayed.receipt.replayed
        assert (replayed.version, replayed.receipt.digest) == (answer.version, answer.receipt.digest)
        reused = begin(store, diff=appends("something else"))
        reused.prepare_late()
        with pytest.raises(RequestIdReused):
            write(store, reused.run)


def test_a_certain_error_is_raised_before_the_writer(tmp_path: Path) -> None:
    """Edits that do not fit the head of a save without ids fail when the save is prepared."""
    with opened(tmp_path) as store:
        save(store, "a")
        diff = appends("x")
        diff.edits[0].append.at_index = 7
        head = get(store).branches["main"]
        late = begin(store, request_id="", diff=diff, expected_version=head.version)
        with pytest.raises(EditConflict):
            late.prepare_late()
