"""What all verbs share: engine, keys, cache, clock, writer, limits, counters."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stateward.storage.v1.archive_pb2 import ArchiveRow
from stateward_sidecar.clock import Clock
from stateward_sidecar.errors import Corrupt, KeyUnavailable, VersionNotFound, VersionPruned
from stateward_sidecar.storage.blobfiles import BlobFiles
from stateward_sidecar.storage.engine import Engine
from stateward_sidecar.storage.keystore import KeyStore
from stateward_sidecar.storage.writer import Writer
from stateward_sidecar.store.cache import Cache
from stateward_sidecar.store.terms import Terms
from stateward_sidecar.store.tokens import Tokens

T = TypeVar("T")
REQUEST_WINDOW_ENTRIES = 1024
REQUEST_WINDOW_S = 3600
# How often a thread that changes all the time is read before its writers wait for a reader.
LOOKS = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest things, in bytes."""

    state_bytes: int = 64 << 20
    message_bytes: int = 64 << 20


@dataclass(slots=True)
class Counters:
    """Since the start. Changed by the writer after each commit."""

    saves: int = 0
    entries: int = 0
    entry_bytes: int = 0
    snapshots: int = 0
    snapshot_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """A name that this sidecar holds in the archive, for a thread that has no entries yet."""

    uid: bytes
    data_key: bytes
    row: ArchiveRow


@dataclass(slots=True)
class ArchiveHooks:
    """What the store needs of an archive. Used in the writer only, but for what the sweep asks."""

    # By namespace and name. A thread is made only where there is one.
    claims: dict[tuple[str, str], Claim]
    # Gets the thread, and the sealed bytes of an entry that was committed.
    on_entry: Callable[[Any, int], None]
    # Brings a thread that was read from disk up to date with what is archived: its row is written now and then.
    refresh: Callable[[Any], None]
    # After a blob that nothing names was removed from this disk: thread and blob id.
    drop_blob: Callable[[Any, bytes], None]
    # After a thread was deleted on this disk.
    gone: Callable[[Any], None]
    # For the sweep. Deletes a thread in the archive, by namespace and name, uid, and the second at which it expires.
    # False: it is not to be deleted, or not now. Blocks for the bucket.
    expire: Callable[[tuple[str, str], bytes, int], bool]
    # Whether the bucket does not answer at present. Asks nobody.
    is_away: Callable[[], bool]
    # Whether a process of this disk wrote a HEAD. Asks nobody.
    is_own: Callable[[Any], bool]


def _give_nothing_back() -> None:
    """Nobody counts memory."""


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
    # What nobody waits for, or what takes long: snapshots, copies, sweeps. Never what a read needs.
    background: Executor
    blob_files: BlobFiles
    terms: Terms
    counters: Counters = field(default_factory=Counters)
    next_thread: int = 1
    archive: ArchiveHooks | None = None
    # Snapshots that are being written piece by piece, by who writes them: thread number and version.
    under_way: dict[object, set[tuple[int, int]]] = field(default_factory=dict)
    # Counts so much memory as used; returns what gives it back. For what is large and nobody waits for.
    reserve: Callable[[int], Callable[[], None]] = lambda _: _give_nothing_back
    # True where the data have ever belonged to an archive, be it switched on or not.
    had_archive: bool = False

    def settled(self, verb: Callable[[], T]) -> T:
        """Runs what reads until what it saw in memory and on disk belongs together.

        A commit between the two makes an entry look missing or pruned. Damage is damage when it is seen while no
        commit changes the thread it names. Commits of other threads neither wait for that nor matter. Must not be
        nested.
        """
        writer = self.writer
        for _ in range(LOOKS):
            seen = writer.changes.over
            try:
                return verb()
            except (Corrupt, KeyUnavailable, VersionPruned, VersionNotFound) as error:
                if not writer.changes.has_changed(error.metadata.get("thread"), seen):
                    raise
            with writer.publishing:
                pass  # what was on its way is seen as a whole
        with writer.publishing:  # the thread changes all the time: for this look nothing is committed
            return verb()
