"""Differences: the edits that lead from one state to another, and the same edits made smaller for storage.

For every result, ``apply_edits(old, diff, version)`` has the slots, entries and first indexes of the new state. One
exception: an index that was given out can never be reached again (a log that starts lower than the old one's did,
or than its retired name ends), and one that lies more than ``MAX_PADDING_ENTRIES`` ahead is not worth the way. Then
the entries are right and their indexes are those that come next.

Edits stand in one order: deleted slots, deleted logs, changed slots, changed logs, each ascending by name.
"""

from __future__ import annotations

from hashlib import sha256

from stateward.v1.diff_pb2 import Diff, SpliceSlot
from stateward.v1.state_pb2 import State
from stateward_sidecar.codec.state import (
    EMPTY_ENTRIES,
    Entries,
    LogState,
    StateTree,
    byte_length,
    find_data,
    unframe,
)
from stateward_sidecar.errors import InvalidField

# Below this a splice saves less than its own fields and the second look at the base cost.
MIN_SPLICED_BYTES = 256
# Empty entries that are appended and trimmed so that a log starts at a higher index: no edit names an index to start
# at. 4 bytes each, so at most 256 KiB.
MAX_PADDING_ENTRIES = 1 << 16
# About what an edit takes beside its name and values: tags, lengths, an index.
_EDIT_OVERHEAD_BYTES = 14
_EMPTY_VALUE = b"\x12\x00"
_SLOT_EDITS = frozenset(("set_slot", "delete_slot", "splice_slot", "add_number"))


def diff_from_state(old: StateTree, new: State) -> Diff:
    """Finds the edits that lead to a full state that a client sent, which passed ``check_state``.

    Splices carry no ``base_sha256``: the edits are meant for storage. Raises InvalidField where the first index of a
    log is not as stored.
    """
    slots = {name: value.SerializeToString() for name, value in new.slots.items()}
    logs = {}
    for name, log in new.logs.items():
        stored = old.logs.get(name)
        first_index = old.retired.get(name, 0) if stored is None else stored.first_index
        if log.HasField("first_index") and log.first_index != first_index:
            text = f"{log.first_index}, but it is stored as {first_index}; to drop entries send a TrimLog edit"
            raise InvalidField(f"state.logs[{name}].first_index", text)
        logs[name] = LogState(first_index, Entries.of([value.SerializeToString() for value in log.entries]))
    return _diff(old, slots, logs, with_bases=False)


def diff_trees(old: StateTree, new: StateTree) -> Diff:
    """Finds the edits that lead from one stored state to another, related or not. A client could send them."""
    return _diff(old, new.slots, new.logs, with_bases=True)


def shrink(tree: StateTree, diff: Diff) -> Diff:
    """Makes a diff smaller for storage: a SetSlot that changes little of a large slot becomes a SpliceSlot.

    Only a slot's first edit, whose base is in ``tree``. The splice has no ``base_sha256``, so the result must not
    leave the daemon as it is. What a SetSlot expected was checked when it was applied, and is left out: a replay would
    hash the same slot each time to find the same. Returns ``diff`` itself where nothing is gained.
    """
    splices: dict[int, SpliceSlot] = {}
    seen: set[str] = set()
    expects = False
    for index, edit in enumerate(diff.edits):
        kind = edit.WhichOneof("edit")
        if kind not in _SLOT_EDITS:
            continue
        expects = expects or (kind == "set_slot" and edit.set_slot.HasField("expected_sha256"))
        name = getattr(edit, kind).slot
        if kind == "set_slot" and name not in seen and name in tree.slots:
            splice = _splice(name, tree.slots[name], edit.set_slot.value.SerializeToString(), with_base=False)
            if splice is not None:
                splices[index] = splice
        seen.add(name)
    if not splices and not expects:
        return diff
    smaller = Diff()
    for index, edit in enumerate(diff.edits):
        if index in splices:
            smaller.edits.add().splice_slot.CopyFrom(splices[index])
        else:
            smaller.edits.append(edit)
            if edit.HasField("set_slot"):
                smaller.edits[-1].set_slot.ClearField("expected_sha256")
    return smaller


