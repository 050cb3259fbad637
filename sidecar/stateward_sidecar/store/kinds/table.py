"""The kinds of entries. A new kind has its file in this room, and its line here."""

from __future__ import annotations

from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward_sidecar.store.kinds.base import Kind
from stateward_sidecar.store.kinds.blob import BlobKind
from stateward_sidecar.store.kinds.effect import EffectKind, EffectsDeletedKind
from stateward_sidecar.store.kinds.lease import LeaseKind
from stateward_sidecar.store.kinds.pruned import PrunedKind
from stateward_sidecar.store.kinds.record import RecordKind
from stateward_sidecar.store.kinds.ref import HeadsKind, TagDeletedKind, TagSetKind
from stateward_sidecar.store.kinds.setting import OptionsKind
from stateward_sidecar.store.kinds.signal import SignalKind
from stateward_sidecar.store.kinds.version import VersionKind

KINDS: tuple[Kind, ...] = (
    VersionKind(), EffectKind(), EffectsDeletedKind(), RecordKind(), SignalKind(), LeaseKind(),
    TagSetKind(), TagDeletedKind(), HeadsKind(), OptionsKind(), BlobKind(), PrunedKind(),
)  # fmt: skip
_BY_NUMBER: dict[int, Kind] = {number: kind for kind in KINDS for number in kind.numbers}
_UNKNOWN = Kind()


def kind_of(header: EntryHeader) -> Kind:
    """Returns the kind of an entry. One that this version does not know implies nothing."""
    return _BY_NUMBER.get(header.kind, _UNKNOWN)
