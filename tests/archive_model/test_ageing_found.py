"""The danger: a wrong clock or a sleep ends a thread too early, or entries that count for nothing are kept for ever."""

from __future__ import annotations

import pytest
from tests.archive_model.sidecar import Sidecar
from tests.archive_model.test_archive_model import Rules
from tests.daemon import small
from tests.daemon.driven import NAMESPACE

from stateward.storage.v1.journal_pb2 import ENTRY_KIND_LEASE, ENTRY_KIND_SIGNAL, ENTRY_KIND_TAG_SET
from stateward.v1.checkpoint_pb2 import WORK_STATUS_RUNNING
from stateward.v1.lease_service_pb2 import AcquireLeaseRequest, ReleaseLeaseRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.store.journal import journal, replay

LOOSE = {ENTRY_KIND_LEASE, ENTRY_KIND_SIGNAL, ENTRY_KIND_TAG_SET}
# Entries of signals, locks and tags that a clean journal may have: the newest of each kind, and the window of retries.
LOOSE_MAX = 12


def pile_up(history: Rules, who: int, rounds: int) -> None:
    """Each round a signal, which a save acknowledges, a lock and a tag; then all but few versions are pruned."""
    for number in range(rounds):
        signal = history.signal_request("a")
        history.act(who, "signal a", lambda it, signal=signal: history.send(it, signal))
        save = history.request("a", "main", conditional=False, size=10, status=WORK_STATUS_RUNNING)
        found = history.act(who, "list signals", lambda it: history.list_signals(it, "a"))
        save.ack_signals.extend(found or [])
        history.act(who, "save a", lambda it, save=save: history.save(it, save, archived=True))
        history.act(who, "lock a", lambda it, number=number: lock(it, str(number)))
        history.tag(who, "a", str(number % 3), ())
    history.prune(who, "a", 2, ())
    for _ in range(3):
        history.act(who, "sweep", lambda it: it.sweep(), sweeps=True)
        history.save_one(who, "a", "main", 10, conditional=False, archived=True, rests=False, plan=())


def lock(sidecar: Sidecar, request_id: str) -> None:
    """Takes a lock and gives it back."""
    request = AcquireLeaseRequest(namespace=NAMESPACE, thread="a", options=WriteOptions(request_id=request_id))
    request.holder.name, request.holder.incarnation = "w", "1"
    lease = sidecar.write(sidecar.store.leases.acquire(request)).lease
    sidecar.write(
        sidecar.store.leases.release(
            ReleaseLeaseRequest(namespace=NAMESPACE, thread="a", options=WriteOptions(lease_token=lease.token))
        )
    )


def loose(sidecar: Sidecar, name: str) -> int:
    """How many entries of signals, locks and tags are on a disk."""
    thread = sidecar.find(name)
    if thread is None:
        return 0
    with sidecar.store.context.engine.read() as txn:
        return sum(entry.header.kind in LOOSE for entry in replay.read_entries(txn, thread.identity, 1))


def test_a_time_to_live_ends_in_sleep(history: Rules) -> None:
    """A sleep is no jump of the clock."""
    history.outlive(0, behind=False, now=True)


def test_a_clock_that_was_behind_ends_no_time_to_live(history: Rules) -> None:
    """The last save was written by a clock of last year."""
    history.outlive(1, behind=True, now=True)


@pytest.mark.parametrize("who", [0, 1])
def test_a_journal_keeps_nothing_that_counts_for_nothing(history: Rules, who: int) -> None:
    """Acknowledged signals, locks that were given back and tags that moved go with the versions of their time."""
    small.shrink(window=2)
    history.take(who, "a", ())
    pile_up(history, who, 12)
    assert loose(history.sidecars[who], "a") <= LOOSE_MAX


def test_a_lock_that_nobody_prunes_stays_small(history: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken and given back for ever, by one machine and then by the other one."""
    small.shrink(window=2)
    monkeypatch.setattr(journal, "LOOSE_MAX", 20)
    for who in (0, 1):
        history.take(who, "a", ())
        for number in range(30):
            history.act(who, "lock a", lambda it, number=number, who=who: lock(it, f"{who} {number}"))
        for _ in range(2):
            history.act(who, "sweep", lambda it: it.sweep(), sweeps=True)
            history.save_one(who, "a", "main", 10, conditional=False, archived=True, rests=False, plan=())
        assert loose(history.sidecars[who], "a") <= LOOSE_MAX
