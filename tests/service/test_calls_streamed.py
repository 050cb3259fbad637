"""The danger: a call on a stream is answered otherwise than by itself, is lost, or holds up the others."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.status_pb2 import Status
from tests.daemon.inside import daemon_inside
from tests.daemon.process import eventually
from tests.daemon.wire import DETAILS_KEY, THREAD, TIMEOUT_S, Wire, appends, refusal_of, replayed, sets
from tests.messages import to_write
from tests.service.conftest import Place

from stateward.testing import run_daemon
from stateward.v1.call_service_pb2 import CallAnswer, RunCallsRequest, RunCallsResponse, StreamedCall
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.effect_pb2 import Effect
from stateward.v1.effect_service_pb2 import PutEffectsRequest
from stateward.v1.state_pb2 import Value
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.measures import events
from stateward_sidecar.service.admission import memory, streams
from stateward_sidecar.service.calls import streamed


class Calls:
    """A stream of calls; the client sends what it likes."""

    def __init__(self, wire: Wire) -> None:
        self._messages: queue.SimpleQueue[RunCallsRequest | None] = queue.SimpleQueue()
        self.stream: Any = wire.calls.RunCalls(iter(self._messages.get, None), timeout=TIMEOUT_S)
        self.number = 0

    def send(self, *requests: Any, timeout: Duration | None = None) -> None:
        """Sends calls in one message, numbered from 1 on."""
        calls = []
        for request in requests:
            self.number += 1
            field = "save" if isinstance(request, SaveRequest) else "put_effects"
            calls.append(StreamedCall(call=self.number, timeout=timeout, **{field: request}))
        self._messages.put(RunCallsRequest(calls=calls))

    def put(self, message: RunCallsRequest | None) -> None:
        self._messages.put(message)

    def answers(self, count: int) -> dict[int, CallAnswer]:
        """The next answers, by number."""
        found: dict[int, CallAnswer] = {}
        while len(found) < count:
            for answer in next(self.stream).answers:
                assert answer.call not in found
                found[answer.call] = answer
        return found


@pytest.fixture
def calls(wire: Wire) -> Iterator[Calls]:
    opened = Calls(wire)
    yield opened
    opened.put(None)
    opened.stream.cancel()


def effects(place: Place, key: str, **options: Any) -> PutEffectsRequest:
    made = Effect(key=key, name="tool", value=Value(data=key.encode()))
    return to_write(PutEffectsRequest, namespace=place.namespace, thread=THREAD, effects=[made], **options)


def test_answers_are_those_of_calls_by_themselves(place: Place, wire: Wire, calls: Calls) -> None:
    """Saves and effects of one message are applied in their order, and a retry by itself has the same answer."""
    saves = [place.request(expected_version=2 + n, diff=appends(f"{n}"), request_id=f"s{n}") for n in range(3)]
    calls.send(*saves, effects(place, "k", request_id="e"))
    found = calls.answers(4)
    assert [found[n].save.version for n in (1, 2, 3)] == [3, 4, 5]
    for number, save in enumerate(saves, start=1):
        assert wire.save(save) == replayed(found[number].save)
    assert found[4].put_effects.written == 1
    assert wire.effects.PutEffects(effects(place, "k", request_id="e")) == replayed(found[4].put_effects)


WRONG: dict[str, Callable[[Place], Any]] = {
    "mismatch": lambda place: place.request(expected_version=1, diff=appends("x"), request_id="r"),
    "field": lambda place: place.request(expected_version=-1, diff=appends("x"), request_id="r"),
    "nothing": lambda place: SaveRequest(),
    "reused": lambda place: place.request(expected_version=2, diff=appends("y"), request_id="made-1"),
    "effect": lambda place: effects(place, "", request_id="r"),
    "no archive": lambda place: effects(place, "k", request_id="r", durability="DURABILITY_ARCHIVED"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_errors_are_those_of_calls_by_themselves(untouched: Place, wire: Wire, calls: Calls, wrong: str) -> None:
    """Code, message and details are the same, and the calls beside a refused one are answered."""
    request = WRONG[wrong](untouched)
    method = wire.checkpoints.Save if isinstance(request, SaveRequest) else wire.effects.PutEffects
    with pytest.raises(grpc.RpcError) as alone:
        method(request, timeout=TIMEOUT_S)
    details = dict(alone.value.trailing_metadata())[DETAILS_KEY]
    replay = untouched.request(expected_version=0, diff=appends("first", "second"), request_id="made-1")
    calls.send(request, replay)
    found = calls.answers(2)
    assert found[1].refused == Status.FromString(details)
    assert found[2].save.version == 1


def test_a_call_without_a_request_is_refused_alone(place: Place, calls: Calls) -> None:
    """Or with a method that this daemon does not know; the stream goes on."""
    calls.put(RunCallsRequest(calls=[StreamedCall(call=1)]))
    calls.number = 1
    calls.send(place.request(expected_version=2, diff=appends("x"), request_id="r"))
    found = calls.answers(2)
    assert "calls.request" in found[1].refused.message
    assert found[2].save.version == 3


@pytest.mark.parametrize("numbers", [[0], [-1], [2, 2], [3, 1], [], [*range(1, 258)]])
def test_calls_that_cannot_be_told_apart_end_the_stream(place: Place, calls: Calls, numbers: list[int]) -> None:
    """Nothing of that message is done; calls before it are answered first."""
    calls.put(RunCallsRequest(calls=[StreamedCall(call=number) for number in numbers]))
    with pytest.raises(grpc.RpcError) as error:
        calls.answers(1)
    assert refusal_of(error.value).reason == "INVALID_FIELD"


def varint(number: int) -> bytes:
    """A number as it is on the wire."""
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def in_field(number: int, data: bytes) -> bytes:
    """A field of bytes as it is on the wire."""
    return varint(number << 3 | 2) + varint(len(data)) + data


NOT_UTF8 = in_field(2, b"\xff")  # the thread of a SaveRequest
UNREADABLE: dict[str, tuple[bytes, str]] = {
    "not UTF-8": (in_field(4, NOT_UTF8), "request: the bytes are not a SaveRequest"),
    "cut short": (in_field(4, b"\x12\x05t"), "request: the bytes are not a SaveRequest"),
    "trace": (in_field(3, b"\xff"), "request: the bytes are not a StreamedCall"),
    "too many": (
        in_field(5, in_field(2, b"t") + in_field(4, in_field(1, b"k" * 70)) * 1001),
        "effects: more than 1,000 of them in one message",
    ),
}


@pytest.mark.parametrize("wrong", UNREADABLE)
def test_a_call_that_cannot_be_read_fails_alone(place: Place, wire: Wire, wrong: str) -> None:
    """The calls before it and behind it in its message are answered, and so are those of the next message."""
    body, message = UNREADABLE[wrong]
    good = [place.request(expected_version=2 + n, diff=appends("x"), request_id=f"r{n}") for n in range(3)]
    calls = [StreamedCall(call=n, save=save).SerializeToString() for n, save in zip((1, 3, 4), good, strict=True)]
    calls.insert(1, b"\x08\x02" + body)
    run = wire.channel.stream_stream("/stateward.v1.CallService/RunCalls", None, RunCallsResponse.FromString)
    messages = [b"".join(in_field(1, call) for call in part) for part in (calls[:3], calls[3:])]
    found = {answer.call: answer for each in run(iter(messages), timeout=TIMEOUT_S) for answer in each.answers}
    assert [found[n].save.version for n in (1, 3, 4)] == [3, 4, 5]
    assert found[2].refused.message == message
    assert found[2].refused.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]


def test_calls_without_memory_are_refused_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of a message that gets no memory is refused with QUEUE_FULL, and the stream goes on."""
    monkeypatch.setattr(memory.Budget.take, "__defaults__", (0.1,))
    with daemon_inside(tmp_path) as daemon:
        requests, stream = daemon.parts.room.requests, Calls(daemon.wire)
        held = requests.grant(requests.total_bytes)
        large = sets("s", "x" * 5000)
        saves = [SaveRequest(thread=f"t{n}", diff=large, options=WriteOptions(request_id="r")) for n in range(3)]
        stream.send(*saves)
        found = stream.answers(3)
        assert {answer.refused.code for answer in found.values()} == {grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]}
        daemon.loop.call_soon_threadsafe(held.close)
        stream.send(*saves)
        assert [answer.save.version for answer in stream.answers(3).values()] == [1, 1, 1]
        stream.put(None)


