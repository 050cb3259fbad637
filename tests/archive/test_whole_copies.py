"""The danger: a machine that has the newest part of a thread calls the rest damaged, though the archive has it."""

from __future__ import annotations

import os

import lmdb
import pytest
from tests.archive.driven import Driven, Town, append
from tests.archive_model.sidecar import NAMESPACE

from stateward.v1.admin_service_pb2 import VerifyRequest
from stateward.v1.thread_service_pb2 import SetTagRequest
from stateward_sidecar.storage.queue import Write
from stateward_sidecar.store import records, requests
from stateward_sidecar.store.verify import Verifier

COUNT, WINDOW = 24, 16


def findings(machine: Driven) -> list[str]:
    """What Verify says of this disk."""
    found = (answer.finding for answer in Verifier(machine.store.context).verify(VerifyRequest()))
    return [f"{each.version}: {each.message}" for each in found if each.message]


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
    assert findings(first) == []
    driven.end(first)
    second = driven.machine("second")
    second.state()
    assert second.thread().floor_sequence > WINDOW / 2
    return second


def test_what_only_the_archive_has_is_no_damage(copy: Driven) -> None:
    """Neither for a reader, nor once the thread is taken and written, nor when the history came."""
    assert findings(copy) == []
    copy.archive.own(NAMESPACE, "job", take_over=True)
    assert findings(copy) == []
    copy.put(append(b"more"))
    copy.ship_now()
    assert findings(copy) == []
    assert copy.thread().floor_sequence
    copy.archive.complete(NAMESPACE, "job")
    assert not copy.thread().floor_sequence
    assert findings(copy) == []


@pytest.mark.parametrize("what", ["entry", "place of a version", "newest"])
def test_damage_of_a_copy_is_found(copy: Driven, what: str) -> None:
    """What ought to be here is missed as anywhere else."""
    thread = copy.thread()
    keys = thread.identity.keys

    def run(txn: lmdb.Transaction, batch: object) -> None:
        if what == "entry":
            records.delete_entry(txn, keys, thread.floor_sequence + 2)
        elif what == "newest":
            assert txn.delete(keys.head())
        else:
            assert txn.delete(keys.version_offset(thread.floor_version + 1))

    copy.store.context.writer.submit(Write(run=run), wait=True).wait()
    assert findings(copy)
