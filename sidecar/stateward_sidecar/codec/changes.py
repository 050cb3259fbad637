"""What leads from one state to the next, as the daemon makes it itself: most of it without a message for each value.

A full state may be as large as memory allows once. So its values become bytes once, and the new tree, the edits that
are stored and what lies between them share those.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from typing import NamedTuple

from stateward.v1.diff_pb2 import Diff, Edit
from stateward.v1.state_pb2 import State
from stateward_sidecar.codec.draft import APPLICATIONS, Draft
from stateward_sidecar.codec.state import LogState, StateTree, byte_length, unframe, varint

_INT64_BITS = (1 << 64) - 1


class SlotSet(NamedTuple):
    """A slot is set to a serialized Value: the edit SetSlot."""

    slot: str
    value: bytes

    def apply(self, draft: Draft) -> None:
        """Changes a state."""
        draft.put(self.slot, self.value)

    def fill(self, edit: Edit) -> None:
        """Makes a message of it."""
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
    """Framed values are added to a log: the edit Append."""

    log: str
    items: list[bytes]

    def apply(self, draft: Draft) -> None:
        """Changes a state."""
        draft.grow(self.log, self.items)

    def fill(self, edit: Edit) -> None:
        """Makes a message of it."""
        edit.append.log = self.log
        for item in self.items:
            edit.append.entries.add().MergeFromString(unframe(item))

    def write(self, out: BytesIO) -> None:
        """Writes it as an element of ``Diff.edits``. Its entries have the tag that they have in a log."""
        name = self.log.encode()
        body_bytes = _field_bytes(len(name)) + sum(map(len, self.items))
        out.write(b"\x0a" + varint(_field_bytes(body_bytes)) + b"\x22" + varint(body_bytes))
        out.write(b"\x0a" + varint(len(name)) + name)
        out.writelines(self.items)


# An Edit is one of the kinds that hold little, or are rare.
Change = SlotSet | LogGrown | Edit


def to_diff(changes: Iterable[Change]) -> Diff:
    """Makes a message of changes."""
    diff = Diff()
    for change in changes:
        if isinstance(change, Edit):
            diff.edits.append(change)
        else:
            change.fill(diff.edits.add())
    return diff


def apply_changes(tree: StateTree, changes: Iterable[Change], version: int) -> tuple[StateTree, bytes]:
    """Applies changes as ``apply_edits`` does; returns the new state, and the changes as a serialized Diff."""
    draft, out = Draft(tree, version), BytesIO()
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
    """How long a state is on the wire, given its values in bytes: counting them is all that is left to do."""
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
    return size


def _field_bytes(size_bytes: int) -> int:
    """The length of a field of so many bytes, whose tag has one."""
    return 1 + len(varint(size_bytes)) + size_bytes
