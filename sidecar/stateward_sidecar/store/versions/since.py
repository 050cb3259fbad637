"""What changed between a version that a client has and a later one: the slots and logs that the edits between name.

Only edits are read, no older state. So an answer to a client that has the version before costs one entry.
"""

from __future__ import annotations

from dataclasses import dataclass

import lmdb

from stateward_sidecar.codec.pages import Selection
from stateward_sidecar.codec.state import StateTree
from stateward_sidecar.errors import HistoryElsewhere
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Thread

# The most versions whose edits are read. A client that has an older version gets the whole state.
VERSIONS_MAX = 100
# Edits of this size are read, however small the state is. Larger ones are not, if they are larger than the state: they
# would hold up the event loop, and the state is the shorter answer.
EDITS_BYTES_FREE = 64 << 10
# The names of what was removed are all on the first page, which has room for so many characters.
NAMES_MAX = 128 << 10


@dataclass(frozen=True, slots=True)
class Since:
    """A part of a state, and the names to remove before the part is put over the known state."""

    selection: Selection
    removed_slots: list[str]
    removed_logs: list[str]


NOTHING = Since(Selection(frozenset(), {}), [], [])


def changes_since(
    context: Context, txn: lmdb.Transaction, thread: Thread, version: int, tree: StateTree, known: int, digest: bytes
) -> Since | None:
    """Returns what changed from the version ``known`` to ``version``, whose state is ``tree``.

    Returns None if ``known`` has another digest, is no ancestor, or is too far away. Raises Corrupt.
    """
    identity = thread.identity
    slots, appended, rewritten = set[str](), dict[str, int](), set[str]()
    read_bytes = 0
    for _ in range(VERSIONS_MAX):
        if not known < version or version in thread.pruned or read_bytes > tree.size_bytes:
            return None
        try:
            entry = replay.read_version(txn, thread, version)
        except HistoryElsewhere:
            return None
        if entry.header.edit_bytes > max(tree.size_bytes, EDITS_BYTES_FREE):
            return None
        edits = replay.read_edits(txn, identity, entry, context.cache)
        read_bytes += len(edits)
        for edit in replay.parse_edits(edits, thread.name, version).edits:
            kind = edit.WhichOneof("edit")
            if kind is None:  # of a later version of this program
                return None
            change = getattr(edit, kind)
            if kind == "append":
                appended[change.log] = appended.get(change.log, 0) + len(change.entries)
            elif hasattr(change, "log"):
                rewritten.add(change.log)
            else:
                slots.add(change.slot)
        version = entry.header.parent_version
        if version == known:
            break
    if version != known or not is_known(txn, thread, known, digest):
        return None
    logs: dict[str, int | None] = {name: count for name, count in appended.items() if name not in rewritten}
    logs.update(dict.fromkeys(rewritten))
    removed_slots, removed_logs = sorted(slots - tree.slots.keys()), sorted(rewritten)
    if sum(map(len, removed_slots)) + sum(map(len, removed_logs)) > NAMES_MAX:
        return None
    return Since(Selection(frozenset(slots), logs), removed_slots, removed_logs)


def is_known(txn: lmdb.Transaction, thread: Thread, version: int, digest: bytes) -> bool:
    """Returns whether a version is there with this digest."""
    if version in thread.pruned or not 0 < version <= thread.head.last_version:
        return False
    try:
        entry = replay.read_version(txn, thread, version)
    except HistoryElsewhere:
        return False
    replay.open_metadata(thread.identity, entry)  # proves the digest in its header
    return entry.header.digest == digest
