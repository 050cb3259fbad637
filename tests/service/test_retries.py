"""The danger: a retry is applied a second time, or a request id that was used for something else gets that answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
from tests.daemon.wire import appends, refused, replayed, sets, text
from tests.service.conftest import THREAD, Place

from stateward._operations.threads import numbers_of
from stateward.v1 import thread_service_pb2 as t
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.checkpoint_service_pb2 import SaveResponse
from stateward.v1.write_pb2 import WriteOptions

CALLERS = 32


def test_one_request_id_from_many_callers_applies_once(place: Place) -> None:
    """Thirty-two callers that send one unconditional append at once all get its one version, and one entry is added."""
    save = place.request(expected_version=None, request_id="once", diff=appends("third"))
    with ThreadPoolExecutor(CALLERS) as pool:
        answers: list[SaveResponse] = list(pool.map(lambda _: place.wire.save(save), range(CALLERS)))
    assert {(answer.version, answer.receipt.digest, answer.receipt.sequence) for answer in answers} == {
        (3, answers[0].receipt.digest, answers[0].receipt.sequence)
    }
    assert sum(not answer.receipt.replayed for answer in answers) == 1
    assert len(place.state().logs["messages"].entries) == 3


def test_one_request_id_creates_one_thread(place: Place) -> None:
    """The same, where the request makes the thread: all callers get one uid."""
    save = place.request(thread="new", expected_version=0, request_id="once")
    with ThreadPoolExecutor(CALLERS) as pool:
        answers: list[SaveResponse] = list(pool.map(lambda _: place.wire.save(save), range(CALLERS)))
    assert len({answer.receipt.uid for answer in answers}) == 1
    assert {answer.version for answer in answers} == {1}


def test_exactly_one_of_many_writers_with_one_expectation_wins(place: Place) -> None:
    """Thirty-two writers that expect version 2: one saves, the others are told of version 3."""

    def save(number: int) -> str:
        call = place.wire.checkpoints.Save.future(place.request(diff=sets("goal", f"{number}")), timeout=20)
        error = call.exception()
        return "saved" if error is None else error.code().name

    with ThreadPoolExecutor(CALLERS) as pool:
        outcomes = list(pool.map(save, range(CALLERS)))
    assert sorted(set(outcomes)) == ["ABORTED", "saved"]
    assert outcomes.count("saved") == 1
    assert place.thread().version == 3


def test_a_late_retry_gets_the_first_answer(untouched: Place) -> None:
    """A retry after the head has moved on is answered as the first time, not with VERSION_MISMATCH."""
    again = untouched.request(expected_version=0, diff=appends("first", "second"), request_id="made-1")
    answer = untouched.wire.save(again)
    assert (answer.version, answer.receipt.sequence, answer.receipt.replayed) == (1, 1, True)


def test_a_request_id_with_another_body_is_refused(untouched: Place) -> None:
    """REQUEST_ID_REUSED for any difference that matters: edits, status, labels, step, expectation, branch."""
    for fields in (
        {"diff": appends("other")},
        {"status": 4},
        {"labels": {"k": "v"}},
        {"step": 0},
        {"expected_version": 1},
        {"branch": "side"},
        {"metadata": text("x")},
        {"metrics": {"cost": 1.0}},
    ):
        fields = {"expected_version": 0, "diff": appends("first", "second"), **fields}
        found = refused(untouched.wire.checkpoints.Save, untouched.request(request_id="made-1", **fields))
        assert (found.reason, found.code) == ("REQUEST_ID_REUSED", grpc.StatusCode.INVALID_ARGUMENT)
        assert found.metadata["request_id"] == "made-1"


def test_a_request_id_of_another_verb_is_refused(untouched: Place) -> None:
    """An id that a save used cannot be a tag's."""
    request = t.SetTagRequest(
        namespace=untouched.namespace, thread=THREAD, tag="x", options=WriteOptions(request_id="made-1")
    )
    assert refused(untouched.wire.threads.SetTag, request).reason == "REQUEST_ID_REUSED"


