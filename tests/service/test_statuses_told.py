"""The danger: a list shows an agent as running while it waits or has failed, or a late call overwrites what a newer
version says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.daemon.wire import THREAD, TIMEOUT_S, appends, refused
from tests.messages import to_write
from tests.service.conftest import Place

from stateward.v1 import checkpoint_pb2 as checkpoint
from stateward.v1.backup_service_pb2 import ExportThreadRequest, ImportBegin, ImportThreadRequest
from stateward.v1.checkpoint_service_pb2 import GetCheckpointRequest, HydrateRequest, ListCheckpointsRequest
from stateward.v1.effect_pb2 import Effect
from stateward.v1.effect_service_pb2 import BeginEffectRequest, PutEffectsRequest
from stateward.v1.signal_pb2 import Question, QuestionPart, Signal
from stateward.v1.signal_service_pb2 import ListSignalsRequest, SendSignalRequest
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_service_pb2 import (
    CountThreadsRequest,
    ForkThreadRequest,
    JournalEvent,
    ListThreadsRequest,
    MoveBranchRequest,
    WatchRequest,
)
from stateward.v1.write_pb2 import WriteOptions

RUNNING, WAITING = checkpoint.WORK_STATUS_RUNNING, checkpoint.WORK_STATUS_WAITING
COMPLETED, FAILED = checkpoint.WORK_STATUS_COMPLETED, checkpoint.WORK_STATUS_FAILED
HEAD = "step-2"
"""The checkpoint id of the version that the thread has."""


class Teller:
    """Writes effects, and tells a status with them."""

    def __init__(self, place: Place) -> None:
        self.place, self.calls = place, 0

    def put(self, status: int, anchor: str = HEAD, **fields: Any) -> Any:
        self.calls += 1
        effect = Effect(
            anchor=anchor, key=fields.pop("key", f"task {self.calls}"), value=Value(media_type="text/plain", data=b"x"),
            on_conflict=fields.pop("rule", Effect.CONFLICT_RULE_REPLACE),
        )  # fmt: skip
        request = to_write(
            PutEffectsRequest, namespace=self.place.namespace, thread=THREAD, effects=[effect], status=status,
            request_id=fields.pop("request_id", f"put-{self.calls}"), **fields,
        )  # fmt: skip
        return self.place.wire.effects.PutEffects(request, timeout=TIMEOUT_S)

    def ask(self, asker: str, *names: str, wait_id: str = "", **fields: Any) -> Any:
        """Asks for one asker, a part for each name."""
        parts = [QuestionPart(name=name, prompt=f"{name}?") for name in names]
        wait_id = wait_id or f"{asker}:{','.join(names)}"
        return self.put(WAITING, wait_id=wait_id, asker=asker, question=Question(parts=parts), **fields)

    def now(self) -> tuple[int, str, str]:
        """Status, wait id and prompt of the thread."""
        info = self.place.thread()
        return info.status, info.wait_id, info.question.prompt


@pytest.fixture
def teller(place: Place) -> Teller:
    return Teller(place)


def view(place: Place, version: int = 2) -> checkpoint.Checkpoint:
    request = GetCheckpointRequest(namespace=place.namespace, thread=THREAD)
    request.version.version = version
    found: checkpoint.Checkpoint = place.wire.checkpoints.GetCheckpoint(request, timeout=TIMEOUT_S).checkpoint
    return found


def test_a_told_status_is_seen_wherever_a_saved_one_is(teller: Teller, place: Place) -> None:
    """Thread, version, hydrated state, lists by status, counts and the watch show it; no version is added."""
    question = Question(prompt="Book it?", answer_schema='{"type":"boolean"}')
    place.wire.hydrate(HydrateRequest(namespace=place.namespace, thread=THREAD))  # the answer is remembered
    teller.put(WAITING, status_detail="budget", wait_id="w", question=question)

    info, seen = place.thread(), view(place)
    request = HydrateRequest(namespace=place.namespace, thread=THREAD)
    hydrated = place.wire.checkpoints.Hydrate(request, timeout=TIMEOUT_S).checkpoint
    for each in (info, seen, hydrated):
        assert (each.status, each.status_detail, each.wait_id) == (WAITING, "budget", "w")
        assert each.question == question
    assert (info.version, info.last_version) == (2, 2)
    listed = ListThreadsRequest(namespace=place.namespace, statuses=[WAITING])
    assert [each.thread for each in place.wire.threads.ListThreads(listed, timeout=TIMEOUT_S).threads] == [THREAD]
    versions = ListCheckpointsRequest(namespace=place.namespace, thread=THREAD, statuses=[WAITING])
    found = place.wire.checkpoints.ListCheckpoints(versions, timeout=TIMEOUT_S).checkpoints
    assert [each.version for each in found] == [2]
    counts = place.wire.threads.CountThreads(CountThreadsRequest(namespace=place.namespace), timeout=TIMEOUT_S).counts
    assert [(each.status, each.count) for each in counts] == [(WAITING, 1)]
    told = events(place)[-1].status_told
    assert (told.version, told.status, told.wait_id, told.question) == (2, WAITING, "w", question)


def events(place: Place) -> list[JournalEvent]:
    request = WatchRequest(namespace=place.namespace, thread=THREAD, after_sequence=0)
    found, end = list[JournalEvent](), place.thread().sequence
    watch = place.wire.threads.Watch(request, timeout=TIMEOUT_S)
    for response in watch:
        found += response.events
        if found and found[-1].sequence == end:
            break
    watch.cancel()
    return found


def test_the_next_version_ends_it(teller: Teller, place: Place) -> None:
    """A save sets its own status, and the version before is as it was saved."""
    teller.put(FAILED, status_detail="ValueError: no money")
    assert place.thread().status_detail == "ValueError: no money"
    place.wire.save(place.request(status=COMPLETED, request_id="next"))
    assert (place.thread().status, place.thread().status_detail, view(place).status) == (COMPLETED, "", RUNNING)


def test_a_writer_that_only_adds_keeps_it(teller: Teller, place: Place) -> None:
    """A save without an expectation does not know the status of the work, so the question stays open."""
    teller.ask("a", "hotel")
    added = place.request(expected_version=None, request_id="adds")
    added.options.ClearField("expected_version")
    place.wire.save(added)
    assert teller.now() == (WAITING, "a:hotel", "hotel?")
    assert view(place, 3).question.parts[0].name == "hotel"
    teller.put(RUNNING)  # of the version before
    assert teller.now()[0] == WAITING


def test_only_the_head_of_main_takes_it(teller: Teller, place: Place) -> None:
    """A late call about an older version changes nothing but its effect."""
    place.wire.save(place.request(checkpoint_id="step-3", request_id="next"))
    answer = teller.put(WAITING, wait_id="w", question=Question(prompt="Late?"))
    assert (answer.written, teller.now()) == (1, (RUNNING, "", ""))
    assert not events(place)[-1].HasField("status_told")


def test_a_move_of_the_head_ends_it(teller: Teller, place: Place) -> None:
    """After main went back and forth again, its head says what it said when it was saved."""
    teller.ask("a", "hotel")
    for version in (1, 2):
        request = MoveBranchRequest(
            namespace=place.namespace, thread=THREAD, branch="main", options=WriteOptions(request_id=f"move-{version}")
        )
        request.version.version = version
        place.wire.threads.MoveBranch(request, timeout=TIMEOUT_S)
    assert teller.now() == (RUNNING, "", "")


@pytest.mark.parametrize("status", [0, RUNNING])
def test_it_may_come_before_its_version(teller: Teller, place: Place, status: int) -> None:
    """A framework writes what a task wrote while the task's checkpoint is on its way; the version gets the status."""
    teller.ask("a", "hotel", anchor="step-3")
    teller.ask("b", "flight", anchor="step-3")
    assert teller.now() == (RUNNING, "", "")
    place.wire.save(place.request(request_id="other", checkpoint_id="other"))
    assert teller.now()[0] == RUNNING
    wanted = place.request(expected_version=3, checkpoint_id="step-3", request_id="next", status=status)
    made = place.wire.save(wanted)
    assert teller.now() == (WAITING, "a:hotel", "hotel?\nflight?")
    assert view(place, 4).status == WAITING
    assert place.wire.save(wanted).receipt.digest == made.receipt.digest  # a retry
    place.wire.save(place.request(expected_version=4, request_id="last"))
    assert (teller.now()[0], view(place, 4).status) == (RUNNING, WAITING)


