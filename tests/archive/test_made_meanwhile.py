"""The danger: a read that meets a thread in the making, or in its deletion, and says that data is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.archive.driven import Driven, Town, append

from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.errors import ThreadNotFound


def between(machine: Driven, monkeypatch: pytest.MonkeyPatch, first: int, event: Callable[[], object]) -> None:
    """Lets something happen between the requests for HEAD (0) and key (1), of which ``first`` is answered first."""

    def together(*calls: Callable[[], Any]) -> list[Any]:
        monkeypatch.undo()
        answers = {first: calls[first]()}
        event()
        answers[1 - first] = calls[1 - first]()
        return [answers[0], answers[1]]

    monkeypatch.setattr(machine.wire, "together", together)


def test_a_thread_that_is_made_while_it_is_read_is_there(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key was asked for before it was made, and HEAD answered after: the key is asked for again."""
    first, second = driven.machine("first"), driven.machine("second")

    def make() -> None:
        first.put(append(after=0))
        first.ship_now()

    second.archive.desk.keys.namespace("default")
    between(second, monkeypatch, 1, make)
    assert second.state().checkpoint.version == 1


def test_a_thread_that_is_deleted_while_it_is_read_is_gone(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """HEAD was answered before its tombstone, and the key is destroyed: there is no such thread."""
    first, second = driven.machine("first"), driven.machine("second")
    first.put(append(after=0))
    first.ship_now()
    between(second, monkeypatch, 0, lambda: first.delete(DeleteThreadRequest(namespace="default", thread="job")))
    with pytest.raises(ThreadNotFound):
        second.state()
