"""The danger: a machine that has only the newest part of a thread takes a retry for new, or joins entries of two
lines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.archive_model.faults import GATHERS, HELD, HELD_AFTER, Fault
from tests.archive_model.test_archive_model import Rules
from tests.daemon import small


@pytest.fixture
def history() -> Iterator[Rules]:
    """Thread `a` with two archived versions, and a window of two entries for retries."""
    made = Rules()
    try:
        made.first_steps(size=10, archived=True, window=2)
        yield made
        made.teardown()
    finally:
        small.restore()


def test_a_request_that_is_made_anew_is_asked_for_before_its_answer(history: Rules) -> None:
    """Another machine has the newest part only, and the call that makes it anew has no answer yet when one more has."""
    history.save_one(0, "a", "main", 10, conditional=False, archived=True, rests=False, plan=())
    for _ in range(3):
        history.work(0, "a", count=3, size=1500, archived=True)
        history.background(0, ())
    history.read(1, "a", "main", ())
    history.take(1, "a", ())
    history.retry(1, 10, archived=True, plan=(Fault(HELD_AFTER, 0, at_commit=True),))
    history.retry(1, 10, archived=False, plan=())
    history.resume(0)


def test_a_thread_that_is_made_under_an_old_claim_is_no_part_of_another_line(history: Rules) -> None:
    """Its commit took longer than the lease, and the copy that comes meanwhile has the newest part only."""
    gathers = (Fault(GATHERS, 2, at_commit=True),)
    history.save_one(1, "b", "main", 10, conditional=False, archived=True, rests=False, plan=gathers)
    history.save_one(0, "b", "main", 10, conditional=False, archived=True, rests=False, plan=())
    history.wait(11.0)
    for _ in range(2):
        history.work(0, "b", count=3, size=1500, archived=True)
        history.background(0, ())
    history.read(1, "b", "main", ())
    history.go_on(0)
    assert history.orphans


@pytest.mark.parametrize("dies", [True, False])
def test_a_thread_that_comes_back_while_the_start_clears_up_keeps_its_key(history: Rules, dies: bool) -> None:
    """It was deleted on this disk alone, and is read and written again before the start has cleared up after that."""
    history.come_back(0, "a", dies=dies, plan=(Fault(HELD, 0, at_commit=True),), now=True)
