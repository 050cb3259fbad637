"""The danger: a trace that ends at the daemon's door, or one that makes calls slow, unsafe or talkative."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from tests.daemon.process import Fleet, eventually, write_steps
from tests.daemon.wire import Wire, appends
from tests.service.agents import Agent, Stream
from tests.tracing.collector import Collector, collecting

from stateward import AsyncClient
from stateward.testing import run_daemon
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward.v1.writer_service_pb2 import WriteRequest, WriterSave
from stateward_sidecar.errors import StartError
from stateward_sidecar.settings import load_settings

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = (("traceparent", f"00-{TRACE}-{SPAN}-01"),)
UNSAMPLED = (("traceparent", f"00-{TRACE[::-1]}-{SPAN}-00"),)
SAVE = "stateward.v1.CheckpointService/Save"
SECRET = "secret-name"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with collecting() as running:
        yield running


def test_a_save_is_part_of_its_callers_trace(collector: Collector) -> None:
    """The call lies under the caller's span, queue and commit under the call, in the order in which they happened."""
    with run_daemon(traces=collector.url) as daemon:
        wire = Wire(daemon.target)
        wire.checkpoints.Save(
            SaveRequest(thread=SECRET, diff=appends(SECRET), options=WriteOptions(request_id="one")), metadata=PARENT
        )
        wire.close()
        call = collector.wait_for(SAVE)
        assert (call.trace_id.hex(), call.parent_span_id.hex()) == (TRACE, SPAN)
        collector.wait_for("commit")
        found = collector.of(call.trace_id)
    queue, commit = found["queue"], found["commit"]
    assert queue.parent_span_id == commit.parent_span_id == call.span_id
    assert call.start_time_unix_nano <= queue.start_time_unix_nano <= queue.end_time_unix_nano
    assert queue.end_time_unix_nano <= commit.start_time_unix_nano < commit.end_time_unix_nano
    assert {each.key: each.value.int_value for each in commit.attributes} == {"stateward.batch_writes": 1}
    assert collector.resources[0]["service.name"] == "stateward-sidecar"


def test_a_ship_is_linked_with_its_saves(collector: Collector, tmp_path: Path) -> None:
    """The ship has its own trace, with its requests to the bucket; the save waits for it in a span."""
    fleet = Fleet(tmp_path, traces=collector.url)
    try:
        client = fleet.client(fleet.machine("first"))
        write_steps(client, "job", 1)

        def a_save_has_waited() -> bool:  # on a busy machine a save may be archived before it can begin to wait
            write_steps(client, "job", 1, archived=True)
            return any(span.name == "archive" for span in collector.spans)

        eventually(a_save_has_waited)
        ship = collector.wait_for("ship", lambda span: len(span.links) > 0)
        waiting = collector.wait_for("archive")
        # A call's span ends after those below it, and may be on its way.
        eventually(lambda: {*(link.span_id for link in ship.links), waiting.parent_span_id} <= saves(collector))
        requests = [span for span in collector.spans if span.parent_span_id == ship.span_id]
        assert requests
        assert all(span.name.startswith("bucket ") for span in requests)
    finally:
        fleet.close()


def saves(collector: Collector) -> set[bytes]:
    return {span.span_id for span in collector.spans if span.name == SAVE}


def test_a_read_that_needs_the_bucket(collector: Collector, tmp_path: Path) -> None:
    """The requests that a machine without the thread makes for a hydrate lie under the call."""
    fleet = Fleet(tmp_path, traces=collector.url)
    try:
        write_steps(fleet.client(fleet.machine("first")), "job", 1, archived=True)
        assert fleet.client(fleet.machine("second")).thread("job").hydrate().version == 1
        hydrate = "stateward.v1.CheckpointService/Hydrate"
        collector.wait_for(hydrate, lambda span: _bucket_of(collector, span) > 0)
    finally:
        fleet.close()


