"""Leases and writers' streams, as the wire sees them: who was replaced writes nothing, and nothing lands on a hole."""

from __future__ import annotations

import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.archive.rig import fleet
from tests.service.conftest import THREAD, Place
from tests.service.wire import Refusal, Wire, appends, refusal_of, refused, sets

from stateward.testing import Daemon, run_daemon
from stateward.v1 import lease_service_pb2 as l
from stateward.v1 import writer_service_pb2 as w
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest
from stateward.v1.effect_pb2 import Effect
from stateward.v1.effect_service_pb2 import ListEffectsRequest
from stateward.v1.error_reason_pb2 import ErrorReason
from stateward.v1.lease_pb2 import Holder
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_service_pb2 import ATTACH_MODE_TAKE_OVER, AttachRequest, DetachRequest

TERM_S = 30


def new_id() -> str:
    return uuid.uuid4().hex


class Agent:
    """One process of an agent."""

    def __init__(self, wire: Wire, namespace: str, name: str, thread: str = THREAD) -> None:
        self.wire = wire
        self.place: dict[str, Any] = {"namespace": namespace, "thread": thread}
        self.holder = Holder(name=name, incarnation=new_id())

    def ask(self, **fields: Any) -> l.AcquireLeaseRequest:
        given = {"holder": self.holder, "request_id": new_id(), **fields}
        return l.AcquireLeaseRequest(**self.place, term={"seconds": given.pop("term", TERM_S)}, **given)

    def take(self, **fields: Any) -> int:
        """The token."""
        return int(self.wire.leases.AcquireLease(self.ask(**fields), timeout=20, wait_for_ready=True).lease.token)

    def refused(self, **fields: Any) -> Refusal:
        return refused(self.wire.leases.AcquireLease, self.ask(**fields))

    def release(self, token: int) -> bool:
        request = l.ReleaseLeaseRequest(**self.place, token=token)
        return bool(self.wire.leases.ReleaseLease(request, timeout=20).released)

    def save(self, token: int = 0) -> SaveRequest:
        return SaveRequest(**self.place, diff=appends("more"), lease_token=token, request_id=new_id())

    def open(self, **fields: Any) -> Stream:
        return Stream(self, **fields)


class Stream:
    """A writer's stream, frame by frame."""

    awaited: Callable[[int], bool] = staticmethod(lambda number: False)
    """Which frames say that nothing follows before their answer; it is only a hint, so they may say it wrongly."""

    def __init__(self, agent: Agent, **fields: Any) -> None:
        self.agent, self.number, self.sent = agent, 0, []
        self._queue: queue.SimpleQueue[w.WriteRequest | None] = queue.SimpleQueue()
        self.call = agent.wire.writers.Write(iter(self._queue.get, None), timeout=30, wait_for_ready=True)
        self.request_id = fields.setdefault("request_id", new_id())
        given = {**agent.place, "holder": agent.holder, "term": {"seconds": TERM_S}, **fields}
        self._queue.put(w.WriteRequest(open=w.OpenWriter(**given)))
        self.opened = self.next().opened
        self.token = self.opened.lease.token

    def send(self, **fields: Any) -> SaveRequest:
        """A frame; on top of whatever is the head unless it says otherwise."""
        self.number += 1
        given = {"lease_token": self.token, "request_id": new_id(), "diff": appends(str(self.number)), **fields}
        save = SaveRequest(**given)
        self.sent.append(save)
        self._put(save)
        return save

    def resend(self, save: SaveRequest) -> None:
        self.number += 1
        self._put(save)

    def _put(self, save: SaveRequest) -> None:
        item = w.WriterSave(frame=self.number, save=save, awaited=self.awaited(self.number))
        self._queue.put(w.WriteRequest(save=item))

    def reset(self) -> None:
        self._queue.put(w.WriteRequest(reset=w.ResetWriter()))

    def next(self) -> w.WriteResponse:
        return next(self.call)

    def answers(self, count: int) -> list[Any]:
        """For each frame its version, or why it was refused."""
        found = [self.next() for _ in range(count)]
        return [read(each) for each in found]

    def read_to_the_end(self, found: list[Any]) -> Refusal:
        """Adds all answers that still come; returns what ended the stream."""
        try:
            found.extend(map(read, self.call))
        except grpc.RpcError as error:
            return refusal_of(error)
        raise AssertionError("the stream ended well")

    def end(self) -> None:
        """Gives the lease back."""
        self._queue.put(None)
        assert list(self.call) == []

    def cut(self) -> None:
        """As a process that dies."""
        self.call.cancel()
        self._queue.put(None)


