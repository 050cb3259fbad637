"""A state between two edits, the effect of each kind of edit, and the changes that result.

The old tree is immutable. A draft copies each of its dicts and lists once, before the first change. So an appended
entry costs the same whatever else the state holds, and a diff that is refused half-way leaves nothing.

A replay does what the save did: every stored edit gives the same result on the same state. AddNumber is stored as it
was sent, because its base is the parent's number whenever it is applied. ``SetSlot.expected_sha256`` is a condition of
the save. It is checked once and not stored (``codec/diff.py``), so a replay does not check it.

The changes from one state to the next, as the daemon makes them, mostly without a message for each value.

A full state may be so large that memory has room for it only once. So its values become bytes once, and the new tree,
the changes and the stored edits share these bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from io import BytesIO
from typing import Any, NamedTuple, NoReturn

from stateward.v1.diff_pb2 import (
    AddNumber,
    Append,
    DeleteLog,
    DeleteSlot,
    Diff,
    Edit,
    ReplaceEntry,
    SetSlot,
    SpliceSlot,
    TrimLog,
)
from stateward.v1.state_pb2 import State, Value
from stateward_sidecar.codec.entries import EMPTY_ENTRIES, EntriesDraft
from stateward_sidecar.codec.state import LogState, StateTree, byte_length, find_data
from stateward_sidecar.codec.varints import frame, unframe, varint
from stateward_sidecar.errors import EditConflict

# Each splice copies its whole slot: 100,000 splices of a slot of a few megabytes would keep a core busy for an hour.
# The edit that passes this sum is still applied, so that one splice of any slot always works.
MAX_SPLICED_BYTES = 1 << 28
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


def content_sha256(value: bytes) -> bytes:
    """Returns the SHA-256 of a serialized Value's data, of the bytes of its blob, or of the digits of its number."""
    span = find_data(value)
    if span is not None:
        return sha256(memoryview(value)[span.start : span.stop]).digest()
    parsed = Value.FromString(value)
    if parsed.WhichOneof("content") == "blob":
        return parsed.blob.sha256
    return sha256(str(parsed.number).encode()).digest()


class _OpenLog:
    """A log that the diff changes."""

    __slots__ = ("entries", "first_index", "rewritten_version")

    def __init__(self, first_index: int, entries: EntriesDraft, rewritten_version: int) -> None:
        self.first_index = first_index
        self.entries = entries
        self.rewritten_version = rewritten_version

    @property
    def next_index(self) -> int:
        return self.first_index + len(self.entries)

    def seal(self) -> LogState:
        return LogState(self.first_index, self.entries.seal(), self.rewritten_version)


