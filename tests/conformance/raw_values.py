"""Values, and the canonical form of a state, as docs/protocol.md says."""

from __future__ import annotations

from stateward.v1 import state_pb2


def canonical(state: state_pb2.State) -> bytes:
    """Returns the canonical form of a state, as docs/protocol.md says."""
    fields: list[bytes] = []

    def add(*values: str | bytes | int) -> None:
        fields.extend(each if isinstance(each, bytes) else str(each).encode() for each in values)

    def add_value(value: state_pb2.Value) -> None:
        kind = value.WhichOneof("content") or ""
        content = {"data": value.data, "number": value.number, "blob": value.blob.sha256}.get(kind, b"")
        add(value.media_type, kind, content)

    for name in sorted(state.slots):
        add("slot", name)
        add_value(state.slots[name])
    for name in sorted(state.logs):
        log = state.logs[name]
        add("log", name, log.first_index, log.rewritten_version, len(log.entries))
        for entry in log.entries:
            add_value(entry)
    return b"".join(b"%d:%b" % (len(field), field) for field in fields)


def text(value: str) -> state_pb2.Value:
    return state_pb2.Value(media_type="text/plain", data=value.encode())