def test_a_client_that_reads_nothing_gets_every_answer(place: Place, calls: Calls) -> None:
    """A thousand calls are sent before the first answer is read. None is lost, and each is applied once."""
    for first in range(0, 1000, 100):
        calls.send(*(effects(place, f"{n}", request_id=f"r{n}") for n in range(first, first + 100)))
    calls.put(None)
    found = calls.answers(1000)
    assert len({answer.put_effects.receipt.sequence for answer in found.values()}) == 1000
    with pytest.raises(StopIteration):
        next(calls.stream)


def test_large_calls_share_no_memory_for_long(place: Place, calls: Calls) -> None:
    """Messages just below the limit are taken one after the other; a larger one ends the stream."""
    for n in range(5):
        large = sets("big", "x" * 900_000 + str(n))
        calls.send(place.request(expected_version=2 + n, diff=large, request_id=f"r{n}"))
        assert calls.answers(1)[n + 1].save.version == 3 + n
    calls.send(place.request(diff=sets("big", "x" * (1 << 20)), request_id="large"))
    with pytest.raises(grpc.RpcError) as error:
        calls.answers(1)
    assert refusal_of(error.value).reason == "STATE_TOO_LARGE"
    assert place.wire.save(place.request(expected_version=7)).version == 8


def test_a_late_call_is_refused_in_time(place: Place, calls: Calls) -> None:
    """A deadline that has passed fails the call alone, and nothing is written; a wrong deadline names its field."""
    calls.send(effects(place, "k", request_id="r"), timeout=Duration(nanos=1000))
    calls.send(effects(place, "k", request_id="r"), timeout=Duration(seconds=-1))
    calls.send(effects(place, "k", request_id="r"), timeout=Duration(seconds=20))
    found = calls.answers(3)
    assert found[1].refused.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    assert "calls.timeout" in found[2].refused.message
    assert found[3].put_effects.written == 1