def test_a_version_that_says_more_than_running_keeps_its_word(teller: Teller, place: Place) -> None:
    """What was told early gives way to what the save says."""
    teller.ask("a", "hotel", anchor="step-3")
    place.wire.save(place.request(checkpoint_id="step-3", request_id="next", status=COMPLETED))
    assert teller.now() == (COMPLETED, "", "")


def test_several_askers_make_one_question(teller: Teller) -> None:
    """Each asker adds, repeats and ends its own parts; the question lives as long as one is left."""
    teller.ask("a", "hotel")
    teller.ask("b", "flight", "seat")
    assert teller.now() == (WAITING, "a:hotel", "hotel?\nflight?\nseat?")
    teller.ask("b", "flight", "seat")  # a run that was restarted asks the same again
    assert teller.now()[1] == "a:hotel"
    teller.put(RUNNING, asker="c")  # it had asked nothing
    assert teller.now()[1] == "a:hotel"
    teller.put(RUNNING, asker="a", wait_id="rest")  # answered
    assert teller.now() == (WAITING, "rest", "flight?\nseat?")
    teller.ask("b", "meal")  # answered, and asks something else
    assert teller.now() == (WAITING, "b:meal", "meal?")
    teller.ask("d", "meal", wait_id="b:meal")  # an outer task repeats what an inner one asks
    assert teller.now() == (WAITING, "b:meal", "meal?")
    teller.ask("e", "car", wait_id="e:car")
    teller.put(RUNNING, asker="d")  # without a wait id, what the others ask keeps its own
    assert teller.now() == (WAITING, "b:meal", "car?")
    teller.put(RUNNING, asker="e")
    assert teller.now() == (RUNNING, "", "")


