"""The danger: a trace that ends at the daemon's door, or one that makes calls slow, unsafe or talkative."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.archive.rig import Fleet, eventually, write_steps
from tests.service.wire import Wire, appends
from tests.tracing.collector import Collector, collecting

from stateward.testing import run_daemon
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest
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
        wire.checkpoints.Save(SaveRequest(thread=SECRET, diff=appends(SECRET), request_id="one"), metadata=PARENT)
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
        write_steps(client, "job", 1, archived=True)
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
        request = SaveRequest(thread=SECRET, diff=appends(SECRET), request_id="one")
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


def test_log_lines_name_the_trace(collector: Collector) -> None:
    """A line about a call leads to its trace."""
    with run_daemon(traces=collector.url, log_level="debug") as daemon:
        wire = Wire(daemon.target)
        wire.checkpoints.Save(SaveRequest(thread="t", diff=appends("x"), request_id="one"), metadata=PARENT)
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
    """A daemon without --traces loads nothing of OpenTelemetry."""
    look = "print(*(each for each in sys.modules if 'opentelemetry' in each or '.tracing' in each))"
    program = f"import sys, stateward_sidecar.app; {look}"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == []


@pytest.mark.parametrize("url", ["localhost:4317", "http://localhost", "http://u:p@host:4317", "ftp://host:1"])
def test_what_is_no_collector(url: str) -> None:
    """One line says what to write, without a password."""
    with pytest.raises(StartError, match="--traces") as refused:
        load_settings(["--traces", url], {"HOME": "/"})
    assert "u:p" not in refused.value.message
