"""The danger: a clock that is a year ahead, a sleep, a full disk, or a bucket that refuses requests costs a thread what
was saved."""

from __future__ import annotations

from hashlib import shake_128

from tests.archive_model.elements import WIRE_BYTES_S, YEAR_HOURS
from tests.archive_model.faults import UPLOAD_BYTES, Fault
from tests.archive_model.sidecar import Sidecar
from tests.archive_model.test_archive_model import Rules
from tests.archive_model.test_litter_found import move_tags
from tests.daemon.driven import LEASE_S
from tests.daemon.small import SLICE_BYTES

NONE: tuple[Fault, ...] = ()
LARGE = 5 * SLICE_BYTES


def save(history: Rules, who: int, *, size: int = 10, archived: bool = True) -> None:
    history.save_one(who, "a", "main", size, conditional=False, archived=archived, rests=False, plan=NONE)


def test_a_thread_ages_after_a_clock_that_was_ahead(history: Rules) -> None:
    """One machine saves next year, and the other one takes the thread from it."""
    history.turn_clock(0, YEAR_HOURS)
    for _ in range(6):
        save(history, 0, size=600)
    history.take(1, "a", NONE)
    history.set_clock_right(1, "a")
    history.set_clock_right(1, "a")


def test_what_a_clock_that_was_ahead_dropped_is_due(history: Rules) -> None:
    """Garbage of next year counts from now on, for the next owner and for a collection."""
    history.turn_clock(0, YEAR_HOURS)
    move_tags(history, 0, 14)
    history.take(1, "a", NONE)
    history.set_clock_right(1, "a")


def test_a_machine_that_slept_knows_that_it_was_replaced(history: Rules) -> None:
    """The first read of a sleeper is that of the archive."""
    history.take(1, "a", NONE)
    save(history, 1)
    history.sleep_one(0, now=True)
    history.read(0, "a", "main", NONE)


def test_a_machine_without_room_takes_nothing(history: Rules) -> None:
    """What does not fit is not taken, and the other one goes on."""
    for _ in range(4):
        save(history, 0, size=1500)
    history.take_without_room(1, "a", takes=True)
    save(history, 0)
    history.wait(LEASE_S + 1)
    history.take_without_room(1, "a", takes=False)
    save(history, 0)


def test_a_bucket_that_refuses_every_third_request_is_good_enough(history: Rules) -> None:
    """All that is asked gets through, because each request is tried again by itself."""
    history.throttle(3)
    for who in (0, 1, 0, 1):
        history.take(who, "a", NONE)
        for _ in range(3):
            save(history, who, size=1500)
    assert not history.orphans
    history.throttle(0)


def test_no_refused_request_begins_an_upload_anew(history: Rules) -> None:
    """A value of many slices, in an entry or a blob, and one request of three or four is refused: each slice is tried
    again alone. Large requests are by the library, and others by us."""
    for every in (2, 3, 4):
        history.throttle(every)
        for _ in range(4):
            save(history, 0, size=UPLOAD_BYTES // 2)
            history.ship(0, NONE)
            assert is_archived(history)
        save(history, 0, size=LARGE)
        history.act(0, "a large blob", lambda it: write(history, it))
        history.ship(0, NONE)
        history.throttle(0)
    assert is_archived(history)


def test_a_slow_wire_has_time_for_each_slice(history: Rules) -> None:
    """Whatever the size: an object takes longer than any request may, and arrives."""
    history.narrow(WIRE_BYTES_S)
    save(history, 0, size=LARGE)
    history.act(0, "a large blob", lambda it: write(history, it))
    history.ship(0, NONE)
    assert is_archived(history)
    history.narrow(0)


def test_a_refused_upload_over_a_slow_wire_is_sent_again(history: Rules) -> None:
    """Whatever its size: also where one request takes longer than a call that is refused goes on trying."""
    history.narrow(WIRE_BYTES_S)
    for size in (UPLOAD_BYTES, UPLOAD_BYTES + 1, SLICE_BYTES, LARGE):
        history.net.refuses_every = history.net.requests + 1
        history.sidecars[0].wire.put(f"v1/upload-{size}", bytes(size))
        history.throttle(0)
        history.sidecars[0].wire.delete(f"v1/upload-{size}", size)
    history.narrow(0)


def write(history: Rules, sidecar: Sidecar) -> None:
    history.write_content(sidecar, "a", shake_128(b"%d" % next(history.numbers)).digest(LARGE), announced=True)


def is_archived(history: Rules) -> bool:
    thread = history.sidecars[0].find("a")
    return thread is not None and thread.archived_sequence == thread.head.tip_sequence