def test_a_failure_may_keep_the_question(teller: Teller, place: Place) -> None:
    """Its answer is still to be used: the failed takes no other one, and others who ask again keep the wait id."""
    teller.ask("a", "hotel")
    teller.ask("b", "flight")
    teller.put(FAILED, asker="a", status_detail="E")
    answer = SendSignalRequest(
        namespace=place.namespace, thread=THREAD, name="approve", options=WriteOptions(request_id="s")
    )
    answer.wait_id = "a:hotel"
    assert refused(place.wire.signals.SendSignal, answer).reason == "STALE_ANSWER"
    teller.put(RUNNING, asker="a")
    assert (teller.now(), place.thread().status_detail) == ((FAILED, "a:hotel", "flight?"), "E")
    teller.ask("b", "flight")
    assert teller.now() == (WAITING, "a:hotel", "flight?")
    teller.put(FAILED, asker="c")
    teller.put(RUNNING, asker="b")  # a run that has failed does not run because another task of it ends
    assert teller.now() == (FAILED, "", "")
    teller.ask("b", "flight")
    teller.put(FAILED)  # the whole work
    assert teller.now() == (FAILED, "", "")


def test_the_whole_work_goes_on(teller: Teller, place: Place) -> None:
    """A status without an asker is that of the whole work, and takes its question back."""
    teller.ask("a", "hotel")
    teller.ask("b", "flight")
    teller.put(RUNNING)
    assert (teller.now(), place.thread().HasField("question")) == ((RUNNING, "", ""), False)


