"""Finds the edits that lead from one state to another, and makes edits smaller for storage.

Finds the splices that lead from the bytes of one value to those of another.

Most values change in one place, so the bytes between their common beginning and their common end are one splice. A
value may also change in several places, such as a list in MessagePack that grows: the count at its front changes too,
and nothing has the place that it had. So a piece of the old bytes is looked for in the new ones. Where it is found, it
is extended to both sides, and what lies before it and behind it is compared in the same way.

For every result, ``apply_edits(old, diff, version)`` has the slots, entries and first indexes of the new state, with
one exception. The indexes differ if a log starts below the first index of the old log or below the end of its retired
name, because an index is never used again. They also differ if the log starts more than ``MAX_PADDING_ENTRIES`` ahead.
Then the entries are right, and they get the next indexes.

The order of edits is: deleted slots, deleted logs, changed slots, changed logs, each ascending by name.

The step from one shown state to another: what a list of states sends in place of the second one.

A step is a Diff for readers. They rebuild the state that Hydrate shows, with every index of its logs, also from a newer
state to an older one. A Diff for the daemon cannot do that, because an index is never used again in a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from stateward.v1.diff_pb2 import DeleteLog, DeleteSlot, Diff, Edit, ReplaceEntry, Splice, SpliceSlot, TrimLog
from stateward.v1.state_pb2 import State
from stateward_sidecar.codec.draft import Change, LogGrown, SlotSet, to_diff
from stateward_sidecar.codec.entries import EMPTY_ENTRIES, NO_RUNS, Entries, differing
from stateward_sidecar.codec.state import LogState, StateTree, byte_length, find_data
from stateward_sidecar.codec.varints import frame, unframe
from stateward_sidecar.errors import InvalidField

# A piece that is looked for. Every match has at least this many bytes, and so saves more than a splice's own fields.
_PIECE_BYTES = 48
# Below this size of an insertion, nothing is looked for in it.
_SMALL_BYTES = 128
# Pieces in the middle, and at the quarters. If none of them is found, the bytes count as different.
_QUARTERS = (2, 1, 3)
# How often a range is divided, so there are at most 64 splices.
_DEPTH = 6


def find_splices(a: bytes, b: bytes) -> list[Splice]:
    """Returns the splices from ``a`` to ``b``, ascending. They need not be the smallest ones. Equal bytes have one."""
    prefix = common_prefix(a, b)
    suffix = common_suffix(a[prefix:], b[prefix:])
    found: list[Splice] = []
    _compare(a, prefix, len(a) - suffix, b, prefix, len(b) - suffix, _DEPTH, found)
    return found or [Splice(offset=prefix)]


def _compare(
    a: bytes, a_start: int, a_end: int, b: bytes, b_start: int, b_end: int, depth: int, found: list[Splice]
) -> None:
    """Adds the splices from one range to the other. The ranges begin and end with different bytes."""
    if depth and a_end - a_start >= _PIECE_BYTES and b_end - b_start >= _SMALL_BYTES:
        for quarter in _QUARTERS:
            at = a_start + (a_end - a_start - _PIECE_BYTES) * quarter // 4
            place = b.find(a[at : at + _PIECE_BYTES], b_start, b_end)
            if place >= 0:
                before = common_suffix(a[a_start:at], b[b_start:place])
                length = _PIECE_BYTES + common_prefix(a[at + _PIECE_BYTES : a_end], b[place + _PIECE_BYTES : b_end])
                _compare(a, a_start, at - before, b, b_start, place - before, depth - 1, found)
                _compare(a, at + length, a_end, b, place + length, b_end, depth - 1, found)
                return
    if a_end > a_start or b_end > b_start:
        found.append(Splice(offset=a_start, delete=a_end - a_start, insert=b[b_start:b_end]))


def common_prefix(a: bytes, b: bytes) -> int:
    """Counts the bytes that both begin with. Halves the range and compares slices, because that is memcmp."""
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


# Below this size a splice saves less than its own fields and the second read of the base cost.
MIN_SPLICED_BYTES = 256
# The most empty entries that are appended and trimmed so that a log starts at a higher index. They are needed because
# no edit sets a first index. They take 4 bytes each, so at most 256 KiB.
MAX_PADDING_ENTRIES = 1 << 16
# Approximate size of an edit without its name and values: tags, lengths, an index.
_EDIT_OVERHEAD_BYTES = 14
_EMPTY_ENTRY = frame(b"\x12\x00")
_SLOT_EDITS = frozenset(("set_slot", "delete_slot", "splice_slot", "add_number"))


def read_state(old: StateTree, new: State) -> tuple[dict[str, bytes], dict[str, LogState]]:
    """Returns the slots and logs of a full state that passed ``check_state``. Logs keep their stored first index.

    Raises InvalidField if the state gives another first index for a log.
    """
    slots = {name: value.SerializeToString() for name, value in new.slots.items()}
    logs = {}
    for name, log in new.logs.items():
        stored = old.logs.get(name)
        first_index = old.retired.get(name, 0) if stored is None else stored.first_index
        if log.HasField("first_index") and log.first_index != first_index:
            text = f"{log.first_index}, but it is stored as {first_index}; to drop entries, send a TrimLog edit"
            raise InvalidField(f"state.logs[{name}].first_index", text)
        logs[name] = LogState(first_index, Entries.of(value.SerializeToString() for value in log.entries))
    return slots, logs


def find_changes(
    old: StateTree, slots: dict[str, bytes], logs: dict[str, LogState], *, with_bases: bool = False
) -> Iterator[Change]:
    """Finds the changes that lead to slots and logs. Splices have a ``base_sha256`` only if ``with_bases``."""
    for name in sorted(old.slots.keys() - slots.keys()):
        yield Edit(delete_slot=DeleteSlot(slot=name))
    for name in sorted(old.logs.keys() - logs.keys()):
        yield Edit(delete_log=DeleteLog(log=name))
    for name in sorted(slots):
        if old.slots.get(name) != slots[name]:
            yield _change_slot(name, old.slots.get(name), slots[name], with_base=with_bases)
    for name in sorted(logs):
        if old.logs.get(name) is not logs[name]:
            yield from _change_log(name, old, logs[name])


def diff_trees(old: StateTree, new: StateTree) -> Diff:
    """Finds the edits that lead from one stored state to any other. A client could send them."""
    return to_diff(find_changes(old, new.slots, new.logs, with_bases=True))


def shrink(tree: StateTree, diff: Diff) -> Diff:
    """Makes a diff smaller for storage: a SetSlot that changes little of a large slot becomes a SpliceSlot.

    Changes only the first edit of a slot, whose base is in ``tree``. The splice has no ``base_sha256``, so the result
    must not leave the daemon. The result also omits ``expected_sha256``, which was checked when the SetSlot was
    applied: a replay would hash the same slot again and again. Returns ``diff`` itself if nothing is gained.
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


