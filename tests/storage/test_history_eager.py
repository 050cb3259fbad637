"""The danger: the first versions of a history wait until all versions were read, and a long run cannot be looked at."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from tests.daemon.store import opened, save_many
from tests.service.agents import appends

from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.checkpoint_service_pb2 import READ_ORDER_NEWEST_FIRST, ReadHistoryRequest, SaveRequest
from stateward.v1.thread_service_pb2 import PruneThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import VersionPruned
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.thread.ranges import Ranges, spans_of

VERSIONS = 200


def test_newest_first_reads_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first three versions of two hundred cost no more reads than those of three, and all of them come in order."""
    with opened(tmp_path) as store:
        ids = (WriteOptions(request_id=str(number)) for number in range(VERSIONS))
        save_many(store, [SaveRequest(diff=appends("more"), options=each) for each in ids])
        read, kept = list[int](), replay.read_version
        monkeypatch.setattr(replay, "read_version", lambda *args: (read.append(args[2]), kept(*args))[1])
        request = ReadHistoryRequest(namespace="default", thread="t", order=READ_ORDER_NEWEST_FIRST)
        steps = store.reader.history(request, store.read)
        assert [step().checkpoint.version for step in islice(steps, 3)] == [200, 199, 198]  # type: ignore[union-attr]
        assert set(read) <= {200, 199, 198}
        assert [step().checkpoint.version for step in steps] == list(range(197, 0, -1))  # type: ignore[union-attr]


def test_a_line_ends_where_it_was_pruned_meanwhile(tmp_path: Path) -> None:
    """The version that was read names its parent, and the parent is pruned before it is its turn."""
    with opened(tmp_path) as store:
        ids = (WriteOptions(request_id=str(number)) for number in range(12))
        save_many(store, [SaveRequest(diff=appends("more"), options=each) for each in ids])
        request = ReadHistoryRequest(namespace="default", thread="t", order=READ_ORDER_NEWEST_FIRST)
        steps = store.reader.history(request, store.read)
        assert [step().checkpoint.version for step in islice(steps, 3)] == [12, 11, 10]  # type: ignore[union-attr]
        store.pruner.prune(PruneThreadRequest(namespace="default", thread="t", versions=spans_of(Ranges([(5, 9)]))))
        assert [step() for step in steps] == [None]
        known = ReadHistoryRequest(namespace="default", thread="t", version=VersionRef(version=7))
        with pytest.raises(VersionPruned):
            next(store.reader.history(known, store.read))
