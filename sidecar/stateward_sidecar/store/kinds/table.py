"""The kinds of entries. A new kind has its file in this room, and its line here."""

from __future__ import annotations

from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward_sidecar.store.journal.kind import Kind
from stateward_sidecar.store.kinds.blob import BLOB, BLOB_REMOVED
from stateward_sidecar.store.kinds.effect import EFFECT, EFFECTS_DELETED
from stateward_sidecar.store.kinds.lease import LEASE
from stateward_sidecar.store.kinds.objects import OBJECTS
from stateward_sidecar.store.kinds.pruned import PRUNED
from stateward_sidecar.store.kinds.record import RECORDS
from stateward_sidecar.store.kinds.ref import HEADS, TAG_DELETED, TAG_SET
from stateward_sidecar.store.kinds.setting import OPTIONS
from stateward_sidecar.store.kinds.signal import SIGNAL
from stateward_sidecar.store.kinds.version import VERSION
from stateward_sidecar.store.thread.ranges import Pruned

KINDS: list[Kind] = [
    VERSION, EFFECT, EFFECTS_DELETED, RECORDS, SIGNAL, LEASE, TAG_SET, TAG_DELETED, HEADS, OPTIONS, BLOB, BLOB_REMOVED,
    PRUNED, OBJECTS,
]  # fmt: skip
_BY_NUMBER: dict[int, Kind] = {kind.number: kind for kind in KINDS}
_UNKNOWN = Kind()


def kind_of(header: EntryHeader) -> Kind:
    """Returns the kind of an entry. One that this version does not know implies nothing."""
    return _BY_NUMBER.get(header.kind, _UNKNOWN)


def kind_numbered(number: int) -> Kind | None:
    """Returns the kind with a number; None if this version does not know it."""
    return _BY_NUMBER.get(number)


def is_cut(pruned: Pruned, header: EntryHeader) -> bool:
    """Returns whether the second part of an entry may be gone, or all of it: the edits of a pruned version, or an entry
    that counts for nothing."""
    if header.version:
        return header.version in pruned
    return header.sequence in kind_of(header).removed(pruned)
