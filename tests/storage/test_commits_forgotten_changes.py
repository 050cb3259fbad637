"""The danger: a reader takes a commit for damage, because what it changed was forgotten in the same moment."""

from __future__ import annotations

from typing import Any

import pytest

from stateward_sidecar.storage.writer import KEPT, Changes

JOB, OTHER = ("default", "job"), ("default", "other")


class Watched(list[Any]):
    """A list that calls after each change."""

    def __init__(self, changes: Changes, seen: list[bool]) -> None:
        super().__init__(changes._changed)
        self._changes, self._seen = changes, seen

    def __setitem__(self, place: Any, keys: Any) -> None:
        super().__setitem__(place, keys)
        self._seen.append(self._changes.has_changed("job", 0))


def begin(changes: Changes, count: int) -> None:
    for number in range(count):
        changes.begin([OTHER] if number else [JOB])
        changes.end()


@pytest.mark.parametrize("count", [1, 2, KEPT - 1, KEPT, KEPT + 1, 2 * KEPT])
def test_a_batch_that_begins_while_a_reader_looks(count: int) -> None:
    """The next batch takes the place of the oldest one before it counts itself: the oldest one is not forgotten."""
    changes, seen = Changes(), list[bool]()
    begin(changes, count)
    changes._changed = Watched(changes, seen)
    changes.begin([OTHER])
    assert seen == [True]


@pytest.mark.parametrize("count", [0, 1, KEPT - 1])
def test_batches_of_others_are_no_excuse(count: int) -> None:
    """As long as all of them are remembered, damage is told at once."""
    changes = Changes()
    for _ in range(count):
        changes.begin([OTHER])
        changes.end()
    assert not changes.has_changed("job", 0)
    assert changes.has_changed("other", 0) is (count > 0)
