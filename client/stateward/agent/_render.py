"""Renders the values of an agent's state as lines of Markdown, one text for each item.

A state may hold text from any source, so all lines of an item after the first are indented: no such line can look like
a heading of the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from google.protobuf.message import Message as AnyMessage
from google.protobuf.timestamp_pb2 import Timestamp

from stateward import values
from stateward.agent._fields import enum_word
from stateward.agent.v1 import agent_pb2 as pb
from stateward.fromproto import read_time
from stateward.signals import Signal

RESULT_CHARACTERS_MAX = 500
"""Limit for the result of a tool, and for its arguments."""


def item(text: str, lead: str = "- ") -> str:
    """Returns a list item; its other lines are indented."""
    return lead + text.strip().replace("\r", "").replace("\n", "\n  ")


def quote(text: str) -> str:
    """Returns a block quote."""
    return "\n".join(f"> {line}".rstrip() for line in text.strip().splitlines())


def goal(value: Any) -> str:
    if not isinstance(value, pb.Goal):
        return quote(anything(value))
    return "\n".join([quote(value.text), *(item(each, "- must hold: ") for each in value.constraints)])


def summary(value: Any) -> str:
    return quote(value.text if isinstance(value, pb.Summary) else anything(value))


def model(value: Any) -> str:
    if not isinstance(value, pb.ModelParameters):
        return f"model: {anything(value)}"
    facts = [value.name, value.version and f"version {value.version}"]
    facts += [f"{name} {getattr(value, name)}" for name in ("temperature", "seed") if value.HasField(name)]
    return "model: " + ", ".join(filter(None, facts))


def step(value: Any) -> str:
    if not isinstance(value, pb.PlanStep):
        return item(anything(value))
    status = enum_word(pb.StepStatus, "STEP_STATUS", value.status or pb.STEP_STATUS_PENDING)
    after = f" (after {', '.join(value.depends_on)})" if value.depends_on else ""
    note = f" — {value.note}" if value.note else ""
    return item(f"[{status}] {value.id}: {value.text}{after}{note}")


def todo(value: Any) -> str:
    if not isinstance(value, pb.Todo):
        return item(anything(value))
    due = f" (due {time(value.due_time)})" if value.HasField("due_time") else ""
    return item(f"{value.id}: {value.text}{due}")


def tool_call(value: Any) -> str:
    if not isinstance(value, pb.ToolCall):
        return item(anything(value))
    key = f", idempotency key {value.idempotency_key}" if value.idempotency_key else ""
    pending = (pb.TOOL_CALL_STATUS_PENDING, pb.TOOL_CALL_STATUS_UNSPECIFIED)
    state = "was wanted, not begun" if value.status in pending else "was begun, outcome unknown"
    return item(f"{value.name}({value.arguments_json}): {state} (call {value.id}{key})")


def has_outcome(call: pb.ToolCall) -> bool:
    """Whether a call has ended with a result or an error."""
    return call.status in (pb.TOOL_CALL_STATUS_DONE, pb.TOOL_CALL_STATUS_FAILED)


def tool_result(call: pb.ToolCall, kept: Callable[[str], Any]) -> str:
    """Returns an ended call with its result, both shortened. `kept` returns the value of a slot."""
    match call.result.WhichOneof("outcome"):
        case "inline":
            said = anything(values.decode_leniently(call.result.inline))
        case "slot":
            said = anything(kept(call.result.slot))
        case "error":
            said = f"failed: {call.result.error}"
        case _:
            said = "failed" if call.status == pb.TOOL_CALL_STATUS_FAILED else "done, without a result"
    return item(f"{call.name}({shortened(call.arguments_json)}): {shortened(said)} (call {call.id})")


def decision(value: Any) -> str:
    if not isinstance(value, pb.Decision):
        return item(anything(value))
    parts = [value.text]
    if value.reason:
        parts.append(f"because {value.reason}")
    others = [f"{each.text} ({each.reason})" if each.reason else each.text for each in value.alternatives]
    if others:
        parts.append(f"instead of {'; '.join(others)}")
    return item(" — ".join(parts))


def fact(value: Any) -> str:
    if not isinstance(value, pb.Fact):
        return item(anything(value))
    said = [f"source: {value.source or 'not said'}"]
    if value.HasField("create_time"):
        said.append(time(value.create_time))
    if value.HasField("confidence"):
        said.append(f"confidence {value.confidence:g}")
    return item(f"{value.text} ({', '.join(said)})")


def signal(value: Any) -> str:
    """Renders a Signal, or any object with a name and a payload."""
    if isinstance(value, Signal):  # `payload` raises if the bytes do not match their media type
        payload = None if value.payload_value is None else values.decode_leniently(value.payload_value)
    elif isinstance(value, AnyMessage):
        has_payload = value.HasField("payload")  # type: ignore[arg-type, unused-ignore]
        payload = values.decode_leniently(value.payload) if has_payload else None  # type: ignore[attr-defined]
    else:
        payload = getattr(value, "payload", None)
    name = getattr(value, "name", None)
    if name is None:
        return item(anything(value))
    sender = f" from {value.sender}" if getattr(value, "sender", "") else ""
    return item(f"{name}{sender}" + ("" if payload is None else f": {anything(payload)}"))


def message(value: Any, calls: Mapping[str, pb.ToolCall]) -> str:
    """Renders a Message, or a dict with role and content as most frameworks store it. `calls` are the calls by id."""
    if isinstance(value, pb.Message):
        role = enum_word(pb.Role, "ROLE", value.role) if value.role else "somebody"
        who = f"{role} {value.name}" if value.name else role
        return item(f"**{who}**: {' '.join(_parts(value, calls))}".rstrip())
    if isinstance(value, dict) and "role" in value:
        said = [anything(value[name]) for name in ("content", "tool_calls") if value.get(name)]
        return item(f"**{anything(value['role'])}**: {' '.join(said)}".rstrip())
    return item(anything(value))


def _parts(value: pb.Message, calls: Mapping[str, pb.ToolCall]) -> Iterator[str]:
    for part in value.parts:
        kind = part.WhichOneof("content")
        yield f"[slot {part.slot}]" if kind == "slot" else getattr(part, kind) if kind else ""
    for id_ in value.tool_call_ids:
        yield f"[calls {calls[id_].name}({calls[id_].arguments_json}) as {id_}]" if id_ in calls else f"[calls {id_}]"
    if value.tool_call_id:
        yield f"[answers {value.tool_call_id}]"


def answered_call(value: Any) -> str:
    """Returns the id of the call whose result this message contains; empty = none, or only a reference to a slot."""
    if isinstance(value, pb.Message):
        says = any(part.text or part.json for part in value.parts)
        return value.tool_call_id if says else ""
    if isinstance(value, dict) and "role" in value and value.get("content"):
        return str(value.get("tool_call_id") or "")
    return ""


def shortened(text: str) -> str:
    """Returns at most RESULT_CHARACTERS_MAX characters, with a remark if the text is longer."""
    left = len(text) - RESULT_CHARACTERS_MAX
    return text if left <= 0 else f"{text[:RESULT_CHARACTERS_MAX]}… [{left:,} more characters]"


def anything(value: Any) -> str:
    """Renders a value of any other type: text unchanged, bytes by their size, other values as JSON."""
    match value:
        case str():
            return value
        case values.RawValue():
            return f"[{len(value.data)} bytes of {value.media_type or 'unknown type'}]"
        case bytes():
            return f"[{len(value)} bytes]"
        case values.Blob():
            return f"[blob of {value.size_bytes} bytes, {value.media_type}]"
        case AnyMessage():
            return f"[{value.DESCRIPTOR.full_name}]"
    try:
        return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    except (TypeError, ValueError):
        return f"[{type(value).__name__}]"


def time(stamp: Timestamp) -> str:
    """A time in UTC, to the minute."""
    return read_time(stamp).strftime("%Y-%m-%d %H:%M")
