"""The danger: a blob that was saved again is collected by the next owner, or while a ship that names it is under
way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.archive_model.faults import AWAY, LOST, MEANWHILE, REFUSED, Fault
from tests.archive_model.test_archive_model import Rules
from tests.daemon import small
from tests.daemon.small import BLOB_KEPT_S

NONE: tuple[Fault, ...] = ()


@pytest.fixture
def history() -> Iterator[Rules]:
    made = Rules()
    made.first_steps(size=10, archived=True)
    yield made
    made.teardown()
    small.restore()


@pytest.mark.parametrize("aside", [False, True])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("back", [False, True])
def test_a_blob_is_collected_elsewhere(history: Rules, back: bool, again: bool, aside: bool) -> None:
    """The next owner had a copy, or had the thread itself; the bytes are saved again, or not."""
    for which in (0, 1, 0):
        history.collect_elsewhere(0, "a", which, back=back, again=again, aside=aside, plan=NONE)
        history.collect_elsewhere(1, "a", which, back=not back, again=again, aside=aside, plan=NONE)


@pytest.mark.parametrize("kind", [LOST, REFUSED, AWAY, MEANWHILE])
def test_the_bucket_is_ill_meanwhile(history: Rules, kind: str) -> None:
    """Requests fail while the bytes are saved again."""
    for at in range(5):
        plan = (Fault(kind, at, at % 2 == 0, 4),)
        history.collect_elsewhere(at % 2, "a", at % 3, back=at % 2 == 1, again=True, aside=False, plan=plan)


def test_a_blob_is_written_again_before_a_takeover(history: Rules) -> None:
    """The next owner knows that it was written a minute ago."""
    history.write_again_and_part(0, "a")
    history.write_again_and_part(1, "a")


@pytest.mark.parametrize("announced", [False, True])
@pytest.mark.parametrize("here", [False, True])
def test_the_bucket_loses_an_object(history: Rules, here: bool, announced: bool) -> None:
    """With the file still on the disk, or nowhere."""
    for who in (0, 1):
        history.take(who, "a", NONE)
        history.save_blob(who, "a", 1, announced=announced, archived=True, plan=NONE)
        history.destroy_object(who, "a", 1, here=here, announced=announced)
        history.read_value(1 - who, "a", NONE)


def test_a_blob_is_collected_while_a_ship_looks(history: Rules) -> None:
    """A ship has looked at its thread, and a sweep collects a blob before HEAD is written."""
    history.take(0, "a", NONE)
    history.save_blob(0, "a", 0, announced=True, archived=True, plan=NONE)
    history.work(0, "a", 1, 10, archived=True)
    history.work(0, "a", 1, 10, archived=False)
    history.sidecars[0].after_moment = lambda: history.forget_blobs(0, "a")
    history.ship(0, NONE)
    history.read(1, "a", "main", NONE)


def test_an_unnamed_blob_is_collected_while_a_ship_looks(history: Rules) -> None:
    """A ship has looked at its thread, and a blob that it must upload goes: HEAD does not name it."""
    history.take(0, "a", NONE)
    history.act(0, "write a blob of a", lambda it: history.write_content(it, "a", b"unnamed " * 50, announced=True))

    def collect() -> None:
        history.wait(BLOB_KEPT_S + 1.0)
        history.act(0, "sweep", lambda it: it.sweep(), sweeps=True)
        history.background(0, NONE)

    history.sidecars[0].after_moment = collect
    history.ship(0, NONE)
    history.read(1, "a", "main", NONE)


def test_an_owner_shows_that_it_lives_while_it_puts_a_lost_object_again(history: Rules) -> None:
    """Its wire is slow: until the object is there, it signs the HEAD that names it anew."""
    history.take(0, "a", NONE)
    history.save_blob(0, "a", 1, announced=True, archived=True, plan=NONE)
    history.narrow(20.0)
    heads = sum(map(len, history.truth.log.values()))
    history.destroy_object(0, "a", 1, here=True, announced=True)
    assert sum(map(len, history.truth.log.values())) > heads + 1
    history.narrow(0)
