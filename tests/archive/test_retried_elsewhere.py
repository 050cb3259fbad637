"""The danger: a retry reaches another machine, which lacks the entry of the first try and takes the request for new."""

from __future__ import annotations

import os

import pytest
from tests.archive.driven import Town, append

from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest
from stateward_sidecar.store import requests

COUNT = 24


def lost_machine(driven: Town) -> list[SaveRequest]:
    """A machine that archives a thread, a pack a save, and is lost. Returns its requests."""
    first = driven.machine("first")
    made = [append(os.urandom(2000), request_id=f"request-{number}") for number in range(COUNT)]
    for request in made:
        first.put(request)
        first.ship_now()
    driven.end(first)
    return made


@pytest.mark.parametrize("window", [16, 1024])
def test_a_retry_after_a_read_and_a_takeover_is_applied_once(
    driven: Town, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """Whatever a reader's copy lacks, a writer has all entries that a retry may ask for."""
    monkeypatch.setattr(requests, "REQUEST_WINDOW_ENTRIES", window)
    made = lost_machine(driven)
    second = driven.machine("second")
    second.state()
    assert second.thread().floor_sequence > max(COUNT - window, 0)  # the copy lacks some of the window
    second.archive.own("default", "job", take_over=True)
    for request in made[-window:]:
        assert second.put(request).replayed
    assert second.state().checkpoint.version == COUNT
    second.archive.complete("default", "job")  # what was fetched for retries hinders nobody who wants it all
    assert second.thread().floor_sequence == 0
    for version in range(1, COUNT + 1):
        old = HydrateRequest(namespace="default", thread="job", max_bytes=1 << 20)
        old.version.version = version
        assert len(second.hydrate(old).state.logs["m"].entries) == version


def test_a_missing_row_below_the_floor_is_not_new(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """However a thread came to be ours, a request that its copy does not know is looked for in the archive."""
    made = lost_machine(driven)
    second = driven.machine("second")
    monkeypatch.setattr(second.archive.attacher.window, "fill", lambda *_: None)
    second.state()
    second.archive.own("default", "job", take_over=True)
    monkeypatch.undo()
    assert second.thread().floor_sequence
    assert second.put(made[1]).replayed
    assert not second.put(append(request_id="new")).replayed


@pytest.mark.parametrize("is_read_first", [True, False])
@pytest.mark.parametrize("window", [16, 1024])
def test_a_thread_goes_on_without_entries_that_are_lost(
    driven: Town, monkeypatch: pytest.MonkeyPatch, window: int, is_read_first: bool
) -> None:
    """A pack that only retries ask for is gone: nothing can answer them, and new saves are taken all the same."""
    monkeypatch.setattr(requests, "REQUEST_WINDOW_ENTRIES", window)
    lost_machine(driven)
    packs = sorted(key for key, _ in driven.net.bucket.list("v1/t/") if key.endswith(".pack"))
    oldest = min(packs[1:], key=lambda key: int(key.rpartition("-")[2].removesuffix(".pack")))
    driven.net.bucket.delete(oldest)
    second = driven.machine("second")
    if is_read_first:
        second.state()
    second.archive.own("default", "job", take_over=True)
    assert second.put(append(b"new", after=COUNT)).version == COUNT + 1
    assert second.put(append(b"newer")).version == COUNT + 2
