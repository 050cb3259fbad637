"""What is asked of a kind of entries. A kind answers what it has something to say to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import lmdb

from stateward.storage.v1.journal_pb2 import EntryKind, EntryMetadata
from stateward.v1.thread_service_pb2 import JournalEvent
from stateward_sidecar.codec.entry import Entry
from stateward_sidecar.codec.pages import Selection
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.thread.cache import Cache
from stateward_sidecar.store.thread.thread import Thread, ThreadDraft


@dataclass(frozen=True, slots=True)
class Watched:
    """An entry that a watch came to, and what the watch asks for."""

    txn: lmdb.Transaction
    thread: Thread
    entry: Entry
    cache: Cache
    selection: Selection
    include_diff: bool
    include_records: bool

    def metadata(self) -> EntryMetadata:
        """The first part of the entry. Raises Corrupt."""
        return replay.open_metadata(self.thread.identity, self.entry)


@dataclass(slots=True)
class Refs:
    """Heads of branches and tags, as the entries so far set them."""

    branches: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)


class Kind:
    """The kind of an entry, or of several that belong together."""

    numbers: tuple[EntryKind, ...]

    def tell(self, watched: Watched, event: JournalEvent) -> bool:
        """Fills the event of an entry. Returns whether the watch is told of it. Raises Corrupt."""
        watched.metadata()  # the header is authenticated with it, and says which kind this is
        return True

    def index(
        self, txn: lmdb.Transaction, draft: ThreadDraft, entry: Entry, metadata: EntryMetadata, *, is_whole: bool
    ) -> None:
        """Puts the rows that an entry from the archive implies, unless there are newer ones. The head counts them
        already. ``is_whole``: its second part is there, and counts for something."""

    def follow(self, refs: Refs, thread: Thread, entry: Entry, metadata: EntryMetadata) -> None:
        """Notes what an entry says about branches and tags."""

    def verify(self, txn: lmdb.Transaction, thread: Thread) -> Iterator[Corrupt]:
        """Compares the rows of the kind with the head, and with the entries that they name. Yields the damage."""
        yield from ()
