"""The danger: a name that was claimed once for a save that failed is believed free for ever, and its thread forks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.archive.twins import Pair, twins

from stateward_sidecar.errors import NotOwner, VersionMismatch


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """``a`` claimed the name; its save failed."""
    with twins(tmp_path) as made:
        with pytest.raises(VersionMismatch):
            made.a.put("x", after=3)
        yield made


def taken(pair: Pair) -> None:
    """``b`` has waited for the lease, and made the thread."""
    with pytest.raises(NotOwner):
        pair.b.put("one")
    pair.wait_for_lease()
    for word in ("one", "two", "three"):
        pair.b.put(word)
    pair.b.archive_all()


def test_whoever_claimed_it_may_use_it(pair: Pair) -> None:
    """At once, and also later, where nobody else has come: HEAD is asked."""
    pair.wait_for_lease()
    pair.a.put("one", after=0)
    pair.a.archive_all()
    assert pair.b.words() == ["one"]


def test_a_first_save_after_somebody_else_made_the_thread(pair: Pair) -> None:
    """It is not acknowledged: it would be an orphan."""
    taken(pair)
    with pytest.raises(NotOwner):
        pair.a.put("a one", after=0)
    assert pair.a.words() == ["one", "two", "three"]
    assert pair.a.orphans() == []


def test_a_save_that_expects_what_somebody_else_saved(pair: Pair) -> None:
    """It is told who has the thread, not that there is none, and passes once the thread is free."""
    taken(pair)
    with pytest.raises(NotOwner):
        pair.a.put("four", after=3)
    pair.wait_for_lease()
    pair.a.put("four", after=3)
    assert pair.a.words() == ["one", "two", "three", "four"]
