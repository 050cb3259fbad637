"""The danger: who only adds to a thread makes it forget where its work stands, what it asks, or which shape it has."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.daemon.wire import Wire, appends, refused, sets, state
from tests.messages import to_write
from tests.service.conftest import THREAD, Place

from stateward.testing import run_daemon
from stateward.v1.checkpoint_pb2 import (
    WORK_STATUS_COMPLETED,
    WORK_STATUS_PAUSED,
    WORK_STATUS_RUNNING,
    WORK_STATUS_UNSPECIFIED,
    WORK_STATUS_WAITING,
    Checkpoint,
    VersionRef,
)
from stateward.v1.checkpoint_service_pb2 import (
    GetCheckpointRequest,
    ReadLogRequest,
    SaveRequest,
    SaveResponse,
)
from stateward.v1.signal_pb2 import Question
from stateward.v1.thread_service_pb2 import ForkThreadRequest
from stateward.v1.write_pb2 import WriteOptions

ASKED = {
    "status": WORK_STATUS_WAITING,
    "status_detail": "a manager",
    "wait_id": "q1",
    "question": Question(prompt="Pay?"),
}


class Book:
    """Saves to one thread."""

    def __init__(self, wire: Wire, namespace: str, thread: str = THREAD) -> None:
        self.wire, self.at = wire, {"namespace": namespace, "thread": thread}

    def request(self, **fields: Any) -> SaveRequest:
        return to_write(SaveRequest, **{**self.at, "diff": appends("x"), "request_id": os.urandom(8).hex(), **fields})

    def add(self, **fields: Any) -> SaveResponse:
        """On top of whatever is the head."""
        return self.wire.save(self.request(**fields))

    def save(self, **fields: Any) -> SaveResponse:
        """With an expectation."""
        return self.add(expected_version=self.version(fields.get("branch", "")), **fields)

    def version(self, branch: str = "") -> int:
        return self.head(branch).version

    def head(self, branch: str = "", version: int | None = None) -> Checkpoint:
        ref = VersionRef(version=version) if version is not None else None
        request = GetCheckpointRequest(**self.at, branch=branch, version=ref)
        found: Checkpoint = self.wire.checkpoints.GetCheckpoint(request, timeout=20, wait_for_ready=True).checkpoint
        return found

    def facts(self, branch: str = "") -> tuple[Any, ...]:
        found = self.head(branch)
        return found.status, found.status_detail, found.wait_id, found.question.prompt


@pytest.fixture
def book(place: Place) -> Book:
    return Book(place.wire, place.namespace)


WAITS = (WORK_STATUS_WAITING, "a manager", "q1", "Pay?")
NOTHING = (WORK_STATUS_RUNNING, "", "", "")


@pytest.mark.parametrize("branch", ["", "side"])
def test_an_addition_leaves_the_question(book: Book, branch: str) -> None:
    """Status, detail, wait id and question, on main and elsewhere; the answer says so, also the second time."""
    if branch:
        book.add(branch=branch, parent=VersionRef(version=2), expected_version=0, **ASKED)
    else:
        book.save(**ASKED)
    request = book.request(branch=branch)
    first, again = book.wire.save(request), book.wire.save(request)
    for answer in (first, again):
        assert (answer.status, answer.wait_id) == (WORK_STATUS_WAITING, "q1")
    assert again.receipt.replayed
    assert book.facts(branch) == WAITS
    book.add(branch=branch, status_detail="the other manager", diff=sets("s", "x"))
    assert book.facts(branch) == (WORK_STATUS_WAITING, "the other manager", "q1", "Pay?")
    if not branch:
        found = book.wire.thread(book.at["namespace"], THREAD)
        assert (found.status, found.wait_id, found.status_detail) == (WORK_STATUS_WAITING, "q1", "the other manager")


@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        ({"expected_version": 3}, NOTHING),
        ({"expected_version": 3, "status": WORK_STATUS_PAUSED}, (WORK_STATUS_PAUSED, "", "", "")),
        ({"status": WORK_STATUS_COMPLETED}, (WORK_STATUS_COMPLETED, "", "", "")),
        ({"ack_signals": ["a signal"]}, NOTHING),
        ({"overwrite": True, "state": state("whole")}, NOTHING),
        ({"status": WORK_STATUS_WAITING, "wait_id": "q2"}, (WORK_STATUS_WAITING, "", "q2", "")),
    ],
    ids=["expectation", "paused", "completed", "acknowledged", "overwritten", "another wait"],
)
def test_who_goes_on_with_the_work_takes_it_back(book: Book, fields: dict[str, Any], facts: tuple[Any, ...]) -> None:
    """Whoever saw the head, says a status, or acknowledges, is the agent: what it does not say is over."""
    book.save(**ASKED)
    given = {key: value for key, value in fields.items() if key != "state"}
    request = book.request(**given)
    if "state" in fields:
        request.ClearField("diff")
        request.state.CopyFrom(fields["state"])
    answer = book.wire.save(request)
    assert answer.status == WORK_STATUS_UNSPECIFIED  # the request's own
    assert book.facts() == facts


def test_what_is_over_stays_over(book: Book) -> None:
    """An addition to a completed thread does not make it run."""
    book.save(status=WORK_STATUS_COMPLETED)
    book.add()
    assert book.wire.thread(book.at["namespace"], THREAD).status == WORK_STATUS_COMPLETED


def test_a_version_has_the_schema_of_its_parent(book: Book) -> None:
    """Said once, it holds for what is made from there: on another branch, in a whole state, in a fork."""
    assert book.head().schema_version == 0
    assert book.save(schema_version=3).schema_version == 0  # the request's own
    assert [book.add().schema_version, book.save().schema_version] == [3, 3]
    request = book.request(expected_version=book.version())
    request.ClearField("diff")
    request.state.CopyFrom(state("whole"))
    assert book.wire.save(request).schema_version == 3
    side = book.add(branch="side", parent=VersionRef(version=3), expected_version=0)
    old = book.add(branch="old", parent=VersionRef(version=2), expected_version=0)
    assert [side.schema_version, old.schema_version] == [3, 0]
    assert [book.add(branch=each).schema_version for each in ("side", "old")] == [3, 0]
    book.save(schema_version=4)
    assert [book.head(branch=each).schema_version for each in ("", "side")] == [4, 3]
    for whole in (False, True):
        name = f"copy-{whole}"
        fork = ForkThreadRequest(**book.at, new_thread=name, all_versions=whole, options=WriteOptions(request_id=name))
        book.wire.threads.ForkThread(fork, timeout=20)
        copy = Book(book.wire, book.at["namespace"], name)
        assert copy.add().schema_version == 4
    assert book.wire.findings(**book.at) == []


def test_an_addition_of_another_shape_is_refused(book: Book) -> None:
    """Before anything is written; a save that saw the head may change its shape, and a head that says none fits all."""
    book.add(schema_version=1)
    book.save(schema_version=2)
    refusal = refused(book.wire.checkpoints.Save, book.request(schema_version=1))
    assert (refusal.reason, refusal.metadata["schema"], refusal.metadata["asked"]) == ("SCHEMA_MISMATCH", "2", "1")
    assert book.version() == 4
    assert book.add(schema_version=2).version == 5
    assert book.save(schema_version=1).version == 6


def test_a_branch_that_moved_is_read_anew(book: Book) -> None:
    """It went on from an older version: a log may be as long as before, with other entries in it."""

    def read(branch: str = "") -> Any:
        return book.wire.checkpoints.ReadLog(ReadLogRequest(**book.at, log="messages", branch=branch), timeout=20)

    book.save()
    assert read().rewritten_version == 0
    book.add(parent=VersionRef(version=2), expected_version=3, diff=appends("y"))
    assert (read().version, read().rewritten_version, read().end_index) == (4, 4, 3)
    book.add()
    assert (read().version, read().rewritten_version) == (5, 4)
    book.add(branch="side", parent=VersionRef(version=2), expected_version=0)
    assert read("side").rewritten_version == 0


def test_facts_outlive_a_crash() -> None:
    """Read from the disk they are the same, and so is what follows."""
    with run_daemon(sweep_interval=0) as daemon:
        wire = Wire(daemon.target)
        book = Book(wire, "", "t")
        book.add(schema_version=7, **ASKED)
        daemon.kill()
        daemon.start()
        wire.close()
        book.wire = wire = Wire(daemon.target)
        answer = book.add()
        assert (answer.status, answer.wait_id, answer.schema_version) == (WORK_STATUS_WAITING, "q1", 7)
        assert book.facts() == WAITS
        assert wire.findings() == []
        wire.close()
