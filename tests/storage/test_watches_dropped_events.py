"""The danger: a watch of a namespace drops an event, because a commit beside it made its entry look damaged or pruned
for a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.daemon.store import opened, save
from tests.storage.test_prune_slow import cut, line

from stateward.v1.thread_service_pb2 import JournalEvent, WatchRequest
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.store import Store


def read_all(store: Store) -> list[JournalEvent]:
    """All events of the namespace, with what each version changed, as the service reads them."""
    request = WatchRequest(namespace="default", thread="-", after_cursor="n.0", include_diff=True)
    watch = store.watcher.open(request)
    found: list[JournalEvent] = []
    while events := store.read(store.watcher.read, watch):
        found += events
    return found


def test_a_prune_in_the_middle_of_a_read_drops_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions that are pruned and cleared away after the read began are told, each once."""
    with opened(tmp_path) as store:
        line(store, 20)
        read_edits, calls = replay.read_edits, [0]

        def meanwhile(*arguments: Any) -> bytes:
            calls[0] += 1
            if calls[0] == 5:
                cut(store, keep_latest_per_branch=3)
            return read_edits(*arguments)

        monkeypatch.setattr(replay, "read_edits", meanwhile)
        events = read_all(store)
        assert [event.sequence for event in events] == list(range(1, 22))
        assert all(event.diff.edits for event in events[:5])
        assert all(event.diff.edits for event in events[17:20])


def test_what_a_second_look_cures_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage that is seen while the thread changes is looked at again; damage that stays is passed over and logged."""
    with opened(tmp_path) as store:
        line(store, 5)
        read_edits, calls = replay.read_edits, [0]

        def flickering(txn: Any, identity: Any, entry: Any, *arguments: Any) -> bytes:
            calls[0] += 1
            if calls[0] == 3:
                save(store, "meanwhile")
                raise Corrupt("it looked so", identity.name, entry.header.version)
            if entry.header.version == 4:
                raise Corrupt("it is so", identity.name, 4)
            return read_edits(txn, identity, entry, *arguments)

        monkeypatch.setattr(replay, "read_edits", flickering)
        assert [event.sequence for event in read_all(store)] == [1, 2, 3, 5, 6]


@pytest.mark.parametrize("thread", ["t", "-"])
def test_a_read_that_fails_is_made_again_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thread: str) -> None:
    """What was read before the failure is told by the next read."""
    with opened(tmp_path) as store:
        line(store, 5)
        event, calls = store.watcher._event, [0]

        def failing(*arguments: Any) -> Any:
            calls[0] += 1
            if calls[0] == 3:
                raise OSError("the disk could not be read")
            return event(*arguments)

        fields = {"after_cursor": "n.0"} if thread == "-" else {"after_sequence": 0}
        watch = store.watcher.open(WatchRequest(namespace="default", thread=thread, **fields))
        monkeypatch.setattr(store.watcher, "_event", failing)
        with pytest.raises(OSError, match="could not be read"):
            store.watcher.read(watch)
        assert [event.sequence for event in store.watcher.read(watch)] == [1, 2, 3, 4, 5]


def test_between_commit_and_memory_no_event_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads what is committed before memory says so finds every version with its edits, pruned or not."""
    with opened(tmp_path) as store:
        line(store, 20)
        publish, told = store.threads._publish, list[list[int]]()

        def look_first(draft: Any) -> None:
            watch = store.watcher.open(WatchRequest(namespace="default", thread="-", after_cursor="n.0"))
            watch.request.include_diff = True
            told.append([event.sequence for event in store.watcher.read(watch)])
            publish(draft)

        monkeypatch.setattr(store.threads, "_publish", look_first)
        cut(store, keep_latest_per_branch=3)
        assert len(told) > 2
        assert all(seen[:20] == list(range(1, 21)) for seen in told)
