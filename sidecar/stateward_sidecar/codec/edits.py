"""Edits: what a request may hold, and what they do to a state.

``check_*`` judge what can be judged without the state, before anything is written; their errors name the field.
``apply_edits`` judges the rest. It works on a draft and the old tree is immutable, so a diff is applied whole or not
at all. The cost follows the change: one appended entry copies no list and no other log or slot.

Two edits are applied but refused from clients, for the daemon makes them itself: a SpliceSlot without
``base_sha256`` (at rest the chain of digests vouches for the base), and an Append without entries (the only way to
make a log that is empty, as a full state may hold it).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any, NoReturn

from stateward.v1.diff_pb2 import (
    Append,
    DeleteLog,
    DeleteSlot,
    Diff,
    ReplaceEntry,
    SetSlot,
    SpliceSlot,
    TrimLog,
)
from stateward.v1.state_pb2 import BlobRef, State, Value
from stateward_sidecar.codec.state import (
    EMPTY_ENTRIES,
    EntriesDraft,
    LogState,
    StateTree,
    byte_length,
    find_data,
    frame,
    varint,
)
from stateward_sidecar.errors import EditConflict, InvalidField

MAX_EDITS = 100_000
MAX_NAME_BYTES = 1024
MAX_MEDIA_TYPE_BYTES = 255
MAX_PREVIEW_BYTES = 1024
SHA256_BYTES = 32
# Each splice copies its whole slot: 100,000 of them on a slot of a few megabytes would keep a core busy for an hour.
# The edit that passes this sum is still applied, so that one splice of any slot always is.
MAX_SPLICED_BYTES = 1 << 28

# A blob that a request names, after the path of the field that does.
Named = tuple[str, BlobRef]

# C0, DEL and C1: they would corrupt terminals and logs.
_CONTROL_CHARACTER = re.compile("[\x00-\x1f\x7f-\x9f]")
_COMMUTATIVE = frozenset(("set_slot", "delete_slot", "append"))


def check_diff(diff: Diff, field: str = "diff") -> list[Named]:
    """Checks a client's edits, and returns the blobs they name. Raises InvalidField."""
    named: list[Named] = []
    if len(diff.edits) > MAX_EDITS:
        raise InvalidField(f"{field}.edits", f"{len(diff.edits):,} edits, more than {MAX_EDITS:,}")
    for index, edit in enumerate(diff.edits):
        kind = edit.WhichOneof("edit")
        path = f"{field}.edits[{index}]"
        if kind is None:
            raise InvalidField(path, "no edit is set, or one that this server does not know")
        if kind in _VALUE_CHECKS:
            _VALUE_CHECKS[kind](getattr(edit, kind), f"{path}.{kind}", named)
        else:
            _CHECKS[kind](getattr(edit, kind), f"{path}.{kind}")
    return named


def check_state(state: State, field: str = "state") -> list[Named]:
    """Checks a full state from a client, and returns the blobs it names. Raises InvalidField."""
    named: list[Named] = []
    if state.partial:
        raise InvalidField(
            f"{field}.partial", "a partial state cannot be saved as a whole one: what it leaves out would be deleted"
        )
    for name, value in state.slots.items():
        check_name(name, f"{field}.slots")
        if not _is_plain(value):
            check_value(value, f"{field}.slots[{name}]", named)
    for name, log in state.logs.items():
        check_name(name, f"{field}.logs")
        if log.first_index < 0:
            raise InvalidField(f"{field}.logs[{name}].first_index", f"{log.first_index} is below 0")
        _check_entries(log.entries, f"{field}.logs[{name}].entries", named)
    return named


def check_name(name: str, field: str) -> None:
    """Checks the name of a slot or log. Raises InvalidField."""
    size = byte_length(name)
    if not 1 <= size <= MAX_NAME_BYTES:
        raise InvalidField(field, f"a name has {size:,} bytes of UTF-8, it must have 1 to {MAX_NAME_BYTES:,}")
    # isprintable() is several times faster and False for some names that are allowed.
    if not name.isprintable() and (found := _CONTROL_CHARACTER.search(name)):
        raise InvalidField(field, f"a name has the control character U+{ord(found[0]):04X} at position {found.start()}")