def test_an_answer_names_what_is_asked_now(teller: Teller, place: Place) -> None:
    """The daemon takes one answer to the told question, and none to an earlier one."""
    teller.ask("a", "hotel")
    answer = SendSignalRequest(
        namespace=place.namespace, thread=THREAD, name="approve", options=WriteOptions(request_id="s")
    )
    answer.wait_id = "gone"
    assert refused(place.wire.signals.SendSignal, answer).reason == "STALE_ANSWER"
    answer.wait_id = "a:hotel"
    place.wire.signals.SendSignal(answer, timeout=TIMEOUT_S)
    answer.options.request_id = "s2"
    assert refused(place.wire.signals.SendSignal, answer).reason == "STALE_ANSWER"


def reply(place: Place, wait_id: str, request_id: str, *parts: str) -> Signal:
    request = SendSignalRequest(namespace=place.namespace, thread=THREAD, name="approve", wait_id=wait_id, parts=parts)
    request.options.request_id = request_id
    sent: Signal = place.wire.signals.SendSignal(request, timeout=TIMEOUT_S).signal
    return sent


def listed(place: Place, version: int = 0) -> list[str]:
    """The ids of the signals that wait, or of those that a version acknowledged; the count and a read say the same."""
    request = ListSignalsRequest(namespace=place.namespace, thread=THREAD)
    if version:
        request.acknowledged_by.version = version
        return [each.signal_id for each in place.wire.signals.ListSignals(request, timeout=TIMEOUT_S).signals]
    found = place.wire.signals.ListSignals(request, timeout=TIMEOUT_S).signals
    read = HydrateRequest(namespace=place.namespace, thread=THREAD, include_signals=True)
    assert list(place.wire.checkpoints.Hydrate(read, timeout=TIMEOUT_S).signals) == list(found)
    assert place.thread().pending_signals == len(found)
    return [each.signal_id for each in found]


def test_an_answer_is_about_what_was_asked_when_it_came(teller: Teller, place: Place) -> None:
    """A part that joins the question later was answered by nobody."""
    teller.ask("a", "hotel")
    assert list(reply(place, "a:hotel", "s").parts) == ["hotel"]
    teller.ask("b", "flight")
    assert teller.now()[1] == "a:hotel"
    (found,) = backup(place)
    assert list(found.signal.signal.parts) == ["hotel"]


def test_each_part_has_an_answer_of_its_own(teller: Teller, place: Place) -> None:
    """A part is answered once, and not when it is over; what a signal says of no part is about all that are left."""
    for name in ("hotel", "flight", "seat", "meal"):
        teller.ask(f"{name} asker", name)
    wait_id = teller.now()[1]
    assert list(reply(place, wait_id, "1", "flight").parts) == ["flight"]
    assert list(reply(place, wait_id, "1").parts) == ["flight"]  # a retry names what it likes
    for wrong in (("flight",), ("flight", "seat"), ("gone",)):
        request = SendSignalRequest(
            namespace=place.namespace,
            thread=THREAD,
            name="approve",
            wait_id=wait_id,
            parts=wrong,
            options=WriteOptions(request_id="wrong"),
        )
        assert refused(place.wire.signals.SendSignal, request).reason == "STALE_ANSWER"
    teller.put(RUNNING, asker="meal asker")
    assert list(reply(place, wait_id, "2").parts) == ["hotel", "seat"]
    all_of_it = SendSignalRequest(namespace=place.namespace, thread=THREAD, name="approve", wait_id=wait_id)
    all_of_it.options.request_id = "late"
    assert refused(place.wire.signals.SendSignal, all_of_it).reason == "STALE_ANSWER"


