"""Edits, one frozen dataclass for each kind: what `diff`, `history` and `watch` return, and `thread.apply` takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stateward import values
from stateward.v1 import diff_pb2


@dataclass(frozen=True)
class SetSlot:
    """A slot got a new value."""

    slot: str
    value: Any


@dataclass(frozen=True)
class DeleteSlot:
    """A slot was removed."""

    slot: str


@dataclass(frozen=True)
class SpliceSlot:
    """Ranges of a slot's bytes were replaced: (offset before the edit, bytes removed, bytes put in their place)."""

    slot: str
    splices: tuple[tuple[int, int, bytes], ...]
    base_sha256: bytes = b""
    """SHA-256 of the bytes before the edit; empty = unknown. `apply` then reads them at its parent."""


@dataclass(frozen=True)
class AddNumber:
    """`delta` was added to the number in a slot."""

    slot: str
    delta: int


@dataclass(frozen=True)
class Append:
    """Entries were added at the end of a log. `at_index` is the index of the first entry; None = unknown, and for
    `apply` the end of the log, wherever it is."""

    log: str
    entries: tuple[Any, ...]
    at_index: int | None = None


@dataclass(frozen=True)
class ReplaceEntry:
    """One entry of a log got a new value."""

    log: str
    index: int
    value: Any


@dataclass(frozen=True)
class TrimLog:
    """Entries at the start or the end of a log were removed. Exactly one of the three fields is set."""

    log: str
    keep_last: int | None = None
    before_index: int | None = None
    from_index: int | None = None


@dataclass(frozen=True)
class DeleteLog:
    """A log was removed."""

    log: str


Change = SetSlot | DeleteSlot | SpliceSlot | AddNumber | Append | ReplaceEntry | TrimLog | DeleteLog


def changes_from_proto(diff: diff_pb2.Diff) -> list[Change]:
    """Returns the edits of a diff in order, with decoded values."""
    return [_change(edit) for edit in diff.edits]


def _change(edit: diff_pb2.Edit) -> Change:
    match edit.WhichOneof("edit"):
        case "set_slot":
            return SetSlot(edit.set_slot.slot, values.decode_leniently(edit.set_slot.value))
        case "delete_slot":
            return DeleteSlot(edit.delete_slot.slot)
        case "splice_slot":
            splices = ((splice.offset, splice.delete, splice.insert) for splice in edit.splice_slot.splices)
            return SpliceSlot(edit.splice_slot.slot, tuple(splices), edit.splice_slot.base_sha256)
        case "add_number":
            return AddNumber(edit.add_number.slot, edit.add_number.delta)
        case "append":
            index = edit.append.at_index if edit.append.HasField("at_index") else None
            return Append(edit.append.log, tuple(map(values.decode_leniently, edit.append.entries)), index)
        case "replace_entry":
            value = values.decode_leniently(edit.replace_entry.value)
            return ReplaceEntry(edit.replace_entry.log, edit.replace_entry.index, value)
        case "trim_log":
            kind = edit.trim_log.WhichOneof("trim") or "keep_last"
            return TrimLog(edit.trim_log.log, **{kind: getattr(edit.trim_log, kind)})
        case "delete_log":
            return DeleteLog(edit.delete_log.log)
        case _:
            raise ValueError("the daemon sent a kind of edit that this client does not know; hydrate instead")


def edit_to_proto(change: Change, path: str) -> diff_pb2.Edit:
    """Returns the message that `changes_from_proto` reads. Raises TypeError or ValueError, whose text begins with
    `path`, if a value cannot be stored or a field has a wrong type."""
    try:
        return _edit(change, path)
    except (TypeError, ValueError) as error:
        if str(error).startswith(path):
            raise
        raise type(error)(f"{path}: {error}") from error


def _edit(change: Change, path: str) -> diff_pb2.Edit:
    match change:
        case SetSlot(slot, value):
            stored = values.encode_slot(value, f"{path}.value")
            return diff_pb2.Edit(set_slot=diff_pb2.SetSlot(slot=slot, value=stored))
        case DeleteSlot(slot):
            return diff_pb2.Edit(delete_slot=diff_pb2.DeleteSlot(slot=slot))
        case SpliceSlot(slot, splices, base_sha256):
            ranges = [diff_pb2.Splice(offset=at, delete=removed, insert=put) for at, removed, put in splices]
            return diff_pb2.Edit(splice_slot=diff_pb2.SpliceSlot(slot=slot, base_sha256=base_sha256, splices=ranges))
        case AddNumber(slot, delta):
            return diff_pb2.Edit(add_number=diff_pb2.AddNumber(slot=slot, delta=delta))
        case Append(log, entries, at_index):
            stored_entries = [values.encode(entry, f"{path}.entries[{at}]") for at, entry in enumerate(entries)]
            return diff_pb2.Edit(append=diff_pb2.Append(log=log, entries=stored_entries, at_index=at_index))
        case ReplaceEntry(log, index, value):
            stored = values.encode(value, f"{path}.value")
            return diff_pb2.Edit(replace_entry=diff_pb2.ReplaceEntry(log=log, index=index, value=stored))
        case TrimLog(log, keep_last, before_index, from_index):
            if sum(each is not None for each in (keep_last, before_index, from_index)) != 1:
                raise ValueError(f"{path}: give exactly one of keep_last, before_index and from_index")
            trim = diff_pb2.TrimLog(log=log, keep_last=keep_last, before_index=before_index, from_index=from_index)
            return diff_pb2.Edit(trim_log=trim)
        case DeleteLog(log):
            return diff_pb2.Edit(delete_log=diff_pb2.DeleteLog(log=log))
    raise TypeError(f"{path}: {change!r} is no change of stateward.changes")