class StateDraft:
    """The state between two edits. Dicts and lists of the old tree are copied once, before their first change."""

    __slots__ = (
        "base", "edit_index", "kind", "logs", "open_logs", "retired", "size_bytes", "slots", "spliced_bytes", "version",
    )  # fmt: skip

    def __init__(self, base: StateTree, version: int) -> None:
        self.base = base
        self.slots = base.slots
        self.logs = base.logs
        self.retired = base.retired
        self.size_bytes = base.size_bytes
        self.open_logs: dict[str, _OpenLog] = {}
        self.spliced_bytes = 0
        self.version = version
        self.edit_index, self.kind = 0, ""

    def seal(self) -> StateTree:
        if self.open_logs:
            logs = self._own_logs()
            for name, log in self.open_logs.items():
                logs[name] = log.seal()
        return StateTree(self.slots, self.logs, self.retired, self.size_bytes)

    def set_slot(self, edit: SetSlot) -> None:
        if edit.HasField("expected_sha256"):
            self._compare(edit.slot, edit.expected_sha256)
        self.put(edit.slot, edit.value.SerializeToString())

    def add_number(self, edit: AddNumber) -> None:
        held = self.slots.get(edit.slot)
        value = Value(number=0) if held is None else Value.FromString(held)
        if value.WhichOneof("content") != "number":
            self._refuse("slot", f"slot {edit.slot!r} holds no number; set it to a number first")
        total = value.number + edit.delta
        if not INT64_MIN <= total <= INT64_MAX:
            self._refuse("delta", f"{value.number} plus {edit.delta} is {total}, which does not fit in an int64")
        value.number = total
        self.put(edit.slot, value.SerializeToString())

    def delete_slot(self, edit: DeleteSlot) -> None:
        value = self._slot(edit.slot)
        del self._own_slots()[edit.slot]
        self.size_bytes -= byte_length(edit.slot) + len(value)

    def splice_slot(self, edit: SpliceSlot) -> None:
        value = self._slot(edit.slot)
        if edit.base_sha256 or value is not self.base.slots.get(edit.slot):
            self._count(value)
        span = find_data(value)
        if span is None:
            self._refuse("slot", f"slot {edit.slot!r} holds a blob or a number, which has no bytes to splice")
        data = value[span.start : span.stop]
        if edit.base_sha256 and (found := sha256(data).digest()) != edit.base_sha256:
            self._refuse("base_sha256", f"expected {edit.base_sha256.hex()}, found {found.hex()} ({len(data):,} bytes)")
        pieces: list[bytes] = []
        end = 0
        for position, splice in enumerate(edit.splices):
            if splice.offset + splice.delete > len(data):
                text = f"ends at byte {splice.offset + splice.delete:,} of {len(data):,}"
                self._refuse(f"splices[{position}]", text)
            pieces += (data[end : splice.offset], splice.insert)
            end = splice.offset + splice.delete
        pieces.append(data[end:])
        size = sum(map(len, pieces))
        # Behind the data are fields that this server does not know. They stay.
        spliced = [span.media_type_field, b"\x12", varint(size), *pieces, value[span.stop :]]
        self.put(edit.slot, b"".join(spliced))

    def append(self, edit: Append) -> None:
        log = self._find_log(edit.log)
        if edit.HasField("at_index"):
            next_index = self.retired.get(edit.log, 0) if log is None else log.next_index
            if edit.at_index != next_index:
                self._refuse("at_index", f"expected {edit.at_index}, but log {edit.log!r} ends at {next_index}")
        items = [frame(value.SerializeToString()) for value in edit.entries]
        self._grow(self._make_log(edit.log) if log is None else log, items)

    def grow(self, name: str, items: list[bytes]) -> None:
        """Adds framed values to a log, which is made if missing."""
        log = self._find_log(name)
        self._grow(self._make_log(name) if log is None else log, items)

    def _grow(self, log: _OpenLog, items: list[bytes]) -> None:
        log.entries.append_many(items)
        self.size_bytes += sum(map(len, items))

    def replace_entry(self, edit: ReplaceEntry) -> None:
        log = self._log(edit.log)
        if not log.first_index <= edit.index < log.next_index:
            held = f"log {edit.log!r} holds {log.first_index} up to, but not including, {log.next_index}"
            self._refuse("index", f"expected an entry {edit.index}, but {held}")
        before = log.entries.size_bytes
        log.entries.replace(edit.index - log.first_index, frame(edit.value.SerializeToString()))
        log.rewritten_version = self.version
        self.size_bytes += log.entries.size_bytes - before

    def trim_log(self, edit: TrimLog) -> None:
        log = self._log(edit.log)
        trim = edit.WhichOneof("trim")
        count, before = len(log.entries), log.entries.size_bytes
        if trim == "keep_last":
            self._drop_first(log, max(0, count - edit.keep_last))
        elif trim == "before_index":
            self._drop_first(log, max(0, self._inside(trim, edit.before_index, edit.log, log) - log.first_index))
        elif trim == "from_index":
            log.entries.keep_first(max(0, self._inside(trim, edit.from_index, edit.log, log) - log.first_index))
        else:
            self._refuse("trim", "no trim is set, or this server does not know it")
        if len(log.entries) < count:
            log.rewritten_version = self.version
        self.size_bytes += log.entries.size_bytes - before

    def delete_log(self, edit: DeleteLog) -> None:
        log = self._log(edit.log)
        self.size_bytes -= log.entries.size_bytes
        # The name stays in the tree, and in its size.
        self._own_retired()[edit.log] = log.next_index
        self._own_logs().pop(edit.log, None)  # a log that this diff made is not in it yet
        del self.open_logs[edit.log]

    def put(self, name: str, value: bytes) -> None:
        """Sets a slot to a serialized Value."""
        slots = self._own_slots()
        old = slots.get(name)
        self.size_bytes += len(value) - len(old) if old is not None else byte_length(name) + len(value)
        slots[name] = value

    def _slot(self, name: str) -> bytes:
        value = self.slots.get(name)
        if value is None:
            self._refuse("slot", f"there is no slot {name!r}")
        return value

    def _count(self, value: bytes) -> None:
        """Refuses a splice if the splices before it copied too much.

        Not called for the daemon's own splices, which have no base digest and replace the first edit of a slot: a
        replay must not refuse what the save accepted.
        """
        if self.spliced_bytes > MAX_SPLICED_BYTES:
            self._refuse("splices", f"the splices of the diff copy more than {MAX_SPLICED_BYTES:,} bytes; set the slot")
        self.spliced_bytes += len(value)

    def _compare(self, name: str, expected: bytes) -> None:
        """Refuses the edit unless the slot's bytes have this SHA-256. If it is empty, there must be no slot."""
        held = self.slots.get(name)
        if held is None:
            if expected:
                self._refuse("expected_sha256", f"expected {expected.hex()}, but there is no slot {name!r}")
            return
        if not expected:
            self._refuse("expected_sha256", f"slot {name!r} was expected not to exist, but exists")
        if (found := content_sha256(held)) != expected:
            self._refuse("expected_sha256", f"expected {expected.hex()}, found {found.hex()} in slot {name!r}")

    def _own_slots(self) -> dict[str, bytes]:
        if self.slots is self.base.slots:
            self.slots = self.slots.copy()
        return self.slots

    def _own_logs(self) -> dict[str, LogState]:
        if self.logs is self.base.logs:
            self.logs = self.logs.copy()
        return self.logs

    def _own_retired(self) -> dict[str, int]:
        if self.retired is self.base.retired:
            self.retired = self.retired.copy()
        return self.retired

    def _log(self, name: str) -> _OpenLog:
        log = self._find_log(name)
        if log is None:
            self._refuse("log", f"there is no log {name!r}")
        return log

    def _find_log(self, name: str) -> _OpenLog | None:
        log = self.open_logs.get(name)
        if log is None and (state := self.logs.get(name)) is not None:
            entries = EntriesDraft(state.entries)
            log = self.open_logs[name] = _OpenLog(state.first_index, entries, state.rewritten_version)
        return log

    def _make_log(self, name: str) -> _OpenLog:
        first_index, rewritten_version = 0, 0
        if name in self.retired:
            # Without this mark, a reader of the old log would take the new log for its continuation.
            first_index, rewritten_version = self._own_retired().pop(name), self.version
        else:
            self.size_bytes += byte_length(name)
        log = self.open_logs[name] = _OpenLog(first_index, EntriesDraft(EMPTY_ENTRIES), rewritten_version)
        return log

    def _drop_first(self, log: _OpenLog, count: int) -> None:
        log.entries.drop_first(count)
        log.first_index += count

    def _inside(self, trim: str, index: int, name: str, log: _OpenLog) -> int:
        if index > log.next_index:
            self._refuse(trim, f"{index} is beyond the end of log {name!r}, which is {log.next_index}")
        return index

    def _refuse(self, field: str, message: str) -> NoReturn:
        raise EditConflict(self.edit_index, f"diff.edits[{self.edit_index}].{self.kind}.{field}", message)


APPLICATIONS: dict[str, Callable[[StateDraft, Any], None]] = {
    "set_slot": StateDraft.set_slot,
    "add_number": StateDraft.add_number,
    "delete_slot": StateDraft.delete_slot,
    "splice_slot": StateDraft.splice_slot,
    "append": StateDraft.append,
    "replace_entry": StateDraft.replace_entry,
    "trim_log": StateDraft.trim_log,
    "delete_log": StateDraft.delete_log,
}


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
