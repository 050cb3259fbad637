"""The caller's span, if the program uses OpenTelemetry, in the form of W3C trace context.

A program without it has not imported `opentelemetry.trace`, and asking costs one look into a dictionary.
"""

from __future__ import annotations

import sys


def trace_parent() -> str:
    """Returns the `traceparent` of the current span; empty if there is none."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return ""
    span = trace.get_current_span().get_span_context()
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}" if span.is_valid else ""


def trace_metadata() -> tuple[tuple[str, str], ...] | None:
    """Returns the metadata that name the current span to the daemon; None if there is none."""
    parent = trace_parent()
    if not parent:
        return None
    state = sys.modules["opentelemetry.trace"].get_current_span().get_span_context().trace_state
    return (("traceparent", parent), ("tracestate", state.to_header())) if state else (("traceparent", parent),)