def check_value(value: Value, field: str, named: list[Named] | None = None) -> None:
    """Checks one value. A blob is added to ``named``; without, none is allowed. Raises InvalidField."""
    content = value.WhichOneof("content")
    if content is None:
        raise InvalidField(field, "no content is set; for an empty value set data to empty bytes")
    if content == "blob":
        if named is None:
            raise InvalidField(f"{field}.blob", "no blob may stand here; send the bytes as data")
        _check_blob(value.blob, f"{field}.blob")
        named.append((f"{field}.blob", value.blob))
    if (size := byte_length(value.media_type)) > MAX_MEDIA_TYPE_BYTES:
        raise InvalidField(f"{field}.media_type", f"{size:,} bytes of UTF-8, more than {MAX_MEDIA_TYPE_BYTES}")


def _check_blob(blob: BlobRef, field: str) -> None:
    if len(blob.sha256) != SHA256_BYTES:
        raise InvalidField(f"{field}.sha256", f"{len(blob.sha256)} bytes, it must have {SHA256_BYTES}")
    if blob.size_bytes < 0:
        raise InvalidField(f"{field}.size_bytes", f"{blob.size_bytes} is below 0")
    if len(blob.preview) > MAX_PREVIEW_BYTES:
        raise InvalidField(f"{field}.preview", f"{len(blob.preview):,} bytes, more than {MAX_PREVIEW_BYTES:,}")


def only_commutative(diff: Diff) -> int | None:
    """Finds the first edit that needs to know its base: not SetSlot, DeleteSlot or Append. None = there is none."""
    for index, edit in enumerate(diff.edits):
        if edit.WhichOneof("edit") not in _COMMUTATIVE:
            return index
    return None


def apply_edits(tree: StateTree, diff: Diff, version: int) -> StateTree:
    """Applies edits that passed ``check_diff`` or were made by the daemon, and returns the new state.

    ``version`` becomes the rewritten version of every log of which an entry is replaced or dropped, and of one that
    is made under a retired name. Raises EditConflict where an edit does not fit.
    """
    draft = _Draft(tree, version)
    for index, edit in enumerate(diff.edits):
        kind = edit.WhichOneof("edit")
        if kind is None:
            raise EditConflict(index, f"diff.edits[{index}]", "no edit is set, or one that this server does not know")
        draft.edit_index, draft.kind = index, kind
        _APPLICATIONS[kind](draft, getattr(edit, kind))
    return draft.seal()


def _is_plain(value: Value) -> bool:
    """True for most good values: spares the hot loops the path, which is only needed for an error."""
    return value.WhichOneof("content") == "data" and len(value.media_type) * 4 <= MAX_MEDIA_TYPE_BYTES


def _check_entries(entries: Iterable[Value], field: str, named: list[Named]) -> None:
    for position, value in enumerate(entries):
        # As ``_is_plain``: a call for each of thousands of entries is a third of the time.
        if value.WhichOneof("content") != "data" or len(value.media_type) * 4 > MAX_MEDIA_TYPE_BYTES:
            check_value(value, f"{field}[{position}]", named)


def _check_set_slot(edit: SetSlot, field: str, named: list[Named]) -> None:
    check_name(edit.slot, f"{field}.slot")
    check_value(edit.value, f"{field}.value", named)


def _check_delete_slot(edit: DeleteSlot, field: str) -> None:
    check_name(edit.slot, f"{field}.slot")


def _check_splice_slot(edit: SpliceSlot, field: str) -> None:
    check_name(edit.slot, f"{field}.slot")
    if len(edit.base_sha256) != SHA256_BYTES:
        raise InvalidField(f"{field}.base_sha256", f"{len(edit.base_sha256)} bytes, it must have {SHA256_BYTES}")
    if not edit.splices:
        raise InvalidField(f"{field}.splices", "at least one splice is required")
    end = 0
    for position, splice in enumerate(edit.splices):
        path = f"{field}.splices[{position}]"
        if splice.delete < 0:
            raise InvalidField(f"{path}.delete", f"{splice.delete} is below 0")
        if splice.offset < end:
            raise InvalidField(f"{path}.offset", f"{splice.offset} is before {end}, where the splice before it ends")
        end = splice.offset + splice.delete


def _check_append(edit: Append, field: str, named: list[Named]) -> None:
    check_name(edit.log, f"{field}.log")
    if not edit.entries:
        raise InvalidField(f"{field}.entries", "at least one entry is required")
    if edit.at_index < 0:
        raise InvalidField(f"{field}.at_index", f"{edit.at_index} is below 0")
    _check_entries(edit.entries, f"{field}.entries", named)


def _check_replace_entry(edit: ReplaceEntry, field: str, named: list[Named]) -> None:
    check_name(edit.log, f"{field}.log")
    if edit.index < 0:
        raise InvalidField(f"{field}.index", f"{edit.index} is below 0")
    check_value(edit.value, f"{field}.value", named)


