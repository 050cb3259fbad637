"""The changes from one state to the next, as the daemon makes them, mostly without a message for each value.

A full state may be so large that memory has room for it only once. So its values become bytes once, and the new tree,
the changes and the stored edits share these bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from typing import NamedTuple

from stateward.v1.diff_pb2 import Diff, Edit
from stateward.v1.state_pb2 import State
from stateward_sidecar.codec.draft import APPLICATIONS, StateDraft
from stateward_sidecar.codec.state import LogState, StateTree, byte_length, unframe, varint

_INT64_BITS = (1 << 64) - 1


class SlotSet(NamedTuple):
    """Sets a slot to a serialized Value: the edit SetSlot."""

    slot: str
    value: bytes

    def apply(self, draft: StateDraft) -> None:
        """Applies the change to a state."""
        draft.put(self.slot, self.value)

    def fill(self, edit: Edit) -> None:
        """Fills a message with the change."""
        edit.set_slot.slot = self.slot
        edit.set_slot.value.MergeFromString(self.value)

    def write(self, out: BytesIO) -> None:
        """Writes it as an element of ``Diff.edits``."""
        name = self.slot.encode()
        body_bytes = _field_bytes(len(name)) + _field_bytes(len(self.value))
        out.write(b"\x0a" + varint(_field_bytes(body_bytes)) + b"\x0a" + varint(body_bytes))
        out.write(b"\x0a" + varint(len(name)) + name + b"\x12" + varint(len(self.value)))
        out.write(self.value)


class LogGrown(NamedTuple):
    """Adds framed values to a log: the edit Append."""

    log: str
    items: list[bytes]

    def apply(self, draft: StateDraft) -> None:
        """Applies the change to a state."""
        draft.grow(self.log, self.items)

    def fill(self, edit: Edit) -> None:
        """Fills a message with the change."""
        edit.append.log = self.log
        for item in self.items:
            edit.append.entries.add().MergeFromString(unframe(item))

    def write(self, out: BytesIO) -> None:
        """Writes it as an element of ``Diff.edits``. Entries have the same tag here as in a log."""
        name = self.log.encode()
        body_bytes = _field_bytes(len(name)) + sum(map(len, self.items))
        out.write(b"\x0a" + varint(_field_bytes(body_bytes)) + b"\x22" + varint(body_bytes))
        out.write(b"\x0a" + varint(len(name)) + name)
        out.writelines(self.items)


# An Edit is used for the kinds that are small or rare.
Change = SlotSet | LogGrown | Edit


def to_diff(changes: Iterable[Change]) -> Diff:
    """Makes a message from changes."""
    diff = Diff()
    for change in changes:
        if isinstance(change, Edit):
            diff.edits.append(change)
        else:
            change.fill(diff.edits.add())
    return diff


def apply_changes(tree: StateTree, changes: Iterable[Change], version: int) -> tuple[StateTree, bytes]:
    """Applies changes like ``apply_edits``. Returns the new state, and the changes as a serialized Diff."""
    draft, out = StateDraft(tree, version), BytesIO()
    for index, change in enumerate(changes):
        if isinstance(change, Edit):
            kind = change.WhichOneof("edit")
            assert kind is not None
            draft.edit_index, draft.kind = index, kind
            APPLICATIONS[kind](draft, getattr(change, kind))
            data = change.SerializeToString()
            out.write(b"\x0a" + varint(len(data)) + data)
        else:
            change.apply(draft)
            change.write(out)
    return draft.seal(), out.getvalue()


def sent_bytes(state: State, slots: dict[str, bytes], logs: dict[str, LogState]) -> int:
    """Returns the size of a state on the wire, computed from the bytes of its values."""
    size = 0
    for name, value in slots.items():
        size += _field_bytes(_field_bytes(byte_length(name)) + _field_bytes(len(value)))
    for name, stored in logs.items():
        log, log_bytes = state.logs[name], stored.entries.size_bytes
        if log.HasField("first_index"):
            log_bytes += 1 + len(varint(log.first_index))
        if log.rewritten_version:
            log_bytes += 1 + len(varint(log.rewritten_version & _INT64_BITS))
        size += _field_bytes(_field_bytes(byte_length(name)) + _field_bytes(log_bytes))
    return size + (State(retired_logs=state.retired_logs).ByteSize() if state.retired_logs else 0)


def _field_bytes(size_bytes: int) -> int:
    """Returns the length of a field whose tag has one byte and whose content has ``size_bytes``."""
    return 1 + len(varint(size_bytes)) + size_bytes