def test_an_answer_is_used_when_its_parts_are_over(teller: Teller, place: Place) -> None:
    """With the write that says so, and not before; the answer of the last parts waits for the next version."""
    for name in ("hotel", "flight", "seat"):
        teller.ask(f"{name} asker", name)
    first, second = (reply(place, "hotel asker:hotel", str(at), *parts).signal_id for at, parts in
                     enumerate((("hotel", "flight"), ("seat",))))  # fmt: skip
    other = reply(place, "", "other").signal_id
    teller.put(RUNNING, asker="hotel asker")
    assert listed(place) == [first, second, other]
    teller.put(FAILED, asker="flight asker")
    teller.ask("flight asker", "flight")
    assert listed(place) == [first, second, other]
    teller.ask("flight asker", "meal")  # the answer to the flight led to another question
    assert listed(place) == [second, other]
    teller.put(RUNNING, asker="flight asker")
    teller.put(RUNNING, asker="seat asker")
    assert (teller.now(), listed(place)) == ((RUNNING, "", ""), [second, other])


def test_effects_acknowledge_what_they_hold(teller: Teller, place: Place) -> None:
    """The signal is gone for everybody at once, and the next version of main tells who answered."""
    teller.ask("a", "hotel")
    answer, other = reply(place, "a:hotel", "s").signal_id, reply(place, "", "other").signal_id
    failed = PutEffectsRequest(
        namespace=place.namespace, thread=THREAD, options=WriteOptions(request_id="in progress"), ack_signals=[answer]
    )
    claim = BeginEffectRequest(
        namespace=place.namespace,
        thread=THREAD,
        key="mine",
        options=WriteOptions(request_id="b"),
        holder={"name": "h", "incarnation": "i"},
    )
    place.wire.effects.BeginEffect(claim, timeout=TIMEOUT_S)
    failed.effects.add(key="held", value=Value(media_type="text/plain", data=b"x"))
    failed.effects.add(key="mine", value=Value(media_type="text/plain", data=b"x"))
    assert refused(place.wire.effects.PutEffects, failed).reason == "CLAIM_LOST"
    assert listed(place) == [answer, other]
    for _ in range(2):  # a retry, too
        teller.ask("a", "hotel", ack_signals=[answer, "unknown"], request_id="asks again", key="k")
        assert listed(place) == [other]
    again = SendSignalRequest(
        namespace=place.namespace, thread=THREAD, name="approve", options=WriteOptions(request_id="s2")
    )
    again.wait_id = "a:hotel"
    second = place.wire.signals.SendSignal(again, timeout=TIMEOUT_S).signal.signal_id
    assert listed(place) == [other, second]  # what is asked now was answered by nobody
    assert [part.signal.signal.signal_id for part in backup(place)] == [other, second]
    place.wire.save(place.request(branch="side", request_id="aside", expected_version=0, parent={"version": 2}))
    assert listed(place, 3) == []
    place.wire.save(place.request(request_id="next", ack_signals=[other]))
    assert (listed(place), sorted(listed(place, 4))) == ([second], sorted([answer, other]))


def backup(place: Place) -> list[Any]:
    """The signals in a backup."""
    asked = ExportThreadRequest(namespace=place.namespace, thread=THREAD)
    parts = [part for each in place.wire.backups.ExportThread(asked, timeout=TIMEOUT_S) for part in each.parts]
    return [part for part in parts if part.HasField("signal")]


def test_a_question_ends_where_it_is_full(teller: Teller, place: Place) -> None:
    """Parts beyond the limit are left out, and the asker asks them again later."""
    for number in range(5):
        teller.ask(f"a{number}", *(f"{number}-{index}" for index in range(30)))
    assert len(place.thread().question.parts) == 100


def test_a_retry_tells_nothing_anew(teller: Teller) -> None:
    """The answer of a call that was written is given again, whatever was told since."""
    teller.ask("a", "hotel", request_id="r", key="k")
    teller.put(RUNNING)
    teller.ask("a", "hotel", request_id="r", key="k")
    assert teller.now()[0] == RUNNING


def test_a_call_that_writes_no_effect_tells_nothing(teller: Teller) -> None:
    """A result that was there already is no news."""
    teller.put(RUNNING, key="k")
    answer = teller.put(FAILED, key="k", rule=Effect.CONFLICT_RULE_KEEP)
    assert (answer.written, teller.now()[0]) == (0, RUNNING)


