"""The danger: a machine that has the newest part of a thread calls the rest damaged, though the archive has it."""

from __future__ import annotations

import os

import lmdb
import pytest
from tests.daemon.driven import CALLER, NAMESPACE, Driven, append
from tests.daemon.town import Town
from tests.daemon.unthreaded import run
from tests.daemon.wire import text

from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.effect_service_pb2 import ListEffectsRequest
from stateward.v1.thread_service_pb2 import ForkThreadRequest, SetTagRequest
from stateward_sidecar.storage.queue import Write
from stateward_sidecar.store.journal import requests
from stateward_sidecar.store.thread import blocks

COUNT, WINDOW = 24, 16


@pytest.fixture
def copy(driven: Town, monkeypatch: pytest.MonkeyPatch) -> Driven:
    """A machine that has read a long thread, with branches, tags and snapshots of another machine that is lost."""
    monkeypatch.setattr(requests, "REQUEST_WINDOW_ENTRIES", WINDOW)
    first = driven.machine("first")
    for number in range(COUNT):
        request = append(os.urandom(800))
        if number in (3, COUNT - 3):
            request.branch = f"branch-{number}"
            request.parent.version = number
        request.checkpoint_id = f"checkpoint-{number}"
        first.put(request)
        if number in (5, COUNT - 5):
            tag = SetTagRequest(namespace=NAMESPACE, thread="job", tag=f"tag-{number}")
            tag.version.version = number
            first.tag(tag)
        first.ship_now()
    assert first.findings() == []
    driven.end(first)
    second = driven.machine("second")
    second.state()
    assert second.thread().floor_sequence > WINDOW / 2
    return second


def test_what_only_the_archive_has_is_no_damage(copy: Driven) -> None:
    """Neither for a reader, nor once the thread is taken and written, nor when the history came."""
    assert copy.findings() == []
    copy.archive.own(NAMESPACE, "job", take_over=True)
    assert copy.findings() == []
    copy.put(append(b"more"))
    copy.ship_now()
    assert copy.findings() == []
    assert copy.thread().floor_sequence
    copy.archive.complete(NAMESPACE, "job")
    assert not copy.thread().floor_sequence
    assert copy.findings() == []


@pytest.mark.parametrize("what", ["entry", "place of a version", "newest"])
def test_damage_of_a_copy_is_found(copy: Driven, what: str) -> None:
    """What ought to be here is missed as anywhere else."""
    thread = copy.thread()
    keys = thread.identity.keys

    def run(txn: lmdb.Transaction, batch: object) -> None:
        if what == "entry":
            blocks.delete_entry(txn, keys, thread.floor_sequence + 2)
        elif what == "newest":
            assert txn.delete(keys.head)
        else:
            assert txn.delete(keys.version_offset(thread.floor_version + 1))

    copy.store.context.writer.submit(Write(run=run), wait=True).wait()
    assert copy.findings()


def test_a_fork_outlasts_the_memory_of_its_source(driven: Town) -> None:
    """Other threads pushed the source out of memory, and it was written again: the copy is made, and nothing is called
    damaged."""
    first = driven.machine("first")
    for number in range(4):
        first.put(with_effect(number, "a"))
    forker = first.store.forker
    real = forker._copy_effects

    def later(*arguments: object) -> None:
        first.forget()
        first.put(with_effect(1, "b"))
        real(*arguments)  # type: ignore[arg-type]

    forker._copy_effects = later  # type: ignore[method-assign, assignment]
    first.forget()
    first.fork(ForkThreadRequest(namespace=NAMESPACE, thread="job", new_thread="copy", all_versions=True))
    asked = ListEffectsRequest(namespace=NAMESPACE, thread="copy", page_size=100)
    assert len(run(first.effects.list_effects(asked, CALLER)).effects) == 5
    assert first.thread().head.forks == 1
    assert first.findings() == []


def with_effect(number: int, key: str) -> SaveRequest:
    request = append(os.urandom(100))
    if key == "a":
        request.checkpoint_id = f"c{number}"
    request.effects.add(anchor=f"c{number}", key=key, value=text("done"))
    return request
