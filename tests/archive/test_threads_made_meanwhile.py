"""The danger: a read that meets a thread in the making, or in its deletion, and says that data is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.daemon.driven import Driven, append
from tests.daemon.town import Town

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

    second.archive.state.keys.namespace("default")
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


@pytest.mark.parametrize("takes", [False, True], ids=["read", "taken"])
def test_a_thread_that_is_deleted_while_its_objects_are_read_is_gone(
    driven: Town, monkeypatch: pytest.MonkeyPatch, *, takes: bool
) -> None:
    """HEAD named objects that are gone with the thread: its tombstone leads to nothing, and that is no damage."""
    first, second = driven.machine("first"), driven.machine("second")
    for _ in range(8):
        first.put(append(os.urandom(400)))
        first.ship_now()
    fetcher = second.archive.attacher._fetcher
    fetch = fetcher.fetch

    def delete_and_fetch(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        first.delete(DeleteThreadRequest(namespace="default", thread="job"))
        first.wire.background()
        return fetch(*arguments, **options)

    monkeypatch.setattr(fetcher, "fetch", delete_and_fetch)
    take = partial(second.archive.own, "default", "job", take_over=True, must_exist=True)
    with pytest.raises(ThreadNotFound):
        (take if takes else second.state)()


def test_a_thread_that_is_begun_anew_after_the_bucket_was_set_back_is_not_there(driven: Town) -> None:
    """The bucket has lost all of it but its claim, and another machine goes on from there and has saved nothing yet.
    What a copy has more is set aside, and the reader is told that there is no such thread."""
    first, second, third = (driven.machine(name) for name in ("first", "second", "third"))
    first.put(append(after=0))
    before = dict(driven.bucket.objects)
    first.ship_now()
    assert second.state().checkpoint.version == 1
    driven.end(first)
    driven.bucket.objects.clear()
    driven.bucket.objects.update(before)
    third.archive.own("default", "job", take_over=True)
    with pytest.raises(ThreadNotFound):
        second.state()
    assert [(thread.name, thread.head.main_version) for thread in second.threads()] == [("job@@1", 1)]
