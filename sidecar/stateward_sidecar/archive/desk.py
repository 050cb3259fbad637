"""What all parts of the archive share: the wire, the keys, who we are, and what we hold."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from stateward.storage.v1.archive_pb2 import ArchiveHead, ArchiveRow, ObjectRef, PackedRow
from stateward.v1.thread_pb2 import ACCESS_OWNED, Access
from stateward_sidecar.archive.fetch import NEVER
from stateward_sidecar.archive.heads import bare
from stateward_sidecar.archive.keys import Keys
from stateward_sidecar.archive.locks import Locks
from stateward_sidecar.archive.packs import Names
from stateward_sidecar.archive.places import Place
from stateward_sidecar.archive.waiters import Waiters
from stateward_sidecar.archive.wire import Wire
from stateward_sidecar.errors import Fenced, NotOwner
from stateward_sidecar.storage.keystore import NamespaceKeys
from stateward_sidecar.store.context import ArchiveHooks, Context
from stateward_sidecar.store.install import Installer
from stateward_sidecar.store.orphans import Orphans
from stateward_sidecar.store.outbox import Outbox
from stateward_sidecar.store.ranges import Ranges
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread import Thread

Name = tuple[str, str]
# As many as threads that are kept in memory.
HOLDS_MAX = 4096
# HEADs of others of which it is known since when they stand still: a hundred bytes each.
OBSERVED_MAX = 65_536


@dataclass(slots=True, eq=False)
class Hold:
    """A thread that this process may write, and its HEAD as we last knew it. Changed under the lock of its name."""

    thread: Thread
    place: Place
    head: ArchiveHead  # without what is inline
    etag: str
    # False: the bucket was away when it was first touched; HEAD is compared before the next ship.
    is_verified: bool = True
    # Of a HEAD that is older than ``head``, or gone: it has the entries up to this one. None = it is not.
    rolled_back_to: int | None = None
    # Set while a HEAD that gives the thread up is on its way: no write passes, whatever is on disk and in memory.
    given_up: ArchiveRow | None = None
    # When HEAD was last asked for, or written, and was ours, on the monotonic clock.
    checked_at: float = NEVER
    # Of the entries that HEAD carries, and of its snapshot: what the next HEAD needs again. None = read them again.
    tail: list[PackedRow] | None = None
    pieces: tuple[int, list[bytes]] | None = None
    # Uploaded while HEAD still carries its entries.
    packed: ObjectRef | None = None
    uploaded: dict[int, ObjectRef] = field(default_factory=dict)  # snapshots, by version
    indexed_snapshots: set[int] | None = None
    # Snapshots of pruned versions that this disk lacks and entries need, and what was pruned when they were looked for.
    needed: tuple[Ranges, set[int]] = field(default_factory=lambda: (Ranges(), set()))
    blobs: set[bytes] = field(default_factory=set)  # uploaded by this process
    # No row names them any more; their objects go once a HEAD of ours says so.
    dropped_blobs: set[bytes] = field(default_factory=set)
    # Since the last ship: sealed bytes, and when the oldest entry came.
    dirty_bytes: int = 0
    dirty_since: float = 0.0

    @property
    def number(self) -> int:
        return self.thread.number

    @property
    def is_rolled_back(self) -> bool:
        return self.rolled_back_to is not None

    @property
    def archived_sequence(self) -> int:
        """The archive has the entries up to this one."""
        return self.head.tip_sequence if self.rolled_back_to is None else self.rolled_back_to

    @property
    def name(self) -> Name:
        return self.thread.identity.namespace, self.thread.name


@dataclass(frozen=True, slots=True)
class Options:
    """How the archive behaves. Times in seconds."""

    url: str
    owner_id: str
    interval_s: float = 1.0
    puts_per_s: float = 50.0
    lease_s: float = 10.0
    # For how long what this process holds is read without asking.
    check_s: float = 10.0
    garbage_grace_s: float = 600.0
    flush_bytes: int = 1 << 20


@dataclass(slots=True, eq=False)
class Desk:
    """Shared by the parts below."""

    store: Store
    wire: Wire
    keys: Keys
    options: Options
    boot_id: bytes
    names: Names
    hooks: ArchiveHooks
    installer: Installer
    orphans: Orphans
    outbox: Outbox
    locks: Locks = field(default_factory=Locks)
    waiters: Waiters = field(default_factory=Waiters)
    holds: dict[int, Hold] = field(default_factory=dict)
    # Names that were claimed for threads without entries: HEAD's etag, and when it was written.
    claimed: dict[Name, tuple[str, float]] = field(default_factory=dict)
    # What was taken from this process: told to whoever writes until the thread is attached again.
    fenced: dict[Name, Fenced] = field(default_factory=dict)
    # HEADs that somebody else holds: write id, and when it was first seen.
    observed: dict[Place, tuple[bytes, float]] = field(default_factory=dict)
    _observing: threading.Lock = field(default_factory=threading.Lock)
    # Boot ids of this disk's processes, this one's among them.
    boots: frozenset[bytes] = frozenset()
    # Those of them that ran before its data were copied or moved here: another copy may live with the same ids.
    former: frozenset[bytes] = frozenset()
    is_stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def context(self) -> Context:
        return self.store.context

    def place(self, namespace: NamespaceKeys, name: str) -> Place:
        """Where a thread lies in the bucket."""
        return Place(namespace.id, namespace.names.thread(name))

    def hold(
        self, thread: Thread, place: Place, head: ArchiveHead, etag: str, checked_at: float = NEVER,
        rolled_back_to: int | None = None,
    ) -> Hold:  # fmt: skip
        """Takes a thread into the holds."""
        hold = Hold(thread, place, bare(head), etag, rolled_back_to=rolled_back_to, checked_at=checked_at)
        self.holds[thread.number] = hold
        self.fenced.pop(hold.name, None)
        with self._observing:
            self.observed.pop(place, None)
        for each in (thread, self.store.threads.in_memory(thread.number) or thread):
            each.archived_sequence = hold.archived_sequence
            each.epoch = max(each.epoch, head.epoch)
        # Also what landed while its answer was lost: no ship follows that would say so.
        self.waiters.archived(thread.number, hold.archived_sequence)
        return hold

    def is_fresh(self, hold: Hold) -> bool:
        """Whether a thread may be read without asking the archive whether another sidecar has taken it meanwhile."""
        return self.context.clock.monotonic() - hold.checked_at < self.options.check_s or hold.is_rolled_back

    def is_own(self, head: ArchiveHead) -> bool:
        """Whether a process of this disk wrote a HEAD, and nobody else can have."""
        return head.boot_id in self.boots and head.boot_id not in self.former

    def held(self, name: str, head: ArchiveHead, unchanged_s: float) -> NotOwner:
        """The error for a thread that another sidecar has."""
        free_in_s = f"{self.options.lease_s - unchanged_s:.1f}"
        return NotOwner(
            f"thread {name!r} is held by {head.owner_id!r}; if it stays idle it is free in {free_in_s} s",
            thread=name, owner_id=head.owner_id, epoch=head.epoch, unchanged_s=f"{unchanged_s:.1f}",
            free_in_s=free_in_s,
        )  # fmt: skip

    def observe(self, place: Place, head: ArchiveHead) -> float:
        """For how many seconds a HEAD of somebody else has been seen not to change. Reading it starts the clock."""
        with self._observing:
            now = self.context.clock.monotonic()
            write_id, since = self.observed.pop(place, (b"", now))
            if write_id != head.write_id:
                since = now
            self.observed[place] = head.write_id, since
            if len(self.observed) > OBSERVED_MAX:
                del self.observed[next(iter(self.observed))]
            return now - since

    def trim(self) -> None:
        """Lets the oldest holds go that have nothing to ship; who comes back to one asks HEAD again."""
        for hold in list(self.holds.values())[: max(len(self.holds) - HOLDS_MAX, 0)]:
            with self.locks.of(hold.name, waits=False) as is_mine:
                if not is_mine:
                    continue  # it is being used
                live = self.store.threads.in_memory(hold.number) or hold.thread
                is_clean = hold.is_verified and live.head.tip_sequence <= hold.head.tip_sequence
                if is_clean and self.holds.get(hold.number) is hold and not self.waiters.is_waiting(hold.number):
                    del self.holds[hold.number]

    def now_us(self) -> int:
        """Microseconds since 1970."""
        return self.context.clock.now_us()


def row_of_hold(hold: Hold, floor: tuple[int, int] = (0, 0)) -> ArchiveRow:
    """The same of a thread that this process may write."""
    row = row_of(hold.head, ACCESS_OWNED, floor)
    row.rolled_back, row.rolled_back_to = hold.is_rolled_back, hold.rolled_back_to or 0
    return row


def row_of(head: ArchiveHead, access: Access = ACCESS_OWNED, floor: tuple[int, int] = (0, 0)) -> ArchiveRow:
    """What is written down of a thread in the archive."""
    return ArchiveRow(access=access, head=bare(head), floor_sequence=floor[0], floor_version=floor[1])
