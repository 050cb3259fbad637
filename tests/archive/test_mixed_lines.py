"""The danger: two lines of one thread have versions of the same numbers, and one gets into the other without a word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.archive.twins import Pair, replacing, twins


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Sidecars ``a`` and ``b``; ``a`` has archived two versions of the thread."""
    with twins(tmp_path) as made:
        made.a.put("one")
        made.a.put("two")
        made.a.archive_all()
        yield made


def test_a_state_that_was_prepared_on_another_line_is_prepared_anew(pair: Pair) -> None:
    """The thread is taken and comes back with another version 3 while a full state is compared with the first one."""
    pair.a.put("a three")
    whole = ["one", "two", "a three", "four"]
    save = pair.a.prepared(replacing(whole, after=3))
    pair.b.take()
    pair.b.put("b three")
    pair.b.archive_all()
    pair.a.take()
    assert pair.a.orphans() == ["job@1"]
    assert pair.a.words() == ["one", "two", "b three"]
    pair.a.write(save.run)
    pair.a.restart()
    assert pair.a.words() == whole