def read(answer: w.WriteResponse) -> Any:
    if answer.HasField("saved"):
        return answer.saved.save.version
    if answer.HasField("refused"):
        return ErrorReason.Name(answer.refused.reason).removeprefix("ERROR_REASON_")
    return answer.WhichOneof("frame")


@pytest.fixture
def make(wire: Wire, place: Place) -> Callable[[str], Agent]:
    """Agents on the thread of the test."""
    return lambda name: Agent(wire, place.namespace, name)


@pytest.fixture(params=["pipelined", "awaited", "mixed"])
def hints(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What frames say of those after them: the truth, the opposite, and now this, now that."""
    kinds = {"pipelined": lambda number: False, "awaited": lambda number: True, "mixed": lambda number: number % 3 > 0}
    monkeypatch.setattr(Stream, "awaited", staticmethod(kinds[request.param]))


def messages(wire: Wire, agent: Agent) -> list[str]:
    state = wire.hydrate(HydrateRequest(**agent.place))
    return [entry.data.decode() for entry in state.logs["messages"].entries]


# -- leases --------------------------------------------------------------------------------------------------------


def test_only_the_newest_token_writes(make: Callable[[str], Agent], wire: Wire) -> None:
    """Without it, with an older one, after its return, with one that never was: LEASE_HELD, and nothing is written."""
    one, two = make("one"), make("two")
    token = one.take()
    assert two.refused().reason == "LEASE_HELD"
    assert refused(wire.checkpoints.Save, two.save()).reason == "LEASE_HELD"
    wire.save(one.save(token))
    newer = two.take(take_over=True)
    assert newer > token
    stale = refused(wire.checkpoints.Save, one.save(token))
    assert (stale.reason, stale.metadata["token"]) == ("LEASE_HELD", str(newer))
    assert one.release(token) is False
    wire.save(two.save(newer))
    assert two.release(newer) is True
    for wrong in (token, newer, newer + 1):
        assert refused(wire.checkpoints.Save, two.save(wrong)).reason == "LEASE_HELD"
    wire.save(one.save())
    assert messages(wire, one).count("more") == 3


def test_an_attempt_that_is_repeated_gets_the_same_lease(make: Callable[[str], Agent]) -> None:
    """The request id names the attempt; a second one of the same process is another one, and waits as anybody."""
    one = make("one")
    asked = one.ask()
    first = one.wire.leases.AcquireLease(asked).lease.token
    assert one.wire.leases.AcquireLease(asked).lease.token == first
    assert one.refused().reason == "LEASE_HELD"


def test_a_restarted_holder_takes_what_it_held(make: Callable[[str], Agent]) -> None:
    """The same name with another incarnation is the same agent after its death: it does not wait."""
    token = make("worker").take(term=3600)
    assert make("worker-2").refused().reason == "LEASE_HELD"
    assert make("worker").take() > token


def test_who_waits_gets_it_when_it_is_given_back(make: Callable[[str], Agent]) -> None:
    """At once: long before the term ends."""
    one, two, granted = make("one"), make("two"), []
    token = one.take(term=600)
    waiting = threading.Thread(target=lambda: granted.append(two.take(wait={"seconds": 15})))
    waiting.start()
    begun = time.monotonic()
    assert one.release(token)
    waiting.join()
    assert granted[0] > token
    assert time.monotonic() - begun < 4  # the next look without notice would be after 5 s


def test_a_lease_that_ends_goes_to_who_waits(make: Callable[[str], Agent], wire: Wire) -> None:
    """After its term, and not before; a save of the old holder passes until somebody has taken it."""
    one, two = make("one"), make("two")
    begun = time.monotonic()
    token = one.take(term=1)
    newer = two.take(wait={"seconds": 10})
    assert time.monotonic() - begun >= 1
    assert refused(wire.checkpoints.Save, one.save(token)).reason == "LEASE_HELD"
    wire.save(two.save(newer))


def test_a_save_is_repeated_under_another_lease(make: Callable[[str], Agent], wire: Wire) -> None:
    """A restarted agent has another token: its save of before is the same save, answered and not made again."""
    one, again = make("one"), make("one")
    request = one.save(one.take())
    first = wire.save(request)
    request.lease_token = again.take()
    assert (wire.save(request).version, wire.save(request).replayed) == (first.version, True)


# -- streams -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("hints")
def test_nothing_lands_on_a_hole(make: Callable[[str], Agent], wire: Wire) -> None:
    """One refused frame in the middle: those before it are written, those after it are not, until the reset."""
    stream = make("one").open()
    assert stream.opened.version == 2
    for number in range(4):
        stream.send(expected_version=2 + number)
    stream.send(expected_version=3, diff=appends("wrong"))
    for _ in range(3):
        stream.send(diff=appends("hole"))  # unconditional: would fit anywhere
    stream.reset()
    stream.send(diff=appends("after"))
    found = stream.answers(8)
    assert found == [3, 4, 5, 6, "VERSION_MISMATCH", "WRITER_ABORTED", "WRITER_ABORTED", "WRITER_ABORTED"]
    reset = stream.next().reset
    assert (reset.version, len(reset.digest)) == (6, 16)  # not what was written after it
    assert stream.answers(1) == [7]
    stream.end()
    assert messages(wire, stream.agent) == ["first", "second", "1", "2", "3", "4", "after"]


@pytest.mark.usefixtures("hints")
@pytest.mark.parametrize(
    "wrong",
    [{"request_id": ""}, {"lease_token": 0}, {"lease_token": 77}, {"thread": "other"}, {"diff": sets("", "x")}],
    ids=["no request id", "no token", "wrong token", "another thread", "bad edit"],
)
def test_a_frame_refused_before_its_turn_makes_a_hole_too(make: Callable[[str], Agent], wrong: dict) -> None:
    """Refused by its look alone, while the frame before it is under way: what follows is refused all the same."""
    stream = make("one").open()
    stream.send()
    stream.send(**wrong)
    stream.send(diff=sets("big", "x" * 600_000))
    stream.send()
    assert (
        stream.answers(4)
        == [3, "LEASE_HELD" if wrong == {"lease_token": 77} else "INVALID_FIELD"] + ["WRITER_ABORTED"] * 2
    )
    stream.reset()
    stream.send()
    assert stream.answers(2) == ["reset", 4]
    stream.end()


@pytest.mark.usefixtures("hints")
def test_large_frames_keep_their_place(make: Callable[[str], Agent], wire: Wire) -> None:
    """Frames that go another way (large, or with effects) stand in the log where they were sent."""
    stream, expected = make("one").open(), ["first", "second"]
    for number in range(24):
        content = str(number) + "x" * (400_000 if number % 6 == 2 else 0)
        effects = [Effect(key=f"e{number}", value=Value(data=b"1"))] if number % 6 == 4 else []
        stream.send(diff=appends(content), expected_version=2 + number, effects=effects)
        expected.append(content)
    assert stream.answers(24) == list(range(3, 27))
    stream.end()
    assert messages(wire, stream.agent) == expected
    found = wire.effects.ListEffects(ListEffectsRequest(**stream.agent.place)).effects
    assert sorted(each.effect.key for each in found) == ["e10", "e16", "e22", "e4"]


@pytest.mark.usefixtures("hints")
def test_who_is_replaced_writes_no_more(make: Callable[[str], Agent], wire: Wire) -> None:
    """A takeover in mid-stream: the next frame is LEASE_HELD, also after a reset."""
    stream = make("one").open()
    stream.send()
    assert stream.answers(1) == [3]
    newer = make("two").take(take_over=True)
    stream.send()
    stream.send()
    stream.reset()
    stream.send()
    assert stream.answers(4) == ["LEASE_HELD", "WRITER_ABORTED", "reset", "LEASE_HELD"]
    stream.end()
    assert wire.thread(stream.agent.place["namespace"], THREAD).lease.token == newer


def test_a_broken_stream_keeps_its_lease(make: Callable[[str], Agent], wire: Wire) -> None:
    """For its term: nobody else gets it, and the same attempt gets it back with its token. An ended one gives it up."""
    one, two = make("one"), make("two")
    stream = one.open()
    stream.send()
    assert stream.answers(1) == [3]
    stream.cut()
    assert two.refused(wait={"nanos": 200_000_000}).reason == "LEASE_HELD"
    again = one.open(request_id=stream.request_id)
    assert again.token == stream.token
    again.resend(stream.sent[0])
    again.send()
    assert again.answers(2) == [3, 4]
    again.end()
    assert two.take() > stream.token


@pytest.mark.usefixtures("hints")
def test_a_frame_number_that_does_not_rise_ends_the_stream(make: Callable[[str], Agent]) -> None:
    """Answers could not be told apart: what was taken is answered, then INVALID_FIELD."""
    stream = make("one").open()
    stream.send()
    stream.number -= 1
    stream.send()
    assert stream.answers(1) == [3]
    with pytest.raises(grpc.RpcError) as caught:
        stream.next()
    assert refusal_of(caught.value).reason == "INVALID_FIELD"


# -- restarts, full disks, other machines --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mortal() -> Iterator[Daemon]:
    """A daemon that is killed and stopped."""
    with run_daemon(sweep_interval=0) as running:
        yield running


@pytest.mark.usefixtures("hints")
def test_a_killed_daemon_loses_no_answer_and_writes_nothing_twice(mortal: Daemon) -> None:
    """Killed with frames under way: what was answered is there, what is sent again is there once, in order."""
    wire = Wire(mortal.target)
    name = f"killed-{new_id()}"
    one = Agent(wire, "", "one", name)
    stream = one.open()
    for number in range(200):
        stream.send(expected_version=number)
    answered = stream.answers(20)
    mortal.kill()
    mortal.start()
    wire.close()
    one.wire = wire = Wire(mortal.target)
    kept = wire.thread("", name).version
    assert answered == list(range(1, 21))
    assert kept >= 20
    again = one.open(request_id=stream.request_id)
    assert (again.token, again.opened.version) == (stream.token, kept)
    for save in stream.sent[20:]:
        again.resend(save)
    assert again.answers(180) == list(range(21, 201))
    assert messages(wire, one) == [str(number + 1) for number in range(200)]
    again.end()
    wire.close()


def test_a_restart_gives_the_full_term_again(mortal: Daemon) -> None:
    """Nobody but the holder gets in right after a restart, and tokens go on growing."""
    wire = Wire(mortal.target)
    one, two = Agent(wire, "", "one", "term"), Agent(wire, "", "two", "term")
    token = one.take(term=1)
    mortal.kill()
    mortal.start()
    wire.close()
    two.wire = wire = Wire(mortal.target)
    begun = time.monotonic()
    assert wire.thread("", "term").lease.remaining.ToMilliseconds() > 700
    assert two.take(wait={"seconds": 10}) > token
    assert time.monotonic() - begun > 0.7
    wire.close()


@pytest.mark.usefixtures("hints")
def test_a_stop_does_not_wait_for_writers(mortal: Daemon) -> None:
    """What was taken is answered; open streams, and calls that wait for a lease, end with SHUTTING_DOWN at once."""
    wire = Wire(mortal.target)
    name, ends = f"stop-{new_id()}", []
    one, two = Agent(wire, "", "one", name), Agent(wire, "", "two", name)
    stream = one.open()
    waiting = threading.Thread(target=lambda: ends.append(two.refused(wait={"seconds": 60})))
    waiting.start()
    for number in range(50):
        stream.send(expected_version=number)
    assert stream.answers(1) == [1]
    begun = time.monotonic()
    mortal.stop()
    assert time.monotonic() - begun < 5
    waiting.join()
    found: list[Any] = [1]
    assert stream.read_to_the_end(found).reason == "SHUTTING_DOWN"
    assert ends[0].reason == "SHUTTING_DOWN"
    mortal.start()
    wire.close()
    wire = Wire(mortal.target)
    versions = [each for each in found if isinstance(each, int)]
    assert versions == list(range(1, len(versions) + 1))
    assert set(found[len(versions) :]) <= {"SHUTTING_DOWN", "WRITER_ABORTED"}
    assert wire.thread("", name).version >= len(versions)
    wire.close()


def test_a_full_disk_makes_no_hole() -> None:
    """Frames refused with DISK_FULL: not even a small one after them is written; after a reset, small ones are."""
    with run_daemon(map_size="4MiB", sweep_interval=0) as daemon:
        wire = Wire(daemon.target)
        stream = Agent(wire, "", "one", "full").open()
        for _ in range(120):
            stream.send(diff=appends(os.urandom(40_000).hex()))
            stream.send(diff=appends("small"))
        found = stream.answers(240)
        written = [each for each in found if isinstance(each, int)]
        assert written == list(range(1, len(written) + 1))
        assert 0 < len(written) < 240
        assert found[len(written)] == "DISK_FULL"
        assert set(found[len(written) + 1 :]) == {"WRITER_ABORTED"}
        stream.reset()
        assert stream.next().reset.version == len(written)
        assert wire.findings() == []
        wire.close()


def test_tokens_grow_across_machines(tmp_path: Path) -> None:
    """The lease goes with its thread: held on the next machine too, and every token is larger than all before it."""
    with fleet(tmp_path) as machines:
        a, b = machines.machine("a"), machines.machine("b")
        wire_a, wire_b = Wire(a.target), Wire(b.target)
        stream = Agent(wire_a, "", "one", "moves").open()
        for number in range(3):
            stream.send(expected_version=number, durability=DURABILITY_ARCHIVED)
        archived = [stream.next().saved.save for _ in range(3)]
        assert [each.durability for each in archived] == [DURABILITY_ARCHIVED] * 3
        a.kill()
        one, two = Agent(wire_b, "", "one", "moves"), Agent(wire_b, "", "two", "moves")
        with machines.client(b) as client:
            client.thread("moves").attach(take_over=True)
        assert two.refused().reason == "LEASE_HELD"
        next_one = one.open()  # the agent of before, in a new process
        assert next_one.token > stream.token
        assert next_one.token >> 32 > stream.token >> 32
        next_one.resend(archived_again(stream.sent[2], next_one.token))
        next_one.send(lease_token=stream.token)
        assert next_one.answers(2) == [3, "LEASE_HELD"]
        next_one.end()
        assert two.take() > next_one.token
        wire_a.close()
        wire_b.close()


def archived_again(save: SaveRequest, token: int) -> SaveRequest:
    """The same save under another lease."""
    again = SaveRequest()
    again.CopyFrom(save)
    again.lease_token = token
    return again


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_frame_that_was_applied_elsewhere_is_no_conflict(tmp_path: Path, gives_up: bool) -> None:
    """It expects more than a replaced owner has: HEAD is asked, as for a call. The thread is another's, or free again
    and the frame is answered as the first time; frames that were sent behind it are told to wait for a reset."""
    with fleet(tmp_path, archive_lease="30") as machines:
        first, second = (Wire(machines.machine(name).target) for name in ("first", "second"))
        stream = Agent(first, "default", "ada").open()
        for _ in range(3):
            stream.send(durability=DURABILITY_ARCHIVED)
        assert stream.answers(3) == [1, 2, 3]
        place = {"namespace": "default", "thread": THREAD}
        second.threads.Attach(AttachRequest(**place, mode=ATTACH_MODE_TAKE_OVER), timeout=20)
        other = Agent(second, "default", "bob")
        applied = SaveRequest(
            **place, diff=appends("once"), request_id="once", expected_version=3, durability=DURABILITY_ARCHIVED,
            lease_token=other.take(take_over=True),
        )  # fmt: skip
        assert second.save(applied).version == 4
        further = {**place, "diff": appends("twice"), "request_id": "twice", "lease_token": applied.lease_token}
        twice = SaveRequest(**further, expected_version=4, durability=DURABILITY_ARCHIVED)
        assert second.save(twice).version == 5
        if gives_up:
            second.threads.Detach(DetachRequest(**place), timeout=20)
        again = SaveRequest()
        again.CopyFrom(twice)
        again.lease_token = stream.token
        stream.resend(again)
        stream.send()
        answered, aborted = stream.next(), stream.next()
        if gives_up:
            assert (answered.saved.save.version, answered.saved.save.replayed) == (5, True)
        else:
            assert answered.refused.reason_name == "NOT_OWNER"
        assert aborted.refused.reason_name in ("WRITER_ABORTED", "LEASE_HELD")
        first.close()
        second.close()