def _bucket_of(collector: Collector, call: Any) -> int:
    inside = [span for span in collector.spans if span.trace_id == call.trace_id]
    return sum(span.name == "bucket get" and span.parent_span_id == call.span_id for span in inside)


def test_errors_and_sampling(collector: Collector) -> None:
    """A refused call has its code, a caller that does not record is not recorded, and no names are in any span."""
    with run_daemon(traces=collector.url) as daemon:
        wire = Wire(daemon.target)
        request = SaveRequest(thread=SECRET, diff=appends(SECRET), options=WriteOptions(request_id="one"))
        wire.checkpoints.Save(request, metadata=UNSAMPLED)
        asked = HydrateRequest(thread=f"{SECRET}-2", version=VersionRef(version=7))
        with pytest.raises(Exception, match="NOT_FOUND"):
            wire.checkpoints.Hydrate(asked, metadata=PARENT)
        wire.close()
        call = collector.wait_for("stateward.v1.CheckpointService/Hydrate")
    codes = {each.key: each.value.string_value for each in call.attributes}
    assert codes["rpc.response.status_code"] == "NOT_FOUND"
    assert not [span for span in collector.spans if span.trace_id.hex() == TRACE[::-1]]
    assert SECRET not in str(collector.spans)


FRAME = "stateward.v1.WriterService/Frame"


def own_tracer() -> trace.Tracer:
    """A tracer of the program that uses the client. Its spans are sent nowhere."""
    return TracerProvider().get_tracer("agent")


def parent_of(span: Any) -> tuple[int, int]:
    return int.from_bytes(span.trace_id, "big"), int.from_bytes(span.parent_span_id, "big")


def place_of(span: trace.Span) -> tuple[int, int]:
    found = span.get_span_context()
    return found.trace_id, found.span_id


@pytest.mark.parametrize("wire", ["frames", "grpc"])
async def test_the_python_client_names_its_span(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, wire: str
) -> None:
    """Calls of both clients lie under the span in which the program makes them, also if many share a stream."""
    monkeypatch.setenv("STATEWARD_WIRE", wire)
    tracer = own_tracer()
    callers = []

    async def append(client: AsyncClient, number: int) -> None:
        with tracer.start_as_current_span("one of many") as span:
            callers.append(span)
            await client.thread(f"t-{number}").append("log", number)

    with run_daemon(traces=collector.url) as daemon:
        async with daemon.async_client() as asynchronous:
            with tracer.start_as_current_span("asyncio") as first:
                await asynchronous.thread("a").append("log", 1)
                await asynchronous.thread("a").blobs.write(bytes(2_000_000))
            await asyncio.gather(*(append(asynchronous, number) for number in range(12)))
        with daemon.client() as client, tracer.start_as_current_span("blocking") as second:
            client.thread("a").append("log", 2)
            client.thread("a").blobs.write(bytes(2_000_000))
        for span in (first, second):
            for name in (SAVE, "stateward.v1.BlobService/WriteBlob"):
                collector.wait_for(name, lambda found, span=span: parent_of(found) == place_of(span))
        for span in callers:
            collector.wait_for(SAVE, lambda found, span=span: parent_of(found) == place_of(span))
        is_streamed = "stateward.v1.CallService/RunCalls" in {found.name for found in collector.spans}
        assert is_streamed is (wire == "grpc")


def test_each_frame_of_a_stream_has_its_own_trace(collector: Collector) -> None:
    """Saves that are sent one after the other on a stream lie under their callers' spans, with queue and commit."""
    tracer = own_tracer()
    with run_daemon(traces=collector.url) as daemon, daemon.client() as client:
        callers = []
        with client.thread(SECRET).writer() as writer:
            state = client.thread(SECRET).hydrate()
            for number in range(3):
                state.slots["n"] = number
                with tracer.start_as_current_span("step") as span:
                    callers.append(place_of(span))
                    writer.send(state)
            state.slots["n"] = 4
            writer.save(state)  # by somebody without a span
        stream = collector.wait_for("stateward.v1.WriterService/Write")
        frames = [collector.wait_for(FRAME, lambda found, each=each: parent_of(found) == each) for each in callers]
    for frame in frames:
        below = {span.name for span in collector.spans if span.parent_span_id == frame.span_id}
        assert below == {"queue", "commit"}
        codes = {each.key: each.value.string_value for each in frame.attributes}
        assert codes["rpc.response.status_code"] == "OK"
    assert [span.name for span in collector.spans].count(FRAME) == 3
    assert "commit" in {span.name for span in collector.spans if span.parent_span_id == stream.span_id}
    assert SECRET not in str(collector.spans)


