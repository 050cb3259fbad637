"""Tags, heads that moved, and branches that were deleted."""

from __future__ import annotations

from stateward.storage.v1.journal_pb2 import (
    ENTRY_KIND_HEADS,
    ENTRY_KIND_TAG_DELETED,
    ENTRY_KIND_TAG_SET,
    EntryMetadata,
    HeadMove,
)
from stateward.v1.thread_service_pb2 import JournalEvent, MovedHead
from stateward_sidecar.codec.entry import Entry
from stateward_sidecar.store.journal.kind import Kind, Refs, Watched
from stateward_sidecar.store.thread.thread import Thread


class TagSetKind(Kind):
    """A tag that was set."""

    number = ENTRY_KIND_TAG_SET
    is_loose = True

    def tell(self, watched: Watched, event: JournalEvent) -> bool:
        """The tag."""
        event.tag_set.CopyFrom(watched.metadata().tag)
        return True

    def follow(self, refs: Refs, thread: Thread, entry: Entry, metadata: EntryMetadata) -> None:
        """It names its version."""
        refs.tags[metadata.tag.name] = metadata.tag.version


class TagDeletedKind(Kind):
    """A tag that was deleted."""

    number = ENTRY_KIND_TAG_DELETED
    is_loose = True

    def tell(self, watched: Watched, event: JournalEvent) -> bool:
        """The tag."""
        event.tag_deleted.CopyFrom(watched.metadata().tag)
        return True

    def follow(self, refs: Refs, thread: Thread, entry: Entry, metadata: EntryMetadata) -> None:
        """It is gone."""
        refs.tags.pop(metadata.tag.name, None)


class HeadsKind(Kind):
    """Heads that moved to an older version, and branches that were deleted."""

    number = ENTRY_KIND_HEADS
    is_loose = True

    def tell(self, watched: Watched, event: JournalEvent) -> bool:
        """Where they are."""
        event.heads_moved.heads.extend(map(_view_move, watched.metadata().heads))
        return True

    def follow(self, refs: Refs, thread: Thread, entry: Entry, metadata: EntryMetadata) -> None:
        """The branches have these heads. A branch without a version is deleted."""
        for move in metadata.heads:
            refs.branches[move.branch] = (move.version, move.digest)
            if not move.version:
                del refs.branches[move.branch]


TAG_SET, TAG_DELETED, HEADS = TagSetKind(), TagDeletedKind(), HeadsKind()


def _view_move(move: HeadMove) -> MovedHead:
    return MovedHead(
        branch=move.branch, version=move.version, version_digest=move.digest, previous_version=move.before_version
    )
