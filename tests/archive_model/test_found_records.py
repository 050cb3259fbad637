"""Histories with records in which the machine found something."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.archive_model import small
from tests.archive_model.faults import Fault
from tests.archive_model.test_archive_model import Rules

NONE: tuple[Fault, ...] = ()


@pytest.fixture
def history() -> Iterator[Rules]:
    """Thread `a` with two archived versions."""
    made = Rules()
    try:
        made.first_steps(size=10, archived=True)
        yield made
        made.teardown()
    finally:
        small.restore()


def test_packs_without_versions_are_not_older_than_all_versions(history: Rules) -> None:
    """A thread has a snapshot, and then only records, until HEAD is folded: a new machine finds the newest entries."""
    history.work(0, "a", count=4, size=300, archived=True)
    history.replace_records(0, "a", count=8, size=1500, takes=False, plan=NONE)