def _check_trim_log(edit: TrimLog, field: str) -> None:
    check_name(edit.log, f"{field}.log")
    trim = edit.WhichOneof("trim")
    if trim is None:
        raise InvalidField(field, "one of keep_last, before_index and from_index is required")
    if getattr(edit, trim) < 0:
        raise InvalidField(f"{field}.{trim}", f"{getattr(edit, trim)} is below 0")


def _check_delete_log(edit: DeleteLog, field: str) -> None:
    check_name(edit.log, f"{field}.log")


_CHECKS: dict[str, Callable[[Any, str], None]] = {
    "delete_slot": _check_delete_slot,
    "splice_slot": _check_splice_slot,
    "trim_log": _check_trim_log,
    "delete_log": _check_delete_log,
}
_VALUE_CHECKS: dict[str, Callable[[Any, str, list[Named]], None]] = {
    "set_slot": _check_set_slot,
    "append": _check_append,
    "replace_entry": _check_replace_entry,
}


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


class _Draft:
    """The state between two edits. Dicts and lists of the old tree are copied when first changed, once."""

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
        self._put(edit.slot, edit.value.SerializeToString())

    def delete_slot(self, edit: DeleteSlot) -> None:
        value = self._slot(edit.slot)
        del self._own_slots()[edit.slot]
        self.size_bytes -= byte_length(edit.slot) + len(value)

    def splice_slot(self, edit: SpliceSlot) -> None:
        value = self._slot(edit.slot)
        if self.spliced_bytes > MAX_SPLICED_BYTES:
            self._refuse("splices", f"the splices of the diff copy more than {MAX_SPLICED_BYTES:,} bytes; set the slot")
        self.spliced_bytes += len(value)
        span = find_data(value)
        if span is None:
            self._refuse("slot", f"slot {edit.slot!r} holds a blob, which has no bytes to splice")
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
        # What stands behind the data are fields that this server does not know: they stay.
        spliced = [span.media_type_field, b"\x12", varint(size), *pieces, value[span.stop :]]
        self._put(edit.slot, b"".join(spliced))

    def append(self, edit: Append) -> None:
        log = self._find_log(edit.log)
        next_index = self.retired.get(edit.log, 0) if log is None else log.next_index
        if edit.HasField("at_index") and edit.at_index != next_index:
            self._refuse("at_index", f"expected {edit.at_index}, but log {edit.log!r} ends at {next_index}")
        if log is None:
            log = self._make_log(edit.log)
        items = [frame(value.SerializeToString()) for value in edit.entries]
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
            self._refuse("trim", "none is set, or one that this server does not know")
        if len(log.entries) < count:
            log.rewritten_version = self.version
        self.size_bytes += log.entries.size_bytes - before

    def delete_log(self, edit: DeleteLog) -> None:
        log = self._log(edit.log)
        self.size_bytes -= log.entries.size_bytes
        # The name stays in the tree, and in its size.
        self._own_retired()[edit.log] = log.next_index
        self._own_logs().pop(edit.log, None)  # a log that this diff made is not there yet
        del self.open_logs[edit.log]

    def _put(self, name: str, value: bytes) -> None:
        slots = self._own_slots()
        old = slots.get(name)
        self.size_bytes += len(value) - len(old) if old is not None else byte_length(name) + len(value)
        slots[name] = value

    def _slot(self, name: str) -> bytes:
        value = self.slots.get(name)
        if value is None:
            self._refuse("slot", f"there is no slot {name!r}")
        return value

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
            log = self.open_logs[name] = _OpenLog(state.first_index, state.entries.edit(), state.rewritten_version)
        return log

    def _make_log(self, name: str) -> _OpenLog:
        first_index, rewritten_version = 0, 0
        if name in self.retired:
            # Without the mark, a reader of the old log would take the new one for its continuation.
            first_index, rewritten_version = self._own_retired().pop(name), self.version
        else:
            self.size_bytes += byte_length(name)
        log = self.open_logs[name] = _OpenLog(first_index, EMPTY_ENTRIES.edit(), rewritten_version)
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


_APPLICATIONS: dict[str, Callable[[_Draft, Any], None]] = {
    "set_slot": _Draft.set_slot,
    "delete_slot": _Draft.delete_slot,
    "splice_slot": _Draft.splice_slot,
    "append": _Draft.append,
    "replace_entry": _Draft.replace_entry,
    "trim_log": _Draft.trim_log,
    "delete_log": _Draft.delete_log,
}