def test_a_refused_request_id_is_free(place: Place) -> None:
    """A failed check is not stored: the same id may be used again with a body that fits."""
    wrong = place.request(request_id="mine", expected_version=1)
    assert refused(place.wire.checkpoints.Save, wrong).reason == "VERSION_MISMATCH"
    assert place.wire.save(place.request(request_id="mine")).version == 3


def test_a_checkpoint_id_answers_again_or_is_refused(untouched: Place) -> None:
    """The same checkpoint id with the same content is a retry; with other content it is CHECKPOINT_ID_REUSED."""
    same = untouched.request(expected_version=2, diff=sets("goal", "Rome"), checkpoint_id="step-2")
    found = refused(untouched.wire.checkpoints.Save, same)
    assert (found.reason, found.code) == ("CHECKPOINT_ID_REUSED", grpc.StatusCode.ALREADY_EXISTS)
    assert (found.metadata["checkpoint_id"], found.metadata["version"]) == ("step-2", "2")


def test_a_checkpoint_id_is_a_name_in_its_branch_only(place: Place) -> None:
    """Another branch may use the same checkpoint id for something else."""
    base = VersionRef(version=1)
    save = place.request(branch="side", expected_version=0, parent=base, checkpoint_id="step-2")
    assert place.wire.save(save).version == 3
    again = place.request(branch="side", expected_version=3, checkpoint_id="step-2", diff=sets("goal", "x"))
    assert refused(place.wire.checkpoints.Save, again).metadata["version"] == "3"


def test_tags_and_settings_are_retried_freely(place: Place) -> None:
    """SetTag, DeleteTag, UpdateThread and ForkThread with an id that was answered answer again."""
    at = {"namespace": place.namespace, "thread": THREAD}
    place.wire.save(place.request())
    for call, request in (
        (place.wire.threads.SetTag, t.SetTagRequest(**at, tag="x", options=WriteOptions(request_id="1"))),
        (place.wire.threads.DeleteTag, t.DeleteTagRequest(**at, tag="x", options=WriteOptions(request_id="2"))),
        (
            place.wire.threads.UpdateThread,
            t.UpdateThreadRequest(
                **at,
                update={"agent": "a"},
                update_mask={"paths": ["agent"]},
                options=WriteOptions(request_id="3", expected_version=3),
            ),
        ),
        (
            place.wire.threads.ForkThread,
            t.ForkThreadRequest(**at, new_thread="copy", options=WriteOptions(request_id="5")),
        ),
    ):
        first = call(request, timeout=20)
        entries = place.wire.entries_written()
        assert call(request, timeout=20) == replayed(first)
        assert place.wire.entries_written() == entries


def test_a_prune_is_retried_freely(place: Place) -> None:
    """The second answer to a prune names the versions that the first one removed."""
    request = t.PruneThreadRequest(
        namespace=place.namespace,
        thread=THREAD,
        keep_latest_per_branch=1,
        options=WriteOptions(request_id="prune", expected_version=2),
    )
    first = place.wire.threads.PruneThread(request)
    assert list(numbers_of(first.pruned)) == [1]
    assert place.wire.threads.PruneThread(request) == replayed(first)


def test_a_deletion_is_retried_freely(place: Place) -> None:
    """The second DeleteThread is THREAD_NOT_FOUND, or with `allow_missing` an answer without uid."""
    at = {"namespace": place.namespace, "thread": THREAD}
    uid = place.thread().uid
    first = t.DeleteThreadRequest(**at, options=WriteOptions(expected_uid=uid))
    assert place.wire.threads.DeleteThread(first).receipt.uid == uid
    assert refused(place.wire.threads.DeleteThread, t.DeleteThreadRequest(**at)).reason == "THREAD_NOT_FOUND"
    assert place.wire.threads.DeleteThread(t.DeleteThreadRequest(**at, allow_missing=True)).receipt.uid == ""
    assert place.wire.save(place.request(expected_version=0)).receipt.uid != uid
