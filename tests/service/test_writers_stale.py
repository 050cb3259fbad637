"""The danger: a writer whose lease somebody has taken still writes, or a frame is written after one before it was
refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import grpc
import pytest
from tests.daemon.wire import Wire, appends, refusal_of, refused, sets
from tests.service.agents import Agent, messages
from tests.service.conftest import THREAD

from stateward.v1.effect_pb2 import Effect
from stateward.v1.effect_service_pb2 import ListEffectsRequest
from stateward.v1.state_pb2 import Value

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
    request.options.lease_token = again.take()
    assert (wire.save(request).version, wire.save(request).receipt.replayed) == (first.version, True)


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
    assert (reset.version, len(reset.version_digest)) == (6, 16)  # not what was written after it
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
    assert wire.described(stream.agent.place["namespace"], THREAD).lease.token == newer


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
