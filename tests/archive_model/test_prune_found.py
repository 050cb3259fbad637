"""The danger: versions that somebody pruned can still be read from the bucket, because they lay in indexes or the
thread was idle."""

from __future__ import annotations

from tests.archive_model.faults import Fault
from tests.archive_model.test_archive_model import Rules

NONE: tuple[Fault, ...] = ()


def test_what_lies_in_indexes_is_pruned(history: Rules) -> None:
    """A thread is pruned after its packs went into indexes, and works on."""
    for _ in range(4):
        history.work(0, "a", 5, 300, archived=True)
        history.background(0, NONE)
    history.prune(0, "a", 1, NONE)
    history.work(0, "a", 2, 300, archived=True)


def test_an_idle_thread_is_pruned(history: Rules) -> None:
    """Nobody writes the thread after the prune."""
    history.work(0, "a", 6, 300, archived=True)
    history.background(0, NONE)
    history.work(0, "a", 6, 300, archived=True)
    history.prune(0, "a", 1, NONE)


def test_more_is_pruned_while_a_ship_looks_at_packs(history: Rules) -> None:
    """What the disk has of a pack cannot be judged then: the next ship looks again."""
    history.first_steps(archived=False, keeps_records=False, one_host=False, size=10, window=4)
    history.prune_while_shipping(cold=False, count=3, keep=1, name="a", size=10, who=0)
    for _ in range(3):
        history.delete_here(name="a", now=False, plan=(), who=0)
    history.prune_while_shipping(cold=False, count=1, keep=3, name="a", size=10, who=0)
    history.prune_while_shipping(cold=False, count=4, keep=1, name="a", size=10, who=0)
