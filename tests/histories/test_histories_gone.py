"""The danger: the rules of a thread that is deleted and made again let something pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.histories.gone import Ledger
from tests.histories.recorder import Recorder

STALE_S = 2.0
LONG = 100.0  # after everything that happened in a test


class Told:
    """A ledger, and what it found."""

    def __init__(self, path: Path) -> None:
        self.recorder = Recorder(path)
        self.path = path
        self.ledger = Ledger(self.recorder, STALE_S)

    def saved(self, word: str, uid: str, *, named: str = "", level: str = "archived", replayed: bool = False) -> None:
        if named:
            self.ledger.send(word, named)
        answer = {"uid": uid, "durability": level, "replayed": replayed}
        self.ledger.saved("A", word, named, answer, time.monotonic())

    def found(self) -> list[str]:
        self.recorder._file.flush()
        return [line for line in self.path.read_text().splitlines() if '"finding"' in line]


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    made = Told(tmp_path / "history.jsonl")
    made.saved("first", "u")
    yield made
    made.recorder.close()


def delete(told: Told) -> None:
    assert told.ledger.asked("u")
    told.ledger.deleted("u")


def late_read(told: Told, **how: Any) -> None:
    told.ledger.read("B", "u", ["first"], time.monotonic() + LONG, **how)


def test_what_is_allowed(told: Told) -> None:
    """A deletion, the next creation, and an owner that had not noticed."""
    told.saved("second", "u", named="u")
    told.ledger.read("A", "u", ["first", "second"], time.monotonic())
    delete(told)
    told.saved("late", "u", named="u", level="committed")
    told.saved("second", "u", named="u", replayed=True)
    told.ledger.read("B", "u", ["first", "second"], time.monotonic())
    told.saved("third", "v")
    told.ledger.read("A", "v", ["third"], time.monotonic() + LONG, is_end=True)
    assert told.found() == []


def test_a_daemon_may_find_nothing_to_delete(told: Told) -> None:
    """It cannot know of a creation that another daemon has not archived."""
    told.saved("other", "w", level="committed")
    assert not told.ledger.asked("w")
    told.saved("other", "w", named="w")
    assert told.ledger.asked("w")


CASES: dict[str, Callable[[Told], None]] = {
    "reached v": lambda told: told.saved("late", "v", named="u"),
    "after its deletion was answered": lambda told: (delete(told), told.saved("late", "u", named="u"))[0],
    "is shown": lambda told: (delete(told), late_read(told))[0],
    "words of another creation": lambda told: told.ledger.read("A", "u", ["first", "strange"], time.monotonic()),
    "a word twice": lambda told: told.ledger.read("A", "u", ["first", "first"], time.monotonic()),
    "lacks words": lambda told: told.ledger.read("A", "u", [], time.monotonic(), is_end=True),
    "nobody asked for its deletion": lambda told: told.ledger.absent("A"),
}


@pytest.mark.parametrize("what", CASES)
def test_what_is_found(told: Told, what: str) -> None:
    """Each rule once."""
    CASES[what](told)
    (line,) = told.found()
    assert what in line