def test_a_stop_answers_what_was_taken() -> None:
    """The stream of a daemon that stops ends with UNAVAILABLE after the answers, and the stop does not wait for it."""
    with run_daemon() as daemon:
        wire = Wire(daemon.target)
        stream = Calls(wire)
        for n in range(500):
            stream.send(SaveRequest(thread=f"t{n}", diff=appends("x"), options=WriteOptions(request_id="r")))
        saved = set(stream.answers(1))
        daemon.stop()
        try:
            for message in stream.stream:
                saved |= {answer.call for answer in message.answers if answer.HasField("save")}
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE  # noqa: PT017
        daemon.start()
        for n in range(500):
            answer = wire.save(SaveRequest(thread=f"t{n}", diff=appends("x"), options=WriteOptions(request_id="r")))
            assert answer.receipt.replayed == (n + 1 in saved), n
        stream.put(None)
        wire.close()


def test_a_client_that_never_reads_is_not_read(tmp_path: Path) -> None:
    """It sends invalid calls without end. The daemon keeps few answers, and drops them when the client leaves."""
    with daemon_inside(tmp_path) as daemon:
        stream, refused = Calls(daemon.wire), events.refusals["INVALID_FIELD"]
        for _ in range(300):
            stream.send(*[SaveRequest(thread="t" * 300)] * 100)
        bound, seen = daemon.parts.streamed._crowd, -1
        eventually(lambda: events.refusals["INVALID_FIELD"] > refused)
        while (taken := events.refusals["INVALID_FIELD"]) != seen:
            seen = taken
            time.sleep(0.3)
        assert 0 < seen - refused < 30_000
        assert bound._count <= 2 * streamed.CALLS_MAX
        stream.stream.cancel()
        eventually(lambda: not bound._count)


def test_streams_share_the_room_for_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of many streams are bounded together, and a stream without any is served beside a crowd."""
    monkeypatch.setattr(streams, "ALL_CALLS_MAX", 50)
    with daemon_inside(tmp_path) as daemon:
        bound = daemon.parts.streamed._crowd
        verbs, go_on = daemon.parts.streamed._verbs, asyncio.Event()

        async def save(request: Any, context: Any) -> Any:
            await go_on.wait()
            return await verbs["save"].run(request, context)

        daemon.parts.streamed._verbs = {"save": replace(verbs["save"], run=save)}
        opened = [Calls(daemon.wire) for _ in range(5)]
        for index, stream in enumerate(opened):
            stream.send(
                *(
                    SaveRequest(thread=f"t{index}-{n}", diff=appends("x"), options=WriteOptions(request_id="r"))
                    for n in range(100)
                )
            )
        eventually(lambda: bound._count >= 50)
        time.sleep(0.2)
        assert 50 <= bound._count <= 54
        daemon.loop.call_soon_threadsafe(go_on.set)
        for stream in opened:
            assert all(answer.save.version == 1 for answer in stream.answers(100).values())
            stream.put(None)
        eventually(lambda: not bound._count)


def test_memory_is_counted_until_the_work_has_ended(tmp_path: Path) -> None:
    """Work on a large call goes on when its client leaves, and so does its share of memory."""
    with daemon_inside(tmp_path) as daemon:
        memory = daemon.parts.room.requests
        stream = Calls(daemon.wire)
        with daemon.parts.store.context.writer.publishing:
            stream.send(
                SaveRequest(thread="t", diff=sets("big", "x" * 300_000), options=WriteOptions(request_id="r")),
                SaveRequest(),
            )
            eventually(lambda: daemon.parts.streamed._crowd._count == 1 and memory.used_bytes > 300_000)
            time.sleep(0.2)
            stream.stream.cancel()
            eventually(lambda: not daemon.parts.streamed._crowd._count)
            assert memory.used_bytes > 300_000
        eventually(lambda: not memory.used_bytes)
