"""Versions."""

from __future__ import annotations

import lmdb

from stateward.storage.v1.journal_pb2 import ENTRY_KIND_CHECKPOINT, EntryMetadata
from stateward.v1.diff_pb2 import Diff
from stateward.v1.thread_service_pb2 import JournalEvent
from stateward_sidecar.codec.entry import Entry
from stateward_sidecar.codec.pages import Selection
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.storage import layout
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.journal import label_keys
from stateward_sidecar.store.journal.kind import Kind, Refs, Watched
from stateward_sidecar.store.journal.views import view_entry
from stateward_sidecar.store.thread.thread import MAIN, Thread, ThreadDraft


class VersionKind(Kind):
    """A version: a save."""

    number = ENTRY_KIND_CHECKPOINT

    def tell(self, watched: Watched, event: JournalEvent) -> bool:
        """A version that changes none of the chosen slots and logs is left out. The edits of a pruned one are gone, so
        it is always told."""
        thread, entry, selection = watched.thread, watched.entry, watched.selection
        header = entry.header
        if header.version not in thread.pruned and (watched.include_diff or not selection.is_everything):
            stored = replay.read_edits(watched.txn, thread.identity, entry, watched.cache)
            diff = select_edits(replay.parse_edits(stored, thread.name, header.version), selection)
            if not diff.edits and not selection.is_everything and not header.whole:
                return False
            if watched.include_diff:
                event.diff.CopyFrom(diff)
        event.checkpoint.CopyFrom(view_entry(thread, entry))
        return True

    def index(
        self, txn: lmdb.Transaction, draft: ThreadDraft, entry: Entry, metadata: EntryMetadata, *, is_whole: bool
    ) -> None:
        """The rows of its checkpoint id and its labels. A pruned version has them, too: retries may ask for it."""
        identity, header, body = draft.identity, entry.header, metadata.checkpoint
        if body.checkpoint_id:
            key = identity.keys.checkpoint_id(
                identity.hash_id(b"checkpoint", body.branch or MAIN, body.checkpoint_id)
            )
            if not _leads_later(txn.get(key), header.sequence):
                txn.put(key, layout.u64(header.sequence))
        for key in label_keys(identity, header, body.labels):
            txn.put(key, layout.PRESENT)

    def follow(self, refs: Refs, thread: Thread, entry: Entry, metadata: EntryMetadata) -> None:
        """It is the head of its branch."""
        if entry.header.version not in thread.pruned:
            refs.branches[metadata.checkpoint.branch or MAIN] = (entry.header.version, entry.header.digest)


VERSION = VersionKind()


def select_edits(diff: Diff, selection: Selection) -> Diff:
    """Returns only the edits of the selected slots and logs."""
    if selection.is_everything:
        return diff
    slots, logs = selection.slots or (), selection.logs or {}
    kept = Diff()
    for edit in diff.edits:
        change = getattr(edit, edit.WhichOneof("edit") or "set_slot")
        if (change.slot in slots) if hasattr(change, "slot") else (change.log in logs):
            kept.edits.append(edit)
    return kept


def _leads_later(row: bytes | memoryview | None, sequence: int) -> bool:
    """Returns whether the row of a checkpoint id leads to a later entry. The id may be used again once its version was
    pruned, and packs may still have the older entry."""
    try:
        return row is not None and layout.leading_number(row) > sequence
    except Corrupt:
        return False
