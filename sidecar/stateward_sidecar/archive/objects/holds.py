"""The threads that this process holds, how fresh each is, and what else all parts of the archive share.

That is the access to the bucket, the keys, and this process's ids.

What a disk has cleared of a thread is *owed*: the bucket may still have it. The next HEAD takes it, and gives it back
if it does not land, or if an object could not be read. Thread-safe: clearing adds to it at any time, and the ship that
takes it must miss nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from functools import partial

from stateward.storage.v1.archive_pb2 import ArchiveHead, ArchiveRow, PackedRow
from stateward.v1.thread_pb2 import THREAD_ACCESS_OWNED, ThreadAccess
from stateward_sidecar.archive.objects.fetch import NEVER
from stateward_sidecar.archive.objects.heads import bare
from stateward_sidecar.archive.objects.image import Cutter
from stateward_sidecar.archive.objects.keys import Keys
from stateward_sidecar.archive.objects.packs import Names
from stateward_sidecar.archive.objects.spares import Spares
from stateward_sidecar.archive.requests.metered import Wire
from stateward_sidecar.archive.requests.places import Place
from stateward_sidecar.archive.requests.waiting import Locks, Waiters
from stateward_sidecar.errors import Fenced, NotOwner
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.store.blobs.blobrows import OpenedBlobs
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread.context import ArchiveHooks, Context
from stateward_sidecar.store.thread.ranges import Pruned, Ranges
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.travel.install import Installer
from stateward_sidecar.store.travel.orphans import Orphans
from stateward_sidecar.store.travel.outbox import Moment, Outbox


class Owed:
    """Of one thread. Unknown sets are None: they may hold anything that was ever pruned."""

    def __init__(self, *, is_known: bool) -> None:
        """``is_known``: HEAD has followed all that this disk has cleared so far."""
        self._lock = threading.Lock()
        self._now: Pruned | None = Pruned() if is_known else None
        self._later: Pruned | None = Pruned()
        self._is_due = not is_known

    @property
    def is_due(self) -> bool:
        """Whether a ship is needed, also if no entry is new."""
        return self._is_due

    def add(self, cleared: Pruned) -> None:
        """Adds what was cleared."""
        with self._lock:
            self._now = _joined(self._now, cleared)
            self._is_due = True

    def take(self) -> Taken:
        """Takes everything for a HEAD that is being made."""
        with self._lock:
            taken = Taken(self, self._now, self._later, is_due=self._is_due)
            self._now, self._later, self._is_due = Pruned(), Pruned(), False
        return taken

    def give_back(self, now: Pruned | None, later: Pruned | None, *, is_due: bool) -> None:
        """Puts back what a HEAD did not settle."""
        with self._lock:
            self._now, self._later = _joined(self._now, now), _joined(self._later, later)
            self._is_due |= is_due


class Taken:
    """What one HEAD may settle. Unless it says so, the rest waits until more is cleared."""

    def __init__(self, owed: Owed, now: Pruned | None, later: Pruned | None, *, is_due: bool) -> None:
        self._owed = owed
        self._now, self._later = now, later
        self.is_due = is_due
        self._left, self._is_left_due, self._is_left_now = self.all, False, False

    @property
    def is_quiet(self) -> bool:
        """True if nothing was cleared since the last HEAD."""
        return self._now is not None and self._now.is_empty

    @property
    def all(self) -> Pruned | None:
        """What was cleared since the last HEAD, and what waited for it."""
        return _joined(self._now, self._later)

    def settle(self) -> None:
        """Says that the HEAD that is made leads to nothing of it."""
        self._left = Pruned()

    def settle_here(self) -> None:
        """Says the same, but the next HEAD may name a pack that was made before it was cleared."""
        self._is_left_now = True

    def put_off(self) -> None:
        """Says that another ship is needed for it."""
        self._is_left_due = self._is_left_now = True

    def failed(self) -> None:
        """The HEAD did not land."""
        self._owed.give_back(self._now, self._later, is_due=self.is_due)

    def landed(self) -> None:
        """The HEAD landed."""
        now, later = (self._left, Pruned()) if self._is_left_now else (Pruned(), self._left)
        self._owed.give_back(now, later, is_due=self._is_left_due)


def _joined(one: Pruned | None, other: Pruned | None) -> Pruned | None:
    return one.merged(other) if one is not None and other is not None else None


Name = tuple[str, str]
# Equal to the number of threads that stay in memory.
HOLDS_MAX = 4096
# HEADs of other owners whose last change is remembered, about 100 bytes each.
OBSERVED_MAX = 65_536
# Threads of which this process remembers that entries went with its disk's copy.
CUT_MAX = 65_536
# Moments before large entries that are kept for one thread, each about as large as its HEAD.
MOMENTS_MAX = 8


@dataclass(slots=True, eq=False)
class Hold:
    """A thread that this process may write, and its last known HEAD. Changed only under the lock of its name."""

    thread: Thread
    place: Place
    head: ArchiveHead  # bare: without image, tail and snapshot
    etag: str
    # False if the bucket was away at the first touch: HEAD is compared before the next ship.
    is_verified: bool = True
    # If the bucket's HEAD is older than ``head``, or gone: the last entry that the archive has. Else None.
    rolled_back_to: int | None = None
    # Set while a HEAD that gives the thread up is on its way: no write passes, whatever is on disk and in memory.
    given_up: ArchiveRow | None = None
    # When this process last wrote HEAD, or read it and found it ours. Seconds on the boot-time clock.
    checked_at: float = NEVER
    written_at: float = NEVER  # when this process last wrote HEAD (boot-time clock); NEVER = unknown
    # The entries and the snapshot that HEAD carries, for the next HEAD. None = they must be read again.
    tail: list[PackedRow] | None = None
    pieces: tuple[int, list[bytes]] | None = None
    # How the thread's rows were cut for the last HEAD. None = they are cut anew.
    cutter: Cutter | None = None
    opened_blobs: OpenedBlobs = field(default_factory=OpenedBlobs)
    spares: Spares = field(default_factory=Spares)
    puts: int = 0  # objects that were put since the schedule counted them
    indexed_snapshots: set[int] | None = None  # versions of snapshots in indexes; None = not read yet
    # The pruned ranges at the last search, and the snapshots of pruned versions found in it that this disk lacks and
    # entries need.
    needed: tuple[Ranges, set[int]] = field(default_factory=lambda: (Ranges(), set()))
    owed: Owed = field(default_factory=partial(Owed, is_known=True))
    blobs: set[bytes] = field(default_factory=set)  # uploaded for the next HEAD
    # Blobs of which the next HEAD has the entry of their removal. Their objects are deleted after it has landed.
    dropped_blobs: set[bytes] = field(default_factory=set)
    # Sealed bytes since the last ship, and when the oldest of these entries was committed (boot-time clock).
    dirty_bytes: int = 0
    # The thread as it was before each large entry that is not archived yet, the oldest first.
    before_large: deque[Moment] = field(default_factory=deque)
    # How many ships in a row ended because an object could not be uploaded.
    failed_uploads: int = 0
    dirty_since: float = 0.0
    # False = HEAD is damaged, missing, or not of this process, and is written once all objects are there.
    renews: bool = True

    @property
    def number(self) -> int:
        return self.thread.number

    @property
    def is_rolled_back(self) -> bool:
        return self.rolled_back_to is not None

    @property
    def archived_sequence(self) -> int:
        """Sequence of the last entry that the archive has."""
        return self.head.tip_sequence if self.rolled_back_to is None else self.rolled_back_to

    @property
    def name(self) -> Name:
        return self.thread.identity.namespace, self.thread.name


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of the archive. Times are in seconds."""

    url: str
    owner_id: str
    interval_s: float = 1.0
    puts_per_s: float = 50.0
    lease_s: float = 10.0
    # How long this process reads a thread that it holds without reading HEAD again.
    check_s: float = 10.0
    garbage_grace_s: float = 600.0
    flush_bytes: int = 1 << 20

    @property
    def ships_every_s(self) -> float:
        """How often a busy thread is shipped: so often that other sidecars see that its owner lives."""
        return min(self.interval_s, self.lease_s / 2)

    @property
    def waits_s(self) -> float:
        """How long a ship waits for the budget of writes."""
        return self.lease_s / 4

    @property
    def renewal_s(self) -> float:
        """How often HEAD is written again while objects of a thread are uploaded: so often that it changes before the
        lease is over, although one of the writes fails."""
        return self.lease_s / 4


