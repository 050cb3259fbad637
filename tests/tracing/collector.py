"""An OpenTelemetry collector that keeps what it gets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

WAIT_S = 10.0


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """The spans so far, as protobuf messages."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.url = ""

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  (the contract's name)
        for found in request.resource_spans:
            self.resources.append({each.key: each.value.string_value for each in found.resource.attributes})
            for scope in found.scope_spans:
                self.spans.extend(scope.spans)
        return trace_service_pb2.ExportTraceServiceResponse()

    def wait_for(self, name: str, is_right: Callable[[Any], bool] = lambda span: True) -> Any:
        """Returns the first span of this name; fails if none comes."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            for span in list(self.spans):
                if span.name == name and is_right(span):
                    return span
            time.sleep(0.05)
        raise AssertionError(f"no span {name} among {sorted({span.name for span in self.spans})}")

    def of(self, trace_id: bytes) -> dict[str, Any]:
        """The spans of a trace by name."""
        return {span.name: span for span in self.spans if span.trace_id == trace_id}


@contextmanager
def collecting() -> Iterator[Collector]:
    """Runs a collector."""
    collector, server = Collector(), grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(0)
