"""What is asked of a kind of entries. A kind answers what it has something to say to; `kinds/` has a file for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import lmdb

from stateward.storage.v1.journal_pb2 import EntryHeader, EntryKind, EntryMetadata
from stateward.v1.thread_service_pb2 import JournalEvent
from stateward_sidecar.codec.entry import Entry
from stateward_sidecar.codec.pages import Selection
from stateward_sidecar.errors import Corrupt, InvalidField
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.thread.cache import Cache
from stateward_sidecar.store.thread.ranges import NOTHING, Pruned, Ranges
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


class Carried(NamedTuple):
    """What a copy of a thread appends of a kind: both parts of an entry, in clear."""

    metadata: EntryMetadata
    content: bytes


class Kind:
    """A kind of entries."""

    number: EntryKind
    may_repeat_id = False
    """Whether several of its entries may have the same request id."""
    is_loose = False
    """Whether its entries say only what rows or the head say, too. A sweep removes them."""

    def is_own(self, metadata: EntryMetadata) -> bool:
        """Whether the daemon made such an entry by itself, so that nobody need be asked again about the thread."""
        del metadata
        return False

    def removed(self, pruned: Pruned) -> Ranges:
        """The sequences of its entries that count for nothing. Versions are asked for by their numbers."""
        return pruned.loose if self.is_loose else NOTHING

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

    def carry(self, txn: lmdb.Transaction, thread: Thread) -> Iterator[Carried]:
        """Yields what a fork of all versions and a backup take of the kind, as entries. Kinds that need more than that
        are in `copies/` by name."""
        yield from ()

    def check(self, carried: Carried) -> None:
        """Checks an entry that comes with a backup. Raises InvalidField."""
        raise InvalidField("parts.entry.kind", f"{self.number} is no kind that a backup has as an entry")

    def land(self, txn: lmdb.Transaction, draft: ThreadDraft, header: EntryHeader, carried: Carried) -> None:
        """Puts the rows of an entry that was appended to a copy. ``draft.head`` may be changed."""
