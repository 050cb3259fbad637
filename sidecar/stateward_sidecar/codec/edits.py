"""Checks and applies edits.

The ``check_*`` functions check everything that does not depend on the state, before anything is written. Their errors
name the field. ``apply_edits`` checks the rest. It works on a draft, and the old tree is immutable, so a diff is
applied whole or not at all. The cost follows the change: an appended entry copies no list and no other log or slot.

Only the daemon may make two edits, and clients may not send them: a SpliceSlot without ``base_sha256`` (at rest the
chain of digests proves the base), and an Append without entries (the only way to make an empty log, which a full state
may have).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from stateward.v1.diff_pb2 import (
    AddNumber,
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
from stateward_sidecar.codec.draft import APPLICATIONS, StateDraft
from stateward_sidecar.codec.state import StateTree, byte_length
from stateward_sidecar.errors import EditConflict, InvalidField

MAX_EDITS = 100_000
MAX_NAME_BYTES = 1024
MAX_MEDIA_TYPE_BYTES = 255
MAX_PREVIEW_BYTES = 1024
SHA256_BYTES = 32

# The path of a field, and the blob that the field names.
Named = tuple[str, BlobRef]

# C0, DEL and C1, which would corrupt terminals and logs.
_CONTROL_CHARACTER = re.compile("[\x00-\x1f\x7f-\x9f]")
COMMUTATIVE = {"append": "Append", "set_slot": "SetSlot", "delete_slot": "DeleteSlot", "add_number": "AddNumber"}


def check_diff(diff: Diff, field: str = "diff") -> list[Named]:
    """Checks a client's edits. Returns the blobs that they name. Raises InvalidField."""
    named: list[Named] = []
    if len(diff.edits) > MAX_EDITS:
        raise InvalidField(f"{field}.edits", f"{len(diff.edits):,} edits, more than {MAX_EDITS:,}")
    for index, edit in enumerate(diff.edits):
        kind = edit.WhichOneof("edit")
        path = f"{field}.edits[{index}]"
        if kind is None:
            raise InvalidField(path, "no edit is set, or this server does not know the edit")
        if kind in _VALUE_CHECKS:
            _VALUE_CHECKS[kind](getattr(edit, kind), f"{path}.{kind}", named)
        else:
            _CHECKS[kind](getattr(edit, kind), f"{path}.{kind}")
    return named


def check_stored_diff(diff: Diff, field: str) -> list[Named]:
    """Checks stored edits, which may include edits that only the daemon makes. Returns and raises as ``check_diff``."""
    sent = Diff()
    for index, edit in enumerate(diff.edits):
        kind, path = edit.WhichOneof("edit"), f"{field}.edits[{index}]"
        if kind == "append" and not edit.append.entries:
            check_name(edit.append.log, f"{path}.append.log")
        elif kind == "splice_slot" and not edit.splice_slot.base_sha256:
            _check_splices(edit.splice_slot, f"{path}.splice_slot")
        else:
            sent.edits.append(edit)
    return check_diff(sent, field)


def check_state(state: State, field: str = "state") -> list[Named]:
    """Checks a full state from a client. Returns the blobs that it names. Raises InvalidField."""
    named: list[Named] = []
    if state.partial:
        raise InvalidField(
            f"{field}.partial", "a partial state cannot be saved as a full state: its missing parts would be deleted"
        )
    for name, value in state.slots.items():
        check_name(name, f"{field}.slots")
        if not _is_plain(value):
            check_value(value, f"{field}.slots[{name}]", named, number_allowed=True)
    for name, log in state.logs.items():
        check_name(name, f"{field}.logs")
        if log.first_index < 0:
            raise InvalidField(f"{field}.logs[{name}].first_index", f"{log.first_index} is below 0")
        _check_entries(log.entries, f"{field}.logs[{name}].entries", named)
    return named


def check_name(name: str, field: str) -> None:
    """Checks the name of a slot or log. Raises InvalidField."""
    if name.isascii() and name.isprintable() and 1 <= len(name) <= MAX_NAME_BYTES:
        return  # nearly every name, and one call names several
    size = byte_length(name)
    if not 1 <= size <= MAX_NAME_BYTES:
        raise InvalidField(field, f"a name has {size:,} bytes of UTF-8; it must have 1 to {MAX_NAME_BYTES:,}")
    if found := _CONTROL_CHARACTER.search(name):
        raise InvalidField(field, f"a name has the control character U+{ord(found[0]):04X} at position {found.start()}")


