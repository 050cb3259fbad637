"""What all verbs share: engine, keys, cache, clock, writer, limits, counters."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stateward.storage.v1.archive_pb2 import ArchiveRow
from stateward_sidecar.clock import Clock
from stateward_sidecar.errors import BlobNotFound, Corrupt, KeyUnavailable, VersionNotFound, VersionPruned
from stateward_sidecar.storage.blobfiles import BlobFiles
from stateward_sidecar.storage.engine import Engine
from stateward_sidecar.storage.keystore import KeyStore
from stateward_sidecar.storage.writer import Writer
from stateward_sidecar.store.thread.cache import Cache
from stateward_sidecar.store.thread.paging import Tokens
from stateward_sidecar.store.thread.times import Terms
from stateward_sidecar.store.thread.treememory import TreeMemory
from stateward_sidecar.store.thread.usage import Usage

T = TypeVar("T")
REQUEST_WINDOW_ENTRIES = 1024
REQUEST_WINDOW_S = 3600
# How often a read of a constantly changing thread is tried before the writer has to wait for it.
LOOKS = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """Size limits, in bytes."""

    state_bytes: int = 64 << 20
    message_bytes: int = 64 << 20
    workspace_bytes: int = 0  # of the trees of a thread, as stored; 0 = no limit


@dataclass(slots=True)
class Counters:
    """Counts since the start. The writer changes them after each commit."""

    saves: int = 0
    entries: int = 0
    entry_bytes: int = 0
    entry_plain_bytes: int = 0  # before compression
    snapshots: int = 0
    snapshot_bytes: int = 0
    snapshot_plain_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """A thread name that this sidecar has claimed in the archive. The thread has no entries yet."""

    uid: bytes
    data_key: bytes = field(repr=False)
    row: ArchiveRow
    # The slot of its key if a held thread is to be made.
    held: bytes = field(default=b"", repr=False)


@dataclass(slots=True)
class ArchiveHooks:
    """Callbacks and claims of the archive. Only the writer uses them, except for those of the sweep and of Verify."""

    # By namespace and name. A thread is made only if its name is claimed.
    claims: dict[tuple[str, str], Claim]
    # Called after an entry was committed, with the thread and the sealed size of the entry in bytes.
    on_entry: Callable[[Any, int], None]
    # Called in the writer before an entry that is large is put, with the thread's identity.
    before_large: Callable[[Any], None]
    # Updates a thread that was read from disk: the archive knows more than the row, which is written only now and then.
    refresh: Callable[[Any], None]
    # Called after something of a thread was cleared on this disk, with its number and what it was (Pruned).
    cleared: Callable[[int, Any], None]
    # For Verify: raises Corrupt if the archive lacks a blob of a thread (namespace, name), given by its SHA-256. Raises
    # ArchiveUnavailable. Blocks until the bucket answers.
    check_blob: Callable[[tuple[str, str], bytes], object]
    # Called after a thread was deleted on this disk, with its newest entry if it was deleted here alone, else with 0.
    gone: Callable[[Any, int], None]
    # For the sweep: deletes a thread in the archive. Takes (namespace, name), the uid, and the second of expiry.
    # Returns False if the thread must not be deleted, or not now. Blocks until the bucket answers.
    expire: Callable[[tuple[str, str], bytes, int], bool]
    # For copies and imports, which may take long, and for the sweep: makes sure that a thread (namespace, name) is
    # ours, or that its name is still claimed. The second argument is True for the sweep: it claims no name, so it gets
    # ThreadNotFound for a thread that is gone. Raises NotOwner, Fenced and others. Blocks until the bucket answers.
    own: Callable[[tuple[str, str], bool], object]
    # For the sweep: fetches the older history of a thread (namespace, name). Blocks until the bucket answers.
    complete: Callable[[tuple[str, str]], object]
    # For the sweep: fetches the file of a blob of a thread (namespace, name), given by its SHA-256. Blocks until the
    # bucket answers.
    fetch_blob: Callable[[tuple[str, str], bytes], object]
    # Returns whether the bucket is away at present. Does no I/O.
    is_away: Callable[[], bool]
    # Returns whether a process of this data directory wrote the given HEAD. Does no I/O.
    is_own: Callable[[Any], bool]
    # Ships held threads that are about to be locked. Returns the uids of those of which the archive lacks something.
    unshipped: Callable[[set[bytes]], set[bytes]]
    # Called after held threads were locked: drops what the archive has of them in memory.
    locked: Callable[[set[bytes]], None]
    # Called after lines of a locked thread were deleted on this disk, with its uid, their numbers, and whether they
    # were deleted here alone.
    locked_gone: Callable[[bytes, set[int], bool], None]
    # For the sweep: the same as ``expire`` for a locked thread, by the keys of its namespace and the hash of its name.
    expire_locked: Callable[[Any, bytes, bytes, int], bool]


def _give_nothing_back() -> None:
    """Does nothing: this store has no memory budget."""


@dataclass(slots=True)
class Context:
    """Components of an open store."""

    engine: Engine
    keystore: KeyStore
    cache: Cache
    clock: Clock
    tokens: Tokens
    limits: Limits
    writer: Writer
    # Runs long tasks, and tasks that nobody waits for: snapshots, copies, sweeps. No read may depend on it.
    background: Executor
    blob_files: BlobFiles
    terms: Terms
    counters: Counters = field(default_factory=Counters)
    usage: Usage = field(default_factory=Usage)
    trees: TreeMemory = field(default_factory=TreeMemory)
    # Threads with many entries of tags, settings, leases, blobs and heads, by number; the next sweep cleans them.
    loose: set[int] = field(default_factory=set)
    next_thread: int = 1
    archive: ArchiveHooks | None = None
    # Snapshots that are being written piece by piece, as (thread number, version), grouped by their writer.
    under_way: dict[object, set[tuple[int, int]]] = field(default_factory=dict)
    # Takes bytes from the memory budget; returns a function that gives them back. For large background tasks.
    reserve: Callable[[int], Callable[[], None]] = lambda _: _give_nothing_back
    # Called when a save is refused because too many entries of logs are in memory, with the thread, the branch, and the
    # version and state that it was to be made from. They become segments.
    on_crowded: Callable[[Any, str, int, Any], None] = lambda *_: None
    # Numbers of the threads whose keys were missing at the start.
    keyless: frozenset[int] = frozenset()
    # True if the data ever belonged to an archive, even if none is configured now.
    had_archive: bool = False

    def settled(self, verb: Callable[[], T]) -> T:
        """Runs a reading function, and repeats it until its view of memory and disk is consistent.

        If a commit happens between the two, an entry may look missing or pruned. So an error is raised only if no
        commit changed the thread that the error names. Commits to other threads do not matter. After four rounds the
        function runs once more while the writer cannot publish. Calls must not be nested.
        """
        writer = self.writer
        for _ in range(LOOKS):
            seen = writer.changes.over
            try:
                return verb()
            except (Corrupt, KeyUnavailable, VersionPruned, VersionNotFound, BlobNotFound) as error:
                if not writer.changes.has_changed(error.metadata.get("thread"), seen):
                    raise
            with writer.publishing:
                pass  # wait until the batch that is being published is visible as a whole
        with writer.publishing:  # the thread changes constantly: nothing is published during this last round
            return verb()
