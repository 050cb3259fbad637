"""The danger: an owner loses its thread because an upload takes longer than its lease, or answers saves after it was
replaced."""

from __future__ import annotations

from tests.archive_model.faults import HELD, Fault
from tests.archive_model.test_archive_model import Rules
from tests.daemon.driven import LEASE_S

NONE: tuple[Fault, ...] = ()
SLOW = (Fault(HELD, 0),)


def save(history: Rules, who: int, *, size: int = 10, archived: bool = True, plan: tuple[Fault, ...] = NONE) -> None:
    history.save_one(who, "a", "main", size, conditional=False, archived=archived, rests=False, plan=plan)


def upload_slowly(history: Rules) -> None:
    """The first sidecar has begun to upload a large entry, and its request does not end."""
    save(history, 0, size=4000, plan=SLOW)
    assert history.sidecars[0].wire.uploads, "nothing is being uploaded"


def test_an_owner_that_uploads_for_longer_than_the_lease_stays_the_owner(history: Rules) -> None:
    """Another sidecar asks for the thread all the time, and sees that its owner lives."""
    save(history, 1)
    upload_slowly(history)
    for _ in range(6):
        history.wait(LEASE_S / 4)
        save(history, 1)
        save(history, 0, archived=False)
    history.resume(0)
    history.ship(0, NONE)
    assert not history.orphans
    assert history.sidecars[0].holds("a")


def test_an_owner_that_was_quiet_shows_soon_after_the_start_of_an_upload_that_it_lives(history: Rules) -> None:
    """Another sidecar has watched its HEAD for most of a lease, and the lease ends while it uploads."""
    save(history, 1)
    history.wait(LEASE_S * 0.85)
    upload_slowly(history)
    for _ in range(3):
        history.wait(LEASE_S * 0.1)
        save(history, 1)
        assert history.sidecars[0].holds("a")
    history.resume(0)
    history.ship(0, NONE)
    assert not history.orphans


def test_an_owner_whose_upload_never_ends_loses_the_thread(history: Rules) -> None:
    """A sidecar that cannot upload gives a sign of life for some time only: others may go on."""
    upload_slowly(history)
    save(history, 1)
    for _ in range(4):
        history.wait(11.0)
        save(history, 1)
    assert history.sidecars[1].holds("a")
    history.resume(0)


def test_an_owner_that_is_replaced_while_it_uploads_notices_at_once(history: Rules) -> None:
    """It does not answer saves any more that can never become history, although its upload has not ended."""
    upload_slowly(history)
    history.take(1, "a", NONE)
    save(history, 1)
    history.wait(LEASE_S / 4 + 0.1)
    assert not history.sidecars[0].holds("a")
    assert history.orphans
    history.resume(0)


def test_what_was_saved_before_something_large_does_not_wait_for_it(history: Rules) -> None:
    """A save that is committed before a large one is archived although the large one is not."""
    save(history, 0, archived=False)
    save(history, 0, size=4000, plan=(Fault(HELD, 1),))  # the first request is HEAD
    thread = history.sidecars[0].find("a")
    assert thread is not None
    assert thread.archived_sequence == 3
    assert thread.head.tip_sequence == 4
    history.resume(0)