def _change_slot(name: str, old: bytes | None, new: bytes, *, with_base: bool) -> Change:
    splice = _splice(name, old, new, with_base=with_base) if old is not None else None
    return SlotSet(name, new) if splice is None else Edit(splice_slot=splice)


def _splice(name: str, old: bytes, new: bytes, *, with_base: bool) -> SpliceSlot | None:
    """Makes splices of two serialized Values. Returns None if they would insert more than half of the new data."""
    if len(new) < MIN_SPLICED_BYTES:
        return None
    before, after = find_data(old), find_data(new)
    if before is None or after is None or before.media_type_field != after.media_type_field:
        return None
    a, b = old[before.start : before.stop], new[after.start : after.stop]
    # Behind the data are fields that this server does not know. A splice keeps those of the old value.
    if len(b) < MIN_SPLICED_BYTES or old[before.stop :] != new[after.stop :]:
        return None
    splices = find_splices(a, b)
    if 2 * sum(len(splice.insert) for splice in splices) > len(b):
        return None
    return SpliceSlot(slot=name, base_sha256=sha256(a).digest() if with_base else b"", splices=splices)


def _change_log(name: str, old: StateTree, new: LogState) -> Iterator[Change]:
    stored = old.logs.get(name)
    base = LogState(old.retired.get(name, 0), EMPTY_ENTRIES) if stored is None else stored
    exists = stored is not None
    if new.first_index < base.first_index or new.first_index > base.next_index + MAX_PADDING_ENTRIES:
        if exists:
            yield Edit(delete_log=DeleteLog(log=name))
        yield LogGrown(name, new.entries[:])
        return
    if new.first_index > base.next_index:
        yield LogGrown(name, [_EMPTY_ENTRY] * (new.first_index - base.next_index))
        exists = True
    if new.first_index > base.first_index:
        yield Edit(trim_log=TrimLog(log=name, before_index=new.first_index))
    trimmed = min(new.first_index - base.first_index, len(base.entries))
    remaining = base.entries.drop_first(trimmed) if trimmed else base.entries
    yield from _change_entries(name, new.first_index, remaining, new.entries)
    if not exists and not new.entries:
        yield LogGrown(name, [])