class TracedStream(Stream):
    """Its frames lie under a span."""

    def _put(self, save: SaveRequest) -> None:
        item = WriterSave(frame=self.number, save=save, traceparent=PARENT[0][1])
        self._queue.put(WriteRequest(save=item))


def codes_of(spans: list[Any]) -> list[str]:
    facts = [{each.key: each.value.string_value for each in span.attributes} for span in spans]
    return [each["rpc.response.status_code"] for each in facts]


def test_frames_that_are_refused_or_not_answered(collector: Collector) -> None:
    """A frame's span ends with the code of its error; if the stream breaks, no commit lacks the span of its frame."""
    with run_daemon(traces=collector.url) as daemon:
        wire = Wire(daemon.target)
        stream = TracedStream(Agent(wire, "default", "ada"))
        stream.send(expected_version=7)
        stream.send()
        refused = stream.answers(2)
        stream.reset()
        stream.next()
        for _ in range(100):
            stream.send()
        stream.next()
        stream.call.cancel()
        wire.close()
        collector.wait_for("stateward.v1.WriterService/Write")
    assert refused == ["VERSION_MISMATCH", "WRITER_ABORTED"]
    frames = [span for span in collector.spans if span.name == FRAME]
    assert codes_of(frames[:2]) == ["ABORTED", "ABORTED"]
    assert set(codes_of(frames[2:])) <= {"OK", "CANCELLED"}
    assert "OK" in codes_of(frames[2:])
    commits = {span.parent_span_id for span in collector.spans if span.name == "commit"}
    assert commits <= {span.span_id for span in collector.spans}


def test_log_lines_name_the_trace(collector: Collector) -> None:
    """A line about a call leads to its trace."""
    with run_daemon(traces=collector.url, log_level="debug") as daemon:
        wire = Wire(daemon.target)
        wire.checkpoints.Save(
            SaveRequest(thread="t", diff=appends("x"), options=WriteOptions(request_id="one")), metadata=PARENT
        )
        wire.close()
        lines = [json.loads(line) for line in daemon.stderr.splitlines()]
    assert [line["trace_id"] for line in lines if line["event"] == "call"] == [TRACE]
    assert "trace_id" not in lines[0]


def test_no_collector_is_there(tmp_path: Path) -> None:
    """Calls are served as always, the log stays in its form, and the daemon ends in time."""
    with run_daemon(tmp_path / "data", traces="http://127.0.0.1:9") as daemon:
        with daemon.client() as client:
            for number in range(20):
                client.thread("job").append("messages", number)
        assert daemon.stop() == 0
        assert all(line.startswith("{") for line in daemon.stderr.splitlines()), daemon.stderr


def test_nobody_pays_who_does_not_ask() -> None:
    """A daemon without --traces loads nothing of OpenTelemetry, and a client nothing at all of it."""
    look = "print(*(each for each in sys.modules if 'opentelemetry' in each or 'sidecar.tracing' in each))"
    program = f"import sys, stateward, stateward_sidecar.app; {look}"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == []


@pytest.mark.parametrize("url", ["localhost:4317", "http://localhost", "http://u:p@host:4317", "ftp://host:1"])
def test_what_is_no_collector(url: str) -> None:
    """One line says what to write, without a password."""
    with pytest.raises(StartError, match="--traces") as refused:
        load_settings(["--traces", url], {"HOME": "/"})
    assert "u:p" not in refused.value.message
