"""The archive of one daemon: it puts the parts together, and services call it.

These methods may wait for the bucket, so callers run them in ``lanes``: ``confirm``, ``own``, ``know``, ``complete``,
``heal``, ``fetch_blob``, ``delete``, ``flush`` and ``detach``. ``ship_all`` and ``close`` wait for it, too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

import lmdb

from stateward.storage.v1.archive_pb2 import ArchiveHead
from stateward.storage.v1.journal_pb2 import BlobRecord
from stateward.v1.admin_service_pb2 import ArchiveStats
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN, THREAD_ACCESS_OWNED, THREAD_ACCESS_REMOTE
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.archive.objects.fetch import Fetcher
from stateward_sidecar.archive.objects.holds import CUT_MAX, MOMENTS_MAX, ArchiveState, Hold, Name, Options
from stateward_sidecar.archive.objects.keys import Keys
from stateward_sidecar.archive.objects.packs import Names
from stateward_sidecar.archive.objects.start import BOOT_ID_BYTES, find_former_boots, remember_boot
from stateward_sidecar.archive.own.completing import Completer
from stateward_sidecar.archive.own.history import History
from stateward_sidecar.archive.own.reconcile import Reconciler, set_back
from stateward_sidecar.archive.own.rekey import ThreadRekeyer
from stateward_sidecar.archive.own.takeover import Attacher
from stateward_sidecar.archive.requests.metered import Wire
from stateward_sidecar.archive.requests.places import Place
from stateward_sidecar.archive.requests.waiting import Lanes
from stateward_sidecar.archive.ship.blobs import BlobCarrier
from stateward_sidecar.archive.ship.delete import Expirer, Remover
from stateward_sidecar.archive.ship.locked import LockedThreads
from stateward_sidecar.archive.ship.schedule import Leaver, Schedule
from stateward_sidecar.archive.ship.ship import Shipper
from stateward_sidecar.errors import (
    ArchiveUnavailable,
    Fenced,
    Locked,
    NewerFormat,
    NotOwner,
    ShuttingDown,
    StatewardError,
    ThreadNotFound,
)
from stateward_sidecar.spans import span
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.store.journal.finding import check_history, fenced_by
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread.context import ArchiveHooks
from stateward_sidecar.store.thread.ranges import Pruned
from stateward_sidecar.store.thread.thread import Identity, Thread, rows
from stateward_sidecar.store.thread.threads import not_found
from stateward_sidecar.store.travel.install import Installer
from stateward_sidecar.store.travel.orphans import Orphans
from stateward_sidecar.store.travel.outbox import Outbox
from stateward_sidecar.store.travel.rekey import Rekeyed
from stateward_sidecar.telemetry import log, persist

# If the bucket has been away for longer, a call that needs the archive is refused before anything is committed.
AWAY_S = 5.0


class Archive:
    """Ships, attaches, hydrates, deletes."""

    def __init__(self, store: Store, wire: Wire, options: Options) -> None:
        context = store.context
        boot_id = os.urandom(BOOT_ID_BYTES)
        self.lanes = Lanes()
        hooks = ArchiveHooks(
            {}, self._on_entry, self._before_large, self._refresh, self._cleared, self._check_blob, self._gone,
            self._expire, self._own, self._complete, self._fetch_blob, self._is_away, self._is_own, self._unshipped,
            self._lock, self._locked_gone, self._expire_locked,
        )  # fmt: skip
        self.state = ArchiveState(
            store, wire, Keys(context, wire, store.rewrapper), options, boot_id, Names(boot_id), hooks,
            Installer(context, store.threads), Orphans(context, store.threads), Outbox(context, store.threads),
            boots=frozenset((boot_id,)),
        )  # fmt: skip
        self.fetcher = Fetcher(wire)
        self.reconciler = Reconciler(self.state, self.fetcher)
        self.attacher = Attacher(self.state, self.fetcher, self.reconciler)
        self._blobs = BlobCarrier(self.state, self.attacher)
        self.history = History(self.state, self.fetcher, self.reconciler)
        self._completer = Completer(self.state, self.history, self.attacher)
        self._shipper = Shipper(self.state, self.fetcher, self.reconciler, self.attacher)
        self._remover = Remover(self.state, self.fetcher, self.reconciler, self.attacher, self._shipper)
        self._expirer = Expirer(self.state, self.fetcher, self.reconciler, self.attacher, self._remover)
        self._locked = LockedThreads(self.state, self.fetcher)
        self._frozen: set[Name] = set()
        """Names of threads that no write may find owned."""
        self._rekeyer = ThreadRekeyer(self.state, self.fetcher, self.reconciler)
        self.schedule = Schedule(self.state, self.lanes, self._ship)
        self.leaver = Leaver(self.state, self._shipper, self._ship)
        context.archive = hooks

    def start(self) -> None:
        """Starts shipping, also the entries that the last process left unarchived."""
        self.state.boots = remember_boot(self.state.store, self.state.boot_id)
        self.state.former = find_former_boots(self.state.store, self.state.boot_id)
        self.schedule.start()
        finding = partial(persist, "outbox", self._find_dirty, self.state.is_stopping)
        threading.Thread(target=finding, name="outbox", daemon=True).start()

    # -- for calls ------------------------------------------------------------------------------------------------

    def holds(self, namespace: str, name: str) -> Thread | None:
        """Returns the thread if it is in memory and this process may write it, else None. Makes no request."""
        return self._holds(namespace, name) if (namespace, name) not in self._frozen else None

    def _holds(self, namespace: str, name: str) -> Thread | None:
        thread = self.state.store.threads.cached(namespace, name)
        return thread if thread is not None and thread.number in self.state.holds else None

    def may_write(self, namespace: str, name: str) -> bool:
        """Returns True if the next write needs no request: this process holds the thread and is not giving it up."""
        thread = self.holds(namespace, name)
        hold = self.state.holds.get(thread.number) if thread is not None else None
        return hold is not None and hold.given_up is None

    def is_fresh(self, namespace: str, name: str) -> bool:
        """Returns True if a thread may be read as it is in memory: this process holds it, and HEAD was ours a moment
        ago. Makes no request."""
        thread = self.state.store.threads.cached(namespace, name)
        hold = self.state.holds.get(thread.number) if thread is not None else None
        return hold is not None and self.state.is_fresh(hold)

    def confirm(self, namespace: str, name: str) -> bool:
        """See ``Attacher.confirm``."""
        self._check_running()
        return self.attacher.confirm((namespace, name))

    def own(
        self, namespace: str, name: str, *, take_over: bool = False, must_exist: bool = False, claims: bool = True,
        session_key: bytes = b"",
    ) -> None:  # fmt: skip
        """See ``Attacher.own``."""
        self._check_running()
        self.attacher.own(
            (namespace, name), take_over=take_over, must_exist=must_exist, claims=claims, session_key=session_key
        )

    def has_claimed(self, namespace: str, name: str) -> bool:
        """Returns True if this process has claimed a name that has no thread yet. Makes no request."""
        return (namespace, name) in self.state.hooks.claims

    def unclaim(self, namespace: str, name: str) -> None:
        """See ``Attacher.unclaim``."""
        self._check_running()
        self.attacher.unclaim((namespace, name))

    def know(self, namespace: str, name: str, session_key: bytes = b"") -> None:
        """See ``Attacher.know``."""
        self._check_running()
        self.attacher.know((namespace, name), session_key)

    def complete(self, namespace: str, name: str, *, for_retry: bool = False) -> None:
        """See ``Completer.complete``."""
        self._completer.complete((namespace, name), for_retry=for_retry)

    def heal(self, namespace: str, name: str) -> bool:
        """See ``History.heal``."""
        return self.history.heal((namespace, name))

    def fetch_blob(self, namespace: str, name: str, sha256: bytes) -> None:
        """See ``BlobCarrier.fetch``."""
        self._blobs.fetch((namespace, name), sha256)

    def has_blob(self, namespace: str, name: str, record: BlobRecord) -> bool:
        """See ``BlobCarrier.has``."""
        return self._blobs.has((namespace, name), record)

    def delete(self, request: DeleteThreadRequest) -> bytes:
        """Makes a thread unreadable in the archive and returns its uid. See ``Remover.remove``."""
        self._check_running()
        return self._remover.remove(request)

    def settle_locked(self, namespace: str, name: str, error: Locked) -> bool:
        """See ``LockedThreads.settle``."""
        self._check_running()
        uid = bytes.fromhex(error.metadata.get("uid", ""))
        with self.state.locks.of((namespace, name)):
            if not self.state.context.keystore.held.is_open(uid):
                return self._locked.settle((namespace, name), error)
            with suppress(StatewardError):  # the next thread of the name may be locked
                self.attacher.know((namespace, name))
        return not self.state.context.keystore.has_key(uid)

    def renew_held(self, name: Name, uid: bytes, slot: bytes) -> None:
        """Puts the key of a held thread into the archive in another wrap, for a call that has its session key. Raises
        ThreadNotFound, ArchiveUnavailable, and Locked if it was locked meanwhile."""
        self._check_running()
        self.lanes.ship(name, self._renew_held, name, uid, slot).result()

    def _renew_held(self, name: Name, uid: bytes, slot: bytes) -> None:
        with self.state.context.engine.read() as txn:
            thread = self.state.store.threads.get(txn, *name)
        if thread.identity.uid != uid:
            raise not_found(*name)
        if thread.archive is not None:  # else the archive does not have it
            place = self.state.place(thread.identity.namespace_keys, thread.name)
            self.state.keys.renew_held(slot, place, thread.archive.head.created_epoch)

    def rekey(self, namespace: str, name: str, expected_uid: str = "") -> Rekeyed:
        """Gives a thread another data key. See ``ThreadRekeyer``."""
        def give_up() -> None:
            self._check_running()
            self.attacher.own((namespace, name), must_exist=True)
            self._completer.complete((namespace, name))
            self.state.store.pruner.resume()
            self.detach(namespace, name)

        # The next writes ask who owns the thread, and wait for this task, because tasks of one name run one by one.
        self._frozen.add((namespace, name))
        try:
            return self._rekeyer.rekey((namespace, name), give_up, expected_uid)
        finally:
            self._frozen.discard((namespace, name))

    def remove_locked(self, namespace: NamespaceKeys, place: Place, head: ArchiveHead) -> None:
        """See ``LockedThreads.remove_expired``."""
        self._locked.remove_expired(namespace, place, head)

    def check_reachable(self) -> None:
        """Raises ArchiveUnavailable if the bucket has been away for longer than ``AWAY_S``."""
        wire = self.state.wire
        if wire.away_s > AWAY_S:
            wire.ask_again()
            raise ArchiveUnavailable(f"the archive does not answer: {wire.error}; nothing was written; try again later")

    def check_archivable(self, namespace: str, name: str) -> None:
        """Raises Corrupt if the thread is rolled back: nothing of it is archived until a person repairs its HEAD."""
        hold = self._find_hold((namespace, name))
        if hold is not None and hold.is_rolled_back:
            raise set_back(name)

    def wait(self, line: Thread, sequence: int) -> Future[None] | None:
        """Returns a future that is done once an entry of a line is archived, or None if it is archived already.

        Raises Fenced if the entry is not part of the thread's history. The future raises Fenced if that happens later.
        """
        if self._is_archived(line, sequence):
            return None
        number, waiters = line.number, self.state.waiters
        future = waiters.add(number, sequence)
        try:
            is_archived = self._is_archived(line, sequence)  # it may have been archived before the future was added
        except Fenced:
            waiters.drop(number, future)
            raise
        if is_archived:
            waiters.drop(number, future)
            return None
        hold = self.state.holds.get(number)
        if hold is not None and hold.is_rolled_back:
            waiters.failed(number, set_back(line.name))
        self.schedule.now(number)
        return future

    def _is_archived(self, line: Thread, sequence: int) -> bool:
        live = self.line(line)
        check_history(live, sequence)
        return sequence <= live.archived_sequence

    def line(self, line: Thread) -> Thread:
        """Returns a line as it is now, under whatever name. Returns ``line`` itself if the line was deleted."""
        live = self.in_memory(line)
        if live is None:
            with self.state.context.engine.read() as txn:
                live = self.state.store.threads.by_number(txn, line.number)
        return live or line

    def in_memory(self, line: Thread) -> Thread | None:
        """Returns a line as it is in memory, or None if it is only on disk."""
        return self.state.store.threads.in_memory(line.number)

    def flush(self, namespace: str, name: str) -> None:
        """Archives what is committed of a thread now. Does nothing if this process does not hold it.

        Raises ArchiveUnavailable, Corrupt.
        """
        thread = self.holds(namespace, name)
        if thread is not None:
            self._ship(thread.number)

    def detach(self, namespace: str, name: str, session_key: bytes = b"") -> None:
        """Archives what is committed and gives the thread up. Raises NotOwner, ArchiveUnavailable, Corrupt."""
        name_of: Name = namespace, name
        self._check_running()
        if self.attacher.is_detached(name_of, session_key):
            return
        for _ in range(10):
            hold = self._find_hold(name_of)
            if hold is None:
                if self.attacher.is_detached(name_of, session_key):
                    return
                if self.attacher.is_own(name_of):  # the thread was not in memory, or its copy was deleted on this disk
                    self.attacher.own(name_of, must_exist=True, session_key=session_key)
                    continue
                raise NotOwner(f"another sidecar owns thread {name!r}: only the owner can detach it", thread=name)
            self.check_archivable(namespace, name)
            self._shipper.ship(hold, detach=True)
        raise NotOwner(f"thread {name!r} cannot be detached while it is written constantly; try again", thread=name)

    def _find_hold(self, name: Name) -> Hold | None:
        thread = self._holds(*name)
        return self.state.holds.get(thread.number) if thread is not None else None

    def _check_running(self) -> None:
        if self.state.is_stopping.is_set():
            raise ShuttingDown("the daemon is stopping; nothing was written")

    # -- for the sweep --------------------------------------------------------------------------------------------

    def _expire(self, name: Name, uid: bytes, second: int) -> bool:
        self._check_running()
        return self._expirer.expire(name, uid, second)

    def _expire_locked(self, namespace: NamespaceKeys, name_hash: bytes, uid: bytes, second: int) -> bool:
        self._check_running()
        return self._locked.expire(namespace, Place(namespace.id, name_hash), uid, second)

    def _own(self, name: Name, must_exist: bool) -> None:
        with suppress(ArchiveUnavailable):  # then the thread is used as it is here, as for a save
            self.attacher.own_now(name, must_exist=must_exist)

    def _fetch_blob(self, name: tuple[str, str], sha256: bytes) -> None:
        self._blobs.fetch(name, sha256)

    def _complete(self, name: Name) -> None:
        self._check_running()
        self._completer.complete(name)

    def _is_away(self) -> bool:
        return self.state.wire.away_s > 0

    def _is_own(self, head: ArchiveHead) -> bool:
        return self.state.is_own(head)

    def _check_blob(self, name: Name, sha256: bytes) -> None:
        self._blobs.check(name, sha256)

    # -- in the writer --------------------------------------------------------------------------------------------

    def _on_entry(self, thread: Thread, stored_bytes: int) -> None:
        """Runs after a commit: the thread has something to archive."""
        state = self.state
        hold = state.holds.get(thread.number)
        if hold is None:
            identity = thread.identity
            claimed = state.claimed.pop((identity.namespace, thread.name), None)
            if claimed is None or thread.archive is None:
                self.schedule.add(thread.number)  # the hold was dropped during the call: the ship reads HEAD again
                return
            place = state.place(identity.namespace_keys, thread.name)
            hold = state.hold(thread, place, thread.archive.head, *claimed)
        if not hold.dirty_since:
            hold.dirty_since = state.context.clock.boottime()
        hold.dirty_bytes += stored_bytes
        self.schedule.add(thread.number, at_once=hold.dirty_bytes >= state.options.flush_bytes)

    def _before_large(self, identity: Identity) -> None:
        """Runs in the writer: keeps the thread as it is committed now, so that it is archived before what takes long to
        upload."""
        hold = self.state.holds.get(identity.number)
        if hold is None or len(hold.before_large) >= MOMENTS_MAX:
            return
        with suppress(StatewardError, lmdb.Error):  # then these entries are archived together with the large one
            moment = self.state.outbox.moment(identity, hold.opened_blobs)
            if moment is not None and moment.tip_sequence > hold.head.tip_sequence:
                hold.before_large.append(moment)

    def _refresh(self, thread: Thread) -> None:
        hold = self.state.holds.get(thread.number)
        if thread.number in self.state.locked:  # it is open now
            self.state.locked.discard(thread.number)
            self.schedule.add(thread.number)
        if hold is not None:
            if hold.is_rolled_back or thread.archived_sequence < hold.archived_sequence:
                thread.archived_sequence = hold.archived_sequence
            thread.epoch = max(thread.epoch, hold.head.epoch)
            if hold.given_up is not None:
                thread.archive = hold.given_up
            hold.thread = thread

    def _cleared(self, number: int, cleared: Pruned) -> None:
        """Runs after a commit. The archive still has what this disk has cleared: the thread is shipped, also if nothing
        else is written. If this process does not hold the thread, its row in the outbox says so to the next hold."""
        hold = self.state.holds.get(number)
        if hold is not None:
            hold.owed.add(cleared)
        self.schedule.add(number)

    def _gone(self, thread: Thread, lost: int) -> None:
        """Runs after a deletion on this disk: drops the hold and fails the waiting callers. ``lost``: the newest entry
        of a copy that was deleted on this disk alone; 0 = the archive has deleted the thread, too."""
        self.state.note_cut(thread, self.state.holds.pop(thread.number, None), lost)
        self.state.waiters.failed(thread.number, not_found(thread.identity.namespace, thread.name))

    # -- held threads ---------------------------------------------------------------------------------------------

    def _unshipped(self, uids: set[bytes]) -> set[bytes]:
        return self._locked.unshipped(uids, self.schedule)

    def _lock(self, uids: set[bytes]) -> None:
        """Drops the holds of threads that were locked, and all else that has their keys."""
        for hold in list(self.state.holds.values()):
            if hold.thread.identity.is_held and hold.thread.identity.uid in uids:
                self.state.holds.pop(hold.number, None)
                self._shipper.forget(hold.number)

    def _locked_gone(self, uid: bytes, numbers: set[int], is_local: bool) -> None:
        """Runs after lines of a locked thread were deleted on this disk."""
        state = self.state
        if is_local and numbers & state.locked and len(state.cut) < CUT_MAX:
            state.cut.add(uid)
        state.locked -= numbers
        for number in numbers:
            state.holds.pop(number, None)
            state.waiters.failed(number, ThreadNotFound("the thread was deleted", uid=uid.hex()))

    # -- shipping -------------------------------------------------------------------------------------------------

    def _ship(self, number: int) -> None:
        state = self.state
        hold = state.holds.get(number)
        if hold is None:
            try:
                with state.context.engine.read() as txn:
                    thread = state.store.threads.by_number(txn, number)
            except Locked:
                self._locked.note(number)
                return
            is_copy = thread is not None and thread.access in (THREAD_ACCESS_REMOTE, THREAD_ACCESS_ORPHAN)
            if thread is None or (is_copy and not thread.is_outdated):
                self._tell(number, thread)
                return  # another sidecar owns it now, or it was deleted
            try:
                self.attacher.own((thread.identity.namespace, thread.name), must_exist=True)
            except ThreadNotFound:
                return  # another sidecar deleted it, and nothing is left to ship
            except NewerFormat:
                return  # it is shipped, or set aside, once this sidecar is upgraded
            except (NotOwner, Fenced) as error:
                live = state.store.threads.in_memory(number) or thread
                if live.access == THREAD_ACCESS_OWNED:  # it may be ours again once a lease has ended
                    raise ArchiveUnavailable(error.message) from None
                return  # nothing is lost: our entries were set aside
            hold = state.holds.get(number)
            if hold is None:
                return
        shipped_bytes, begun = hold.dirty_bytes, state.context.clock.boottime()
        with span("ship", hold.thread.identity.uid_text, **{"stateward.bytes": shipped_bytes}):
            self._shipper.ship(hold)
        hold.dirty_bytes = max(hold.dirty_bytes - shipped_bytes, 0)
        hold.dirty_since = begun if hold.dirty_bytes else 0.0
        current = state.holds.get(number)
        if current is not None and current.owed.is_due:  # an object could not be read now
            self.schedule.add(number)
        if number not in state.holds and hold.name in state.fenced:
            with suppress(StatewardError):
                self.attacher.know(hold.name)  # lists then show the thread as well, not only its orphan

    def _tell(self, number: int, line: Thread | None) -> None:
        """Answers the callers that wait for a line which this process no longer ships."""
        waiters = self.state.waiters
        if line is not None:
            waiters.archived(number, line.archived_sequence)
            if line.archive is not None and line.access == THREAD_ACCESS_ORPHAN:
                waiters.failed(number, fenced_by(line))

    def _find_dirty(self) -> None:
        """Schedules, at the start, the threads that a crash left dirty or that are older than the archive."""
        context = self.state.context
        try:
            with context.engine.read() as txn:
                numbers = [layout.marked_thread(key) for key, _ in rows(txn, b"O")]
        except StatewardError:
            log.exception("the outbox could not be read")
            return
        for number in numbers:
            self.schedule.add(number)
        if numbers:
            log.info("found threads with entries that are not archived", threads=len(numbers))

    # -- the end --------------------------------------------------------------------------------------------------

    def ship_all(self, grace_s: float, on_given: Callable[[], None] = lambda: None) -> tuple[int, int]:
        """Accepts no more calls, and archives and detaches all threads within ``grace_s``. See ``Leaver.leave``."""
        self.state.is_stopping.set()
        return self.leaver.leave(grace_s, on_given=on_given)

    def stop(self) -> None:
        """Starts nothing more, and writes the rows of shipped threads. Does not wait for the bucket."""
        self.state.is_stopping.set()
        self.schedule.close()

    def close(self) -> None:
        """Ends the archive's workers. Waits for requests that are under way."""
        self.stop()
        self.lanes.close(wait=True)
        self.state.wire.close()

    # -- statistics -----------------------------------------------------------------------------------------------

    def stats(self) -> ArchiveStats:
        """Returns lag and traffic. Reads memory, and the index of names to count the orphans."""
        state, traffic = self.state, self.state.wire.traffic
        now = state.context.clock.boottime()
        stats = ArchiveStats(
            heads=traffic.heads, objects=traffic.objects, head_bytes=traffic.head_bytes,
            object_bytes=traffic.object_bytes, entry_bytes=traffic.entry_bytes, requests=traffic.requests,
            owned_threads=len(state.holds), orphans=state.orphans.count(), away=state.wire.away_s > 0,
            error=state.wire.error,
        )  # fmt: skip
        oldest = now
        for hold in list(state.holds.values()):
            lag = hold.thread.head.tip_sequence - hold.head.tip_sequence
            stats.rolled_back += hold.is_rolled_back
            if lag > 0:
                stats.dirty_threads += 1
                stats.lag_entries += lag
                stats.lag_bytes += hold.dirty_bytes
                oldest = min(oldest, hold.dirty_since or now)
        stats.dirty_threads += len(state.locked)
        if stats.dirty_threads:
            stats.lag.FromMilliseconds(int((now - oldest) * 1000))
        return stats
