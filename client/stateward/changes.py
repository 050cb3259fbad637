"""The edits that `diff`, `history` and `watch` return: one frozen dataclass for each kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stateward import values
from stateward.v1 import diff_pb2


@dataclass(frozen=True)
class SlotSet:
    """A slot got a new value."""

    slot: str
    value: Any


@dataclass(frozen=True)
class SlotDeleted:
    """A slot was removed."""

    slot: str


@dataclass(frozen=True)
class SlotSpliced:
    """Ranges of a slot's bytes were replaced: (offset before the edit, bytes removed, bytes put in their place)."""

    slot: str
    splices: tuple[tuple[int, int, bytes], ...]


@dataclass(frozen=True)
class NumberAdded:
    """`delta` was added to the number in a slot."""

    slot: str
    delta: int


@dataclass(frozen=True)
class EntriesAppended:
    """Entries were added at the end of a log. `at_index` is the index of the first entry; None = unknown."""

    log: str
    entries: tuple[Any, ...]
    at_index: int | None


@dataclass(frozen=True)
class EntryReplaced:
    """One entry of a log got a new value."""

    log: str
    index: int
    value: Any


@dataclass(frozen=True)
class LogTrimmed:
    """Entries at the start or the end of a log were removed. Exactly one of the three fields is set."""

    log: str
    keep_last: int | None = None
    before_index: int | None = None
    from_index: int | None = None


@dataclass(frozen=True)
class LogDeleted:
    """A log was removed."""

    log: str


Change = SlotSet | SlotDeleted | SlotSpliced | NumberAdded | EntriesAppended | EntryReplaced | LogTrimmed | LogDeleted


def changes_from_proto(diff: diff_pb2.Diff) -> list[Change]:
    """Returns the edits of a diff in order, with decoded values."""
    return [_change(edit) for edit in diff.edits]


def _change(edit: diff_pb2.Edit) -> Change:
    match edit.WhichOneof("edit"):
        case "set_slot":
            return SlotSet(edit.set_slot.slot, values.decode_leniently(edit.set_slot.value))
        case "delete_slot":
            return SlotDeleted(edit.delete_slot.slot)
        case "splice_slot":
            splices = ((splice.offset, splice.delete, splice.insert) for splice in edit.splice_slot.splices)
            return SlotSpliced(edit.splice_slot.slot, tuple(splices))
        case "add_number":
            return NumberAdded(edit.add_number.slot, edit.add_number.delta)
        case "append":
            index = edit.append.at_index if edit.append.HasField("at_index") else None
            return EntriesAppended(edit.append.log, tuple(map(values.decode_leniently, edit.append.entries)), index)
        case "replace_entry":
            value = values.decode_leniently(edit.replace_entry.value)
            return EntryReplaced(edit.replace_entry.log, edit.replace_entry.index, value)
        case "trim_log":
            kind = edit.trim_log.WhichOneof("trim") or "keep_last"
            return LogTrimmed(edit.trim_log.log, **{kind: getattr(edit.trim_log, kind)})
        case "delete_log":
            return LogDeleted(edit.delete_log.log)
        case _:
            raise ValueError("the daemon sent a kind of edit that this client does not know; hydrate instead")
