"""The danger: during a rolling upgrade a sidecar of the old format acknowledges saves to a thread that a newer one has
taken."""

from __future__ import annotations

import pytest
from tests.archive_model.faults import Fault
from tests.archive_model.test_archive_model import Rules
from tests.daemon.driven import LEASE_S, NAMESPACE

from stateward.v1.checkpoint_service_pb2 import HydrateRequest
from stateward_sidecar.errors import ArchiveUnavailable, NewerFormat

NONE: tuple[Fault, ...] = ()


def save(history: Rules, who: int, *, archived: bool = True) -> None:
    history.save_one(who, "a", "main", 10, conditional=False, archived=archived, rests=False, plan=NONE)


def take_as_newer(history: Rules) -> None:
    """The second sidecar is upgraded, takes the thread and works on."""
    history.guarded(lambda: history.upgrade(1))
    history.take(1, "a", NONE)
    save(history, 1)


def refused(history: Rules, who: int = 0) -> None:
    """A sidecar neither reads the thread nor saves to it, and says why."""
    sidecar = history.sidecars[who]
    head = len(history.truth.heads)
    request = history.request("a", "main", conditional=False, size=10, status=0)
    for call in (
        lambda: sidecar.hydrate(HydrateRequest(namespace=NAMESPACE, thread="a")),
        lambda: sidecar.save(request),
        lambda: sidecar.archive.own(NAMESPACE, "a", take_over=True),
    ):
        with pytest.raises(NewerFormat, match="upgrade"):
            call()
    assert len(history.truth.heads) == head


def test_an_older_owner_is_fenced(history: Rules) -> None:
    """After a lease it neither shows what it has nor acknowledges a save, and what it had alone is kept until its
    upgrade."""
    save(history, 0, archived=False)
    take_as_newer(history)
    history.wait(LEASE_S + 1)
    history.act(0, "refused", lambda _: refused(history))
    thread = history.sidecars[0].find("a")
    assert thread is not None
    assert thread.is_outdated
    assert thread.head.tip_sequence == 3
    history.crash(0)
    history.act(0, "refused", lambda _: refused(history))
    history.guarded(lambda: history.upgrade(0))
    history.ship(0, NONE)
    history.read(0, "a", "main", NONE)
    assert history.orphans, "what the older sidecar had alone is gone"


def test_a_ship_of_an_older_owner_fences_it(history: Rules) -> None:
    """A busy owner notices with its next ship, and not only after a lease."""
    take_as_newer(history)
    save(history, 0, archived=False)
    history.ship(0, NONE)
    assert not history.sidecars[0].holds("a")
    history.act(0, "refused", lambda _: refused(history))


def test_an_older_owner_knows_it_without_the_bucket(history: Rules) -> None:
    """That a newer version has the thread is on its disk: while the bucket is away, it is no owner."""
    take_as_newer(history)
    history.wait(LEASE_S + 1)
    history.act(0, "refused", lambda _: refused(history))
    history.crash(0)
    sidecar = history.sidecars[0]

    def away() -> None:
        request = history.request("a", "main", conditional=False, size=10, status=0)
        sidecar.wire._away_since = sidecar.clock.boottime()
        with pytest.raises(ArchiveUnavailable):
            sidecar.save(request)
        sidecar.wire._away_since = None

    history.act(0, "save without the bucket", lambda _: away())


def test_an_upgraded_owner_goes_on(history: Rules) -> None:
    """A sidecar that is upgraded ships what it had not archived, and nothing is set aside."""
    save(history, 0, archived=False)
    history.guarded(lambda: history.upgrade(0))
    save(history, 0)
    assert not history.orphans
    history.wait(LEASE_S + 1)
    history.act(1, "refused", lambda _: refused(history, 1))