def check_value(value: Value, field: str, named: list[Named] | None = None, *, number_allowed: bool = False) -> None:
    """Checks one value. Adds a blob to ``named``; without ``named``, no blob is allowed. Raises InvalidField."""
    content = value.WhichOneof("content")
    if content is None:
        raise InvalidField(field, "no content is set; for an empty value set data to empty bytes")
    if content == "blob":
        if named is None:
            raise InvalidField(f"{field}.blob", "a blob is not allowed here; send the bytes as data")
        _check_blob(value.blob, f"{field}.blob")
        named.append((f"{field}.blob", value.blob))
    if content == "number":
        if not number_allowed:
            raise InvalidField(f"{field}.number", "a number is allowed only in a slot; send its digits as data")
        if value.media_type:
            raise InvalidField(f"{field}.media_type", "must be empty, because a number has no media type")
    if (size := byte_length(value.media_type)) > MAX_MEDIA_TYPE_BYTES:
        raise InvalidField(f"{field}.media_type", f"{size:,} bytes of UTF-8, more than {MAX_MEDIA_TYPE_BYTES}")


def _check_blob(blob: BlobRef, field: str) -> None:
    if len(blob.sha256) != SHA256_BYTES:
        raise InvalidField(f"{field}.sha256", f"{len(blob.sha256)} bytes; it must have {SHA256_BYTES}")
    if blob.size_bytes < 0:
        raise InvalidField(f"{field}.size_bytes", f"{blob.size_bytes} is below 0")
    if len(blob.preview) > MAX_PREVIEW_BYTES:
        raise InvalidField(f"{field}.preview", f"{len(blob.preview):,} bytes, more than {MAX_PREVIEW_BYTES:,}")


def only_commutative(diff: Diff) -> int | None:
    """Returns the index of the first edit that needs a base (not in ``COMMUTATIVE``); None if there is none."""
    for index, edit in enumerate(diff.edits):
        if edit.WhichOneof("edit") not in COMMUTATIVE:
            return index
    return None


def apply_edits(tree: StateTree, diff: Diff, version: int) -> StateTree:
    """Applies edits that passed ``check_diff`` or were made by the daemon, and returns the new state.

    ``version`` becomes the rewritten version of every log that loses or replaces an entry, and of every log that is
    made under a retired name. Raises EditConflict if an edit does not fit.
    """
    draft = StateDraft(tree, version)
    for index, edit in enumerate(diff.edits):
        kind = edit.WhichOneof("edit")
        if kind is None:
            raise EditConflict(index, f"diff.edits[{index}]", "no edit is set, or this server does not know the edit")
        draft.edit_index, draft.kind = index, kind
        APPLICATIONS[kind](draft, getattr(edit, kind))
    return draft.seal()


def _is_plain(value: Value) -> bool:
    """True for most valid values. Saves the hot loops the path of the field, which only an error needs."""
    return value.WhichOneof("content") == "data" and len(value.media_type) * 4 <= MAX_MEDIA_TYPE_BYTES


def _check_entries(entries: Iterable[Value], field: str, named: list[Named]) -> None:
    for position, value in enumerate(entries):
        # The same test as ``_is_plain``, inline: a call for each of thousands of entries takes a third of the time.
        if value.WhichOneof("content") != "data" or len(value.media_type) * 4 > MAX_MEDIA_TYPE_BYTES:
            check_value(value, f"{field}[{position}]", named)


def _check_set_slot(edit: SetSlot, field: str, named: list[Named]) -> None:
    check_name(edit.slot, f"{field}.slot")
    check_value(edit.value, f"{field}.value", named, number_allowed=True)
    if edit.HasField("expected_sha256") and len(edit.expected_sha256) not in (0, SHA256_BYTES):
        size = len(edit.expected_sha256)
        raise InvalidField(f"{field}.expected_sha256", f"{size} bytes; it must have {SHA256_BYTES}, or none")


def _check_add_number(edit: AddNumber, field: str) -> None:
    check_name(edit.slot, f"{field}.slot")


def _check_delete_slot(edit: DeleteSlot, field: str) -> None:
    check_name(edit.slot, f"{field}.slot")


def _check_splice_slot(edit: SpliceSlot, field: str) -> None:
    if len(edit.base_sha256) != SHA256_BYTES:
        raise InvalidField(f"{field}.base_sha256", f"{len(edit.base_sha256)} bytes; it must have {SHA256_BYTES}")
    _check_splices(edit, field)


def _check_splices(edit: SpliceSlot, field: str) -> None:
    check_name(edit.slot, f"{field}.slot")
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
    "add_number": _check_add_number,
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