def _change_entries(name: str, first_index: int, before: Entries, after: Entries) -> Iterator[Change]:
    """Finds the changes from the entries of a log to others that begin at the same index."""
    old_count, new_count = len(before), len(after)
    both = min(old_count, new_count)
    changed = list(differing(before, after, both))  # nearly always none: the log has grown
    keep = both
    if changed:
        edit_bytes, first = byte_length(name) + _EDIT_OVERHEAD_BYTES, changed[0][0]
        replacing = sum(len(item) + edit_bytes for _, item in changed)
        # A trim and an append, unless the log's new length needs them anyway.
        more_edits = (old_count == both) + (new_count == both)
        # Of a log with segments no entry is read for this: all after the first one count.
        is_long = after.runs.count > first
        rewriting = after.size_after(first) if is_long else sum(map(len, after[first:both]))
        if rewriting + more_edits * edit_bytes < replacing:
            keep, changed = first, []
    for position, item in changed:
        edit = Edit(replace_entry=ReplaceEntry(log=name, index=first_index + position))
        edit.replace_entry.value.MergeFromString(unframe(item))
        yield edit
    if keep < old_count:
        yield Edit(trim_log=TrimLog(log=name, from_index=first_index + keep))
    if keep < new_count:
        yield LogGrown(name, after[keep:])


def unshared_bytes(old: StateTree, new: StateTree) -> int:
    """Returns how many bytes of segments are read to find the changes from one state to another, at most."""
    size_bytes = 0
    for name in new.logs.keys() | old.logs.keys():
        ours, theirs = (tree.logs[name].entries.runs if name in tree.logs else NO_RUNS for tree in (new, old))
        if name in new.logs and ours is not theirs:
            size_bytes += ours.bytes_beside(theirs) + theirs.bytes_beside(ours)
    return size_bytes


def find_step(old: StateTree, new: StateTree) -> tuple[Diff, dict[str, int]]:
    """Returns the edits that lead a reader from one state to another, and the changed ``rewritten_version``s of logs.

    A log that is made begins at the ``at_index`` of its append. A log that begins before or behind the entries of the
    old one is removed and made again.
    """
    remade = {name for name, log in new.logs.items() if name in old.logs and not _overlap(old.logs[name], log)}
    kept = {name: log for name, log in old.logs.items() if name not in remade}
    begins = {name: log.first_index for name, log in new.logs.items() if name not in kept}
    diff = Diff(edits=[Edit(delete_log=DeleteLog(log=name)) for name in sorted(remade)])
    # If a log that is made again has the right first index, it needs no padding.
    diff.MergeFrom(to_diff(find_changes(StateTree(old.slots, kept, begins, 0), new.slots, new.logs)))
    for edit in diff.edits:
        if edit.HasField("append") and edit.append.log in begins:
            edit.append.at_index = begins[edit.append.log]
    rewritten = {name: log.rewritten_version for name, log in new.logs.items()}
    return diff, {name: version for name, version in rewritten.items() if version != _rewritten(old, name)}


def _overlap(old: LogState, new: LogState) -> bool:
    return old.first_index <= new.first_index <= old.next_index


def _rewritten(tree: StateTree, name: str) -> int:
    log = tree.logs.get(name)
    return log.rewritten_version if log is not None else 0
