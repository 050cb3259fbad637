"""Spans as OpenTelemetry makes them, sent to a collector by OTLP.

    call ──┬── queue     from the arrival of a write until the writer takes it
           ├── commit    two syncs, shared by all writes of a batch
           ├── archive   the wait for the archive, of a call that asked for it
           └── bucket …  requests that the call itself needs
    ship ───── bucket …  in a trace of its own, linked with the calls whose saves it archives

Finished spans wait in a bounded queue, and are dropped when the collector does not take them. No call waits for it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from stateward_sidecar.spans import Facts, WriteTimes, active

# Threads whose saves are remembered for their next ship, and saves of each.
THREADS_KEPT, SAVES_KEPT = 4096, 16
# Codes that are the server's fault, by OpenTelemetry's conventions for RPC.
_FAULTS = frozenset(("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"))


class OtelTracer:
    """The tracer of one daemon."""

    def __init__(self, endpoint: str, version: str, owner_id: str) -> None:
        resource = Resource.create({
            "service.name": "stateward-sidecar", "service.version": version, "service.instance.id": owner_id,
        })  # fmt: skip
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https:"))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("stateward_sidecar", version)
        self._propagator = TraceContextTextMapPropagator()
        self._saves: OrderedDict[str, list[SpanContext]] = OrderedDict()
        self._lock = threading.Lock()

    def begin_call(self, method: str, metadata: Sequence[tuple[str, str | bytes]]) -> Callable[[str], None]:
        """See ``spans.Tracer``."""
        carrier = {key: value for key, value in metadata if isinstance(value, str) and key.startswith("trace")}
        service, _, name = method.rpartition("/")
        begun = self._tracer.start_span(
            method, self._propagator.extract(carrier), SpanKind.SERVER,
            {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name},
        )  # fmt: skip
        active.set(begun)  # for the task of this call, which ends with it

        def end(code: str) -> None:
            begun.set_attribute("rpc.response.status_code", code)
            if code in _FAULTS:
                begun.set_status(Status(StatusCode.ERROR, code))
            begun.end()

        return end

    @contextmanager
    def span(self, name: str, facts: Facts, uid: str) -> Iterator[None]:
        """See ``spans.Tracer``."""
        links = [Link(context) for context in self._take(uid)] if uid else []
        begun = self._tracer.start_span(name, _under(active.get()), attributes=dict(facts), links=links)
        if uid:
            begun.set_attribute("stateward.uid", uid)
        token = active.set(begun)
        try:
            yield
        except BaseException as error:
            begun.set_status(Status(StatusCode.ERROR, type(error).__name__))  # without its message, which has names
            raise
        finally:
            active.reset(token)
            begun.end()

    def note_write(self, times: WriteTimes, uid: str) -> None:
        """See ``spans.Tracer``."""
        parent: Span | None = times.parent
        if parent is None or not times.taken_ns:
            return
        queue = self._tracer.start_span("queue", _under(parent), start_time=times.queued_ns)
        queue.end(times.taken_ns)
        if times.committed_ns:
            commit = self._tracer.start_span(
                "commit", _under(parent), start_time=times.committing_ns,
                attributes={"stateward.batch_writes": times.writes},
            )  # fmt: skip
            commit.end(times.committed_ns)
        if uid:
            parent.set_attribute("stateward.uid", uid)
            self._keep(uid, parent.get_span_context())

    def trace_id(self) -> str:
        """See ``spans.Tracer``."""
        found: Span | None = active.get()
        return "" if found is None else trace.format_trace_id(found.get_span_context().trace_id)

    def close(self) -> None:
        """Sends what has ended. May wait for the collector."""
        self._provider.shutdown()

    def _keep(self, uid: str, context: SpanContext) -> None:
        with self._lock:
            kept = self._saves.setdefault(uid, [])
            if len(kept) < SAVES_KEPT:
                kept.append(context)
            self._saves.move_to_end(uid)
            while len(self._saves) > THREADS_KEPT:
                self._saves.popitem(last=False)

    def _take(self, uid: str) -> list[SpanContext]:
        with self._lock:
            return self._saves.pop(uid, [])


def _under(span: Span | None) -> trace.Context | None:  # type: ignore[name-defined]
    return None if span is None else trace.set_span_in_context(span)