@dataclass(slots=True, eq=False)
class ArchiveState:
    """State and components that all parts of the archive use."""

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
    # Names claimed for threads that have no entries yet: HEAD's etag, and when HEAD was written or last read.
    claimed: dict[Name, tuple[str, float]] = field(default_factory=dict)
    # Threads that another sidecar took from this process. Writes get this error until the thread is attached again.
    fenced: dict[Name, Fenced] = field(default_factory=dict)
    # HEADs that other sidecars own: the write id, and when it was first seen.
    observed: dict[Place, tuple[bytes, float]] = field(default_factory=dict)
    # Deletions that are being finished: until when no read tries it again. Bounded by ``Finisher``.
    finishing: dict[Place, float] = field(default_factory=dict)
    # Tombstones of this process whose key is destroyed, and whose objects are being deleted: their write ids.
    keyless: dict[Place, bytes] = field(default_factory=dict)
    # Numbers of locked threads of which the archive lacks something. They are shipped once they are open.
    locked: set[int] = field(default_factory=set)
    # Uids of threads that this process owned, and whose copy was deleted on this disk alone with entries that were not
    # archived. Tokens and revisions of these were given out: if this process takes such a thread again, it begins a new
    # epoch, as after the loss of a machine.
    cut: set[bytes] = field(default_factory=set)
    _observing: threading.Lock = field(default_factory=threading.Lock)
    # Boot ids of this disk's processes, including this one.
    boots: frozenset[bytes] = frozenset()
    # Boot ids from before the data were copied or moved here: another copy may be in use with the same ids.
    former: frozenset[bytes] = frozenset()
    is_stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def context(self) -> Context:
        return self.store.context

    def place(self, namespace: NamespaceKeys, name: str) -> Place:
        """Returns the place of a thread in the bucket."""
        return Place(namespace.id, namespace.names.thread(name))

    def hold(
        self, thread: Thread, place: Place, head: ArchiveHead, etag: str, checked_at: float = NEVER,
        rolled_back_to: int | None = None,
    ) -> Hold:  # fmt: skip
        """Records that this process may write a thread, and returns the new hold.

        Nothing is recorded for a thread that was deleted on this disk meanwhile: nobody would end such a hold.
        """
        owed = Owed(is_known=not self.outbox.is_marked(thread.identity))
        hold = Hold(thread, place, bare(head), etag, rolled_back_to=rolled_back_to, checked_at=checked_at, owed=owed)
        self.holds[thread.number] = hold
        if not self.store.threads.exists(thread):  # asked only now: a deletion that comes later ends the hold itself
            self.holds.pop(thread.number, None)
            return hold
        self.fenced.pop(hold.name, None)
        with self._observing:
            self.observed.pop(place, None)
        for each in (thread, self.store.threads.in_memory(thread.number) or thread):
            each.archived_sequence = hold.archived_sequence
            each.epoch = max(each.epoch, head.epoch)
        # An earlier ship may have landed although its answer was lost. No later ship would answer its callers.
        self.waiters.archived(thread.number, hold.archived_sequence)
        return hold

    def is_fresh(self, hold: Hold) -> bool:
        """Returns True if a thread may be read without reading HEAD: nobody can have taken it meanwhile."""
        return self.context.clock.boottime() - hold.checked_at < self.options.check_s or hold.is_rolled_back

    def is_own(self, head: ArchiveHead) -> bool:
        """Returns True if a process of this disk wrote a HEAD, and no copy of this disk can have written it."""
        return head.boot_id in self.boots and head.boot_id not in self.former

    def note_cut(self, thread: Thread, hold: Hold | None, lost: int) -> None:
        """Records that a copy was deleted on this disk alone, up to entry ``lost``, if it was ours and not all of it is
        archived. ``hold``: what this process had of it; the hold may have been dropped before the entry was written."""
        if hold is not None:
            archived = min(hold.archived_sequence, hold.head.tip_sequence)
        elif thread.archive is not None and thread.access == THREAD_ACCESS_OWNED:
            archived = thread.archived_sequence
        else:
            return
        if lost > archived and len(self.cut) < CUT_MAX:
            self.cut.add(thread.identity.uid)

    def is_cut(self, uid: bytes) -> bool:
        """Returns True if this process must not go on with a thread in the epoch that it had. A new epoch does no harm,
        so that all threads count if there are too many to remember."""
        return uid in self.cut or len(self.cut) >= CUT_MAX

    def held(self, name: str, head: ArchiveHead, unchanged_s: float) -> NotOwner:
        """Returns the error for a thread that another sidecar owns."""
        free_in_s = f"{self.options.lease_s - unchanged_s:.1f}"
        return NotOwner(
            f"thread {name!r} is owned by {head.owner_id!r}; it is free in {free_in_s} s if it stays idle",
            thread=name, owner_id=head.owner_id, epoch=head.epoch, unchanged_s=f"{unchanged_s:.1f}",
            free_in_s=free_in_s,
        )  # fmt: skip

    def observe(self, place: Place, head: ArchiveHead) -> float:
        """Returns for how many seconds a HEAD of another owner has not changed. The first call returns 0."""
        with self._observing:
            now = self.context.clock.boottime()
            write_id, since = self.observed.pop(place, (b"", now))
            if write_id != head.write_id:
                since = now
            self.observed[place] = head.write_id, since
            if len(self.observed) > OBSERVED_MAX:
                del self.observed[next(iter(self.observed))]
            return now - since

    def trim(self) -> None:
        """Drops the oldest holds beyond ``HOLDS_MAX`` that have nothing to ship. Their next use reads HEAD again."""
        for hold in list(self.holds.values())[: max(len(self.holds) - HOLDS_MAX, 0)]:
            with self.locks.of(hold.name, waits=False) as is_mine:
                if not is_mine:
                    continue  # another worker uses the thread
                live = self.store.threads.in_memory(hold.number) or hold.thread
                is_clean = hold.is_verified and live.head.tip_sequence <= hold.head.tip_sequence
                if is_clean and self.holds.get(hold.number) is hold and not self.waiters.is_waiting(hold.number):
                    del self.holds[hold.number]

    def now_us(self) -> int:
        """Returns the wall clock in microseconds since 1970."""
        return self.context.clock.now_us()


def row_of_hold(hold: Hold, floor: tuple[int, int] = (0, 0)) -> ArchiveRow:
    """Returns the archive row of a thread that this process may write."""
    row = row_of(hold.head, THREAD_ACCESS_OWNED, floor)
    row.rolled_back, row.rolled_back_to = hold.is_rolled_back, hold.rolled_back_to or 0
    return row


def row_of(
    head: ArchiveHead, access: ThreadAccess = THREAD_ACCESS_OWNED, floor: tuple[int, int] = (0, 0)
) -> ArchiveRow:
    """Returns the row in which this disk records a thread's HEAD, access and floor."""
    return ArchiveRow(access=access, head=bare(head), floor_sequence=floor[0], floor_version=floor[1])
