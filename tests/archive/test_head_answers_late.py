"""The danger: the answer to a HEAD is lost, and the next ship finds out only while it uploads. It ends, and nobody
ships what was saved since."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.daemon.driven import Driven, append
from tests.daemon.town import Town

from stateward_sidecar.errors import ArchiveUnavailable


def lose_an_answer(machine: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ship's HEAD lands, and nobody hears of it."""
    replace = machine.wire.replace

    def lost(key: str, data: bytes, etag: str) -> str:
        replace(key, data, etag)
        raise ArchiveUnavailable("no answer")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(machine.wire, "replace", lost)
        with pytest.raises(ArchiveUnavailable):
            machine.ship_now()


def test_entries_behind_a_late_head_are_shipped(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ship that meets the late HEAD in its sign of life fails, so that the schedule ships the thread again."""
    machine = driven.machine("first")
    machine.put(append(after=0))
    machine.ship_now()
    machine.put(append(after=1))
    lose_an_answer(machine, monkeypatch)
    machine.put(append(b"y" * 5000, after=2))
    waiting = machine.archive.wait(machine.thread(), 3)
    assert waiting is not None
    run_long = machine.wire.run_long

    def run_slowly(calls: Sequence[Callable[[], object]], beat: Callable[[], None], *how: Any, **more: Any) -> None:
        beat()
        run_long(calls, beat, *how, **more)

    monkeypatch.setattr(machine.wire, "run_long", run_slowly)
    with pytest.raises(ArchiveUnavailable):
        machine.ship_now()
    machine.ship_now()
    assert waiting.done()
    assert machine.thread().archived_sequence == 3
