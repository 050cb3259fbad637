"""The danger: a thread is pruned while Verify reads it, and Verify calls what was pruned, and all after it, damage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.daemon.clocks import MovedClock
from tests.daemon.store import findings, opened, save_many
from tests.storage.test_prune_slow import cut, entry

from stateward._operations.threads import spans_of
from stateward.v1.admin_service_pb2 import VerifyRequest
from stateward_sidecar.store.thread.context import REQUEST_WINDOW_ENTRIES


@pytest.mark.parametrize("new", [0, 200], ids=["far before the end", "the end went on"])
@pytest.mark.parametrize("was_pruned", [False, True], ids=["first prune", "second prune"])
def test_entries_that_a_prune_removes_meanwhile_are_no_finding(tmp_path: Path, new: int, was_pruned: bool) -> None:
    """They were old enough to be removed whole. The versions after them have a snapshot that Verify had not seen."""
    clock, count = MovedClock(), REQUEST_WINDOW_ENTRIES + 600
    with opened(tmp_path, clock) as store:
        save_many(store, (entry(os.urandom(30)) for _ in range(count)))
        clock.ahead_s = 7200
        if was_pruned:
            cut(store, versions=spans_of([3]))
        answers = store.verifier.verify(VerifyRequest(namespace="default", thread="t"))
        assert next(answers).progress.items
        save_many(store, (entry(os.urandom(30)) for _ in range(new)))
        cut(store, versions=spans_of(range(540 + new, 570 + new)))
        assert [each.finding.message for each in answers if each.HasField("finding")] == []
        assert findings(store) == []
