"""The danger: a kind of entries that nobody tells watches of, indexes after a takeover, or verifies."""

from __future__ import annotations

from stateward.storage.v1.journal_pb2 import EntryHeader, EntryKind
from stateward_sidecar.store.journal.kind import Kind
from stateward_sidecar.store.kinds.table import KINDS, kind_of


def test_every_kind_has_one_room() -> None:
    """Each number of the format is in one file of the room; a number of a newer version implies nothing here."""
    numbers = [kind.number for kind in KINDS]
    assert sorted(numbers) == sorted(EntryKind.values())[1:]
    assert type(kind_of(EntryHeader(kind=max(numbers) + 1))) is Kind  # type: ignore[arg-type]