def common_prefix(a: bytes, b: bytes) -> int:
    """Counts the bytes that both begin with. Halves the range and compares slices, which is memcmp."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    # Equal up to `low`; the first difference is before `high`.
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def common_suffix(a: bytes, b: bytes) -> int:
    """Counts the bytes that both end with."""
    low, high = 0, min(len(a), len(b))
    if a[len(a) - high :] == b[len(b) - high :]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[len(a) - middle : len(a) - low] == b[len(b) - middle : len(b) - low]:
            low = middle
        else:
            high = middle
    return low


def _diff(old: StateTree, slots: dict[str, bytes], logs: dict[str, LogState], *, with_bases: bool) -> Diff:
    diff = Diff()
    for name in sorted(old.slots.keys() - slots.keys()):
        diff.edits.add().delete_slot.slot = name
    for name in sorted(old.logs.keys() - logs.keys()):
        diff.edits.add().delete_log.log = name
    for name in sorted(slots):
        if old.slots.get(name) != slots[name]:
            _add_slot(diff, name, old.slots.get(name), slots[name], with_base=with_bases)
    for name in sorted(logs):
        if old.logs.get(name) is not logs[name]:
            _add_log(diff, name, old, logs[name])
    return diff


def _add_slot(diff: Diff, name: str, old: bytes | None, new: bytes, *, with_base: bool) -> None:
    splice = _splice(name, old, new, with_base=with_base) if old is not None else None
    if splice is not None:
        diff.edits.add().splice_slot.CopyFrom(splice)
        return
    edit = diff.edits.add().set_slot
    edit.slot = name
    edit.value.MergeFromString(new)


def _splice(name: str, old: bytes, new: bytes, *, with_base: bool) -> SpliceSlot | None:
    """Makes a splice of two serialized Values, or None where it would insert more than half of the new data."""
    if len(new) < MIN_SPLICED_BYTES:
        return None
    before, after = find_data(old), find_data(new)
    if before is None or after is None or before.media_type_field != after.media_type_field:
        return None
    a, b = old[before.start : before.stop], new[after.start : after.stop]
    # Behind the data are fields that this server does not know; a splice leaves those of the old value.
    if len(b) < MIN_SPLICED_BYTES or old[before.stop :] != new[after.stop :]:
        return None
    prefix = common_prefix(a, b)
    suffix = common_suffix(a[prefix:], b[prefix:])
    insert = b[prefix : len(b) - suffix]
    if 2 * len(insert) > len(b):
        return None
    edit = SpliceSlot(slot=name, base_sha256=sha256(a).digest() if with_base else b"")
    edit.splices.add(offset=prefix, delete=len(a) - suffix - prefix, insert=insert)
    return edit


def _add_log(diff: Diff, name: str, old: StateTree, new: LogState) -> None:
    stored = old.logs.get(name)
    base = LogState(old.retired.get(name, 0), EMPTY_ENTRIES) if stored is None else stored
    exists = stored is not None
    if new.first_index < base.first_index or new.first_index > base.next_index + MAX_PADDING_ENTRIES:
        if exists:
            diff.edits.add().delete_log.log = name
        _add_append(diff, name, new.entries[:])
        return
    if new.first_index > base.next_index:
        _add_append(diff, name, [], padding=new.first_index - base.next_index)
        exists = True
    if new.first_index > base.first_index:
        trim = diff.edits.add().trim_log
        trim.log, trim.before_index = name, new.first_index
    remaining = base.entries[new.first_index - base.first_index :]
    _add_entries(diff, name, new.first_index, remaining, new.entries[:])
    if not exists and not new.entries:
        _add_append(diff, name, [])


def _add_entries(diff: Diff, name: str, first_index: int, old: list[bytes], new: list[bytes]) -> None:
    """Leads from one list of frames to another that begins at the same index."""
    both = min(len(old), len(new))
    if old[:both] == new[:both]:  # nearly always: the log has grown
        differing = []
    else:
        differing = [position for position in range(both) if old[position] != new[position]]
    keep = both
    if differing:
        edit_bytes = byte_length(name) + _EDIT_OVERHEAD_BYTES
        replacing = sum(len(new[position]) + edit_bytes for position in differing)
        # A trim and an append, where the log's length does not ask for them anyway.
        more_edits = (len(old) == both) + (len(new) == both)
        rewriting = sum(map(len, new[differing[0] : both])) + more_edits * edit_bytes
        if rewriting < replacing:
            keep, differing = differing[0], []
    for position in differing:
        replace = diff.edits.add().replace_entry
        replace.log, replace.index = name, first_index + position
        replace.value.MergeFromString(unframe(new[position]))
    if keep < len(old):
        trim = diff.edits.add().trim_log
        trim.log, trim.from_index = name, first_index + keep
    if keep < len(new):
        _add_append(diff, name, new[keep:])


def _add_append(diff: Diff, name: str, items: list[bytes], *, padding: int = 0) -> None:
    edit = diff.edits.add().append
    edit.log = name
    for _ in range(padding):
        edit.entries.add().MergeFromString(_EMPTY_VALUE)
    for item in items:
        edit.entries.add().MergeFromString(unframe(item))