def test_a_copy_waits_as_its_source_does(teller: Teller, place: Place) -> None:
    """A fork of the head, a whole copy and a restored thread have the status that was told."""
    teller.ask("a", "hotel")
    for name, whole in (("one", False), ("all", True)):
        request = ForkThreadRequest(
            namespace=place.namespace,
            thread=THREAD,
            new_thread=name,
            all_versions=whole,
            options=WriteOptions(request_id=name),
        )
        assert place.wire.threads.ForkThread(request, timeout=TIMEOUT_S).thread.status == WAITING
    older = ForkThreadRequest(
        namespace=place.namespace, thread=THREAD, new_thread="older", options=WriteOptions(request_id="o")
    )
    older.version.version = 1
    assert place.wire.threads.ForkThread(older, timeout=TIMEOUT_S).thread.status == RUNNING
    asked = ExportThreadRequest(namespace=place.namespace, thread=THREAD)
    parts = [part for each in place.wire.backups.ExportThread(asked, timeout=TIMEOUT_S) for part in each.parts]
    begin = ImportBegin(namespace=place.namespace, thread="restored", options=WriteOptions(request_id="restore"))
    made = place.wire.backups.ImportThread(iter([ImportThreadRequest(begin=begin, parts=parts)]), timeout=TIMEOUT_S)
    assert (made.thread.status, made.thread.wait_id, made.thread.question.prompt) == (WAITING, "a:hotel", "hotel?")


WRONG: dict[str, tuple[str, Callable[[PutEffectsRequest], Any]]] = {
    "an unknown status": ("status", lambda it: setattr(it, "status", 77)),
    "a question without a status": ("status", lambda it: it.ClearField("status")),
    "a question of the failed": ("status", lambda it: setattr(it, "status", FAILED)),
    "no wait id": ("wait_id", lambda it: it.ClearField("wait_id")),
    "no anchor": ("effects[0].anchor", lambda it: it.effects[0].ClearField("anchor")),
    "two anchors": ("effects[1].anchor", lambda it: setattr(it.effects[1], "anchor", "other")),
    "an asker without parts": ("question.parts", lambda it: it.question.ClearField("parts")),
    "a part without a name": ("question.parts[0].name", lambda it: it.question.parts[0].ClearField("name")),
    "one name twice": ("question.parts[1].name", lambda it: it.question.parts.add(name="hotel")),
    "too many parts": ("question.parts", lambda it: [it.question.parts.add(name=str(at)) for at in range(100)]),
    "too much text": ("question.parts", lambda it: setattr(it.question.parts[0], "prompt", "x" * (64 << 10) + "x")),
    "a long detail": ("status_detail", lambda it: setattr(it, "status_detail", "x" * 4097)),
    "a long asker": ("asker", lambda it: setattr(it, "asker", "x" * 1025)),
}


def test_what_cannot_be_told_is_refused(untouched: Place) -> None:
    """The error names the field, and nothing is written."""
    value = Value(media_type="text/plain", data=b"x")
    for name, (field, spoil) in WRONG.items():
        request = PutEffectsRequest(
            namespace=untouched.namespace, thread=THREAD, options=WriteOptions(request_id="wrong"), status=WAITING,
            wait_id="w", asker="a", effects=[Effect(anchor=HEAD, key=key, value=value) for key in "ab"],
            question=Question(parts=[QuestionPart(name="hotel", prompt="hotel?")]),
        )  # fmt: skip
        spoil(request)
        refusal = refused(untouched.wire.effects.PutEffects, request)
        assert (refusal.reason, refusal.field) == ("INVALID_FIELD", field), name
    save = untouched.request(wait_id="w", question=Question(parts=[QuestionPart()]), diff=appends("third"))
    assert refused(untouched.wire.checkpoints.Save, save).field == "question.parts[0].name"
