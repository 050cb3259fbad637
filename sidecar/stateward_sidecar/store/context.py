"""What all verbs share: engine, keys, cache, clock, writer, limits, counters."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TypeVar

from stateward_sidecar.clock import Clock
from stateward_sidecar.errors import Corrupt, KeyUnavailable, VersionNotFound, VersionPruned
from stateward_sidecar.storage.engine import Engine
from stateward_sidecar.storage.keystore import KeyStore
from stateward_sidecar.storage.writer import Writer
from stateward_sidecar.store.cache import Cache
from stateward_sidecar.store.tokens import Tokens

T = TypeVar("T")
REQUEST_WINDOW_ENTRIES = 1024
REQUEST_WINDOW_S = 3600


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
    counters: Counters = field(default_factory=Counters)
    next_thread: int = 1

    def settled(self, verb: Callable[[], T]) -> T:
        """Runs what reads until what it saw in memory and on disk belongs together.

        A commit between the two makes an entry look missing or pruned. Damage is damage when it is still seen with no
        commit in between. Must not be nested.
        """
        try:
            return verb()
        except (Corrupt, KeyUnavailable, VersionPruned, VersionNotFound):
            with self.writer.publishing:  # nothing is committed and nothing published meanwhile
                return verb()
