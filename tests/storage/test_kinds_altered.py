"""The danger: one wrong byte makes an entry look like another kind, and a watch passes over it without a word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.store import opened, save_many
from tests.service.agents import appends

from stateward.storage.v1.journal_pb2 import EntryKind
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.thread_service_pb2 import WatchRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.codec.entry import Entry, unpack
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.journal import replay


@pytest.mark.parametrize("kind", [*sorted(set(EntryKind.values()) - {1}), 99])
def test_a_watch_says_that_it_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    """The kind stands in the header, which nobody can read without opening what authenticates it."""
    kept = replay.read_entries

    def altered(*args: Any) -> Iterator[Entry]:
        for entry in kept(*args):
            record = bytearray(entry.record)
            at = record.index(b"\x08\x01")  # field 1 of the header: a version
            record[at + 1] = kind if entry.header.sequence == 2 else 1
            yield unpack(bytes(record), entry.header.sequence)

    with opened(tmp_path) as store:
        ids = (WriteOptions(request_id=str(number)) for number in range(3))
        save_many(store, [SaveRequest(diff=appends("more"), options=each) for each in ids])
        monkeypatch.setattr(replay, "read_entries", altered)
        request = WatchRequest(namespace="default", thread="t", after_sequence=0, include_records=True)
        with pytest.raises(Corrupt):
            store.read(store.watcher.read, store.watcher.open(request))
