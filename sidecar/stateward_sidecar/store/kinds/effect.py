"""Effects: their claims and results, and their deletion."""

from __future__ import annotations

from collections.abc import Iterator

import lmdb

from stateward.storage.v1.head_pb2 import EffectRow
from stateward.storage.v1.journal_pb2 import ENTRY_KIND_EFFECT, ENTRY_KIND_EFFECTS_DELETED, EntryMetadata
from stateward.v1.thread_service_pb2 import JournalEvent
from stateward_sidecar.codec.entry import Entry
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.journal.kind import Kind, Watched
from stateward_sidecar.store.kinds.effectrows import index_effect, verify_effects, view_effect
from stateward_sidecar.store.thread.ranges import Pruned, Ranges
from stateward_sidecar.store.thread.thread import Thread, ThreadDraft


class EffectKind(Kind):
    """A claim on an effect, or its result."""

    number = ENTRY_KIND_EFFECT
    may_repeat_id = True  # a claim that is made again

    def removed(self, pruned: Pruned) -> Ranges:
        """Those of deleted effects."""
        return pruned.effects

    def tell(self, watched: Watched, event: JournalEvent) -> bool:
        """Without its value, which is in the second part of the entry."""
        metadata = watched.metadata()
        row = EffectRow(record=metadata.effect, sequence=watched.entry.header.sequence)
        event.effect.CopyFrom(view_effect(row))
        if metadata.HasField("told"):
            event.status_told.CopyFrom(metadata.told)
        return True

    def index(
        self, txn: lmdb.Transaction, draft: ThreadDraft, entry: Entry, metadata: EntryMetadata, *, is_whole: bool
    ) -> None:
        """The row of the effect."""
        if is_whole:
            index_effect(txn, draft.identity, entry.header, metadata.effect)

    def verify(self, txn: lmdb.Transaction, thread: Thread) -> Iterator[Corrupt]:
        """All rows, and their sum in the head."""
        return verify_effects(txn, thread)


class EffectsDeletedKind(Kind):
    """The deletion of effects."""

    number = ENTRY_KIND_EFFECTS_DELETED

    def tell(self, watched: Watched, event: JournalEvent) -> bool:
        """Which ones."""
        event.effects_deleted.CopyFrom(watched.metadata().deleted_effects)
        return True


EFFECT, EFFECTS_DELETED = EffectKind(), EffectsDeletedKind()
