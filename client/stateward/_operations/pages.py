"""Reads all pages of a state and joins them."""

from __future__ import annotations

from dataclasses import dataclass, field

from stateward._operations.steps import Call, Operation
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1 import effect_pb2, signal_pb2, state_pb2


@dataclass
class Pages:
    """What the pages of one answer hold together."""

    last: checkpoints.HydrateResponse = field(default_factory=checkpoints.HydrateResponse)
    slots: dict[str, state_pb2.Value] = field(default_factory=dict)
    logs: dict[str, state_pb2.Log] = field(default_factory=dict)
    retired_logs: dict[str, int] = field(default_factory=dict)
    signals: list[signal_pb2.Signal] = field(default_factory=list)
    removed_slots: list[str] = field(default_factory=list)
    removed_logs: list[str] = field(default_factory=list)
    effects: list[effect_pb2.RecordedEffect] = field(default_factory=list)


def read_pages(request: checkpoints.HydrateRequest) -> Operation[Pages]:
    """Reads a state to its end. A value that is larger than a page arrives in chunks. The request is changed."""
    found, pieces = Pages(), list[bytes]()
    while True:
        page: checkpoints.HydrateResponse = yield Call("Hydrate", request)
        found.last = page
        found.removed_slots += page.removed_slots
        found.removed_logs += page.removed_logs
        found.signals += page.signals
        found.effects += page.effects
        found.slots.update(page.state.slots)
        found.retired_logs.update(page.state.retired_logs)
        for name, log in page.state.logs.items():
            if name in found.logs:
                found.logs[name].entries.extend(log.entries)
            else:
                found.logs[name] = log
        if page.HasField("chunk"):
            chunk = page.chunk
            pieces.append(chunk.data)
            if chunk.offset + len(chunk.data) >= chunk.size_bytes:
                value = state_pb2.Value(media_type=chunk.media_type, data=b"".join(pieces))
                pieces.clear()
                if chunk.WhichOneof("place") == "slot":
                    found.slots[chunk.slot] = value
                else:
                    found.logs.setdefault(chunk.log, state_pb2.Log(first_index=chunk.index)).entries.append(value)
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token
