"""The danger: a reader waits for an unreachable bucket after the call before it has found out, or is shown what is no
history."""

from __future__ import annotations

import pytest
from tests.archive_model.faults import AWAY, HELD, READ_HELD, Fault
from tests.archive_model.test_archive_model import Rules
from tests.daemon.driven import LEASE_S

from stateward_sidecar.archive.own.takeover import Attacher

NONE: tuple[Fault, ...] = ()
# The bucket does not answer the first write of HEAD. The second one hangs, and is not answered either.
HANGS_AND_FAILS = (Fault(AWAY, 0, at_head=True), Fault(HELD, 1, at_head=True))


def save(history: Rules, who: int, plan: tuple[Fault, ...] = NONE) -> None:
    history.save_one(who, "a", "main", 10, conditional=False, archived=True, rests=False, plan=plan)


def replace_owner(history: Rules) -> None:
    """The second sidecar takes the thread and works, and the lease passes."""
    history.take(1, "a", NONE)
    save(history, 1)
    history.wait(LEASE_S + 1)


def test_a_reader_that_waited_for_a_ship_does_not_wait_for_a_bucket_that_is_away(history: Rules) -> None:
    """The ship has found out that the bucket is away. The reader is shown what its sidecar has, without a request."""
    save(history, 0, HANGS_AND_FAILS)
    replace_owner(history)
    history.read(0, "a", "main", NONE)
    reader = history.turns.under_way[-1]
    assert reader.what == "hydrate a/main"
    history.resume(0)
    assert reader not in history.turns.under_way
    assert not reader.op.requests
    assert history.beliefs["a", "main"][0] == 3


def test_a_bucket_that_is_away_for_others_is_no_excuse(history: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader waits, and is then shown what is no history, because its sidecar does not understand HEAD. This is
    found, although another machine has not reached the bucket meanwhile."""
    replace_owner(history)
    history.read(0, "a", "main", (Fault(READ_HELD, 0),))
    history.read(0, "a", "main", NONE)
    save(history, 1, (Fault(AWAY, 0, at_head=True),))
    with monkeypatch.context() as patch:
        patch.setattr(Attacher, "_confirm", lambda *_: True)
        with pytest.raises(AssertionError, match="something else than what is archived"):
            history.resume(0)
    history.is_broken = True
