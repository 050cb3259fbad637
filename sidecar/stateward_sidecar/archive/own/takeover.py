"""Attaches threads, keeps copies of other sidecars' threads up to date, and releases threads.

Conditional writes of HEAD decide who may write, never a clock. A thread is free if its HEAD says detached, if a process
of this data directory wrote HEAD, or if HEAD's write id has not changed for the lease time on our own boot-time clock.
An idle owner can therefore lose its thread. It notices at its next ship, or at a read that is not
``ArchiveState.is_fresh``.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial

import lmdb

from stateward.storage.v1.archive_pb2 import ArchiveHead, ArchiveRow
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN, THREAD_ACCESS_OWNED, THREAD_ACCESS_REMOTE
from stateward_sidecar import security
from stateward_sidecar.archive.objects.fetch import Fetched, Fetcher, Seen
from stateward_sidecar.archive.objects.heads import (
    FORMAT,
    UNUSED_MAX,
    WRITE_ID_BYTES,
    claim_tombstone,
    epoch_start,
    follow,
    is_over,
    is_renewal,
    is_unused,
    seal_head,
)
from stateward_sidecar.archive.objects.holds import ArchiveState, Hold, Name, row_of
from stateward_sidecar.archive.objects.keys import ThreadKey
from stateward_sidecar.archive.own.history import History, HistoryChanged, Window
from stateward_sidecar.archive.own.reconcile import Finisher, Reconciler
from stateward_sidecar.archive.requests.metered import Unclear
from stateward_sidecar.archive.requests.places import FIRST_EPOCH, Place
from stateward_sidecar.bucket.base import ObjectChanged, ObjectExists
from stateward_sidecar.errors import (
    ArchiveUnavailable,
    Corrupt,
    Fenced,
    KeyUnavailable,
    Locked,
    NewerFormat,
    NotOwner,
    StatewardError,
)
from stateward_sidecar.security import TAKEN
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.thread.context import Claim
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.thread.threads import is_orphans, not_found, reserved
from stateward_sidecar.store.travel.install import CopyGone, continues, entries_here
from stateward_sidecar.telemetry import log
from stateward_sidecar.tracebacks import told

# How often a write to HEAD is tried if other sidecars change HEAD first.
ROUNDS = 8
# Names without a thread whose HEAD was read for a write: how many are remembered, and for how many seconds.
LOOKED_MAX, LOOKED_S = 1024, 5.0


class Attacher:
    """Runs on the archive's workers. Every method may wait for the bucket, except ``is_own`` and ``release``."""

    def __init__(self, state: ArchiveState, fetcher: Fetcher, reconciler: Reconciler) -> None:
        self._state = state
        self._fetcher = fetcher
        self._reconciler = reconciler
        self._finisher = Finisher(state, fetcher)
        self._looked: dict[Place, tuple[Seen | None, float]] = {}
        self.window = Window(state, fetcher, History(state, fetcher, reconciler))

    # -- for writers ----------------------------------------------------------------------------------------------

    def own(
        self, name: Name, *, take_over: bool = False, must_exist: bool = False, claims: bool = True,
        session_key: bytes = b"",
    ) -> None:  # fmt: skip
        """Makes this process the owner of a thread, or claims a name that has no thread. Without ``claims`` such a name
        is left as it is: a write that makes the thread then raises Unclaimed, and one that must fail leaves nothing.
        ``session_key``: of a held thread, or of one that is made now.

        Raises NotOwner, Fenced, ArchiveUnavailable, KeyUnavailable, Locked, Corrupt. Raises ThreadNotFound with
        ``must_exist``, else InvalidField if only orphans may have the name.
        """
        with self._state.locks.of(name):
            if is_orphans(name[1]) and self._local(name) is None:  # the archive has no orphans
                raise not_found(*name) if must_exist else reserved(name[1])
            for _ in range(ROUNDS):
                with suppress(CopyGone):
                    if self._own(
                        name, take_over=take_over, must_exist=must_exist, claims=claims, session_key=session_key
                    ):
                        return
        raise self._changing(name)

    def _own(self, name: Name, *, take_over: bool, must_exist: bool, claims: bool, session_key: bytes) -> bool:
        """Makes one attempt. Returns False if HEAD changed meanwhile."""
        state = self._state
        claim = state.hooks.claims.get(name)  # read before the thread: a commit turns a claim into a thread
        thread = self._local(name)
        hold = state.holds.get(thread.number) if thread is not None else None
        if hold is not None:
            return not take_over or self._look_again(hold)
        if thread is None and claim is not None and self._is_claimed_still(name, claim):
            return self._leave(name, None, None, must_exist=must_exist)
        if thread is not None and thread.access == THREAD_ACCESS_ORPHAN:
            raise NotOwner(
                f"thread {name[1]!r} is an orphan: it can be read, forked and deleted, but not written", thread=name[1]
            )
        if thread is not None and (thread.access == THREAD_ACCESS_OWNED or thread.is_outdated):
            return self.resume(thread, waits=not take_over)
        makes = claims and not must_exist
        namespace = self._namespace(name, makes=thread is not None or makes)
        if namespace is None:
            return self._leave(name, None, None, must_exist=must_exist)
        place = state.place(namespace, name[1])
        seen = self._look(namespace, place, with_key=thread is None, makes=makes, session_key=session_key)
        if thread is not None and thread.archive is not None and seen is not None and seen.head.deleted:
            self._reconciler.end_copy(thread, place, seen)  # a copy must not revive a deleted thread
            return False
        if seen is None and thread is not None and thread.archive is not None:
            raise self._lost_head(name)
        if seen is None or seen.head.deleted or seen.is_new_to(thread):
            if thread is None and not makes:
                return self._leave(name, place, seen, must_exist=must_exist)
            return self._claim(name, namespace, place, seen, thread, take_over=take_over, session_key=session_key)
        if thread is not None and thread.archive is None:
            # The thread was made here without the archive, which has another thread of that name.
            return self._reconciler.settle(thread, ArchiveHead(), place, seen) is not None
        if thread is not None and thread.identity.uid != seen.head.uid:
            self._reconciler.end_copy(thread, place, seen)
            return False
        self._check_free(name, place, seen.head, take_over=take_over)
        with self._opened(seen, session_key):
            return self._take(namespace, place, seen, thread, take_over=take_over)

    def _opened(self, seen: Seen, session_key: bytes) -> AbstractContextManager[None]:
        """Keeps a held thread open, whose key was read, during a block: it is taken for a call that has its key."""
        if seen.key is None or not seen.key.held:
            return nullcontext()
        return self._state.context.keystore.held.kept(seen.key.uid, session_key, seen.key.data_key)

    def _namespace(self, name: Name, *, makes: bool) -> NamespaceKeys | None:
        """Returns the keys of a name's namespace; None if it has none, unless it ``makes`` them."""
        keys = self._state.keys
        return keys.namespace(name[0]) if makes else keys.find_namespace(name[0])

    def _leave(self, name: Name, place: Place | None, seen: Seen | None, *, must_exist: bool) -> bool:
        """Leaves a name without a thread as it is. Raises ThreadNotFound if the thread must exist.

        Remembers HEAD: if the name is claimed next, HEAD need not be read again, because the claim is conditional.
        """
        if must_exist:
            raise not_found(*name)
        if place is not None and (seen is None or seen.key is None or not seen.key.held):
            self._looked[place] = seen, self._state.wire.now()
        if len(self._looked) > LOOKED_MAX:
            with suppress(KeyError, RuntimeError):  # another name's task may do the same
                self._looked.pop(next(iter(self._looked)))
        return True

    def _look(
        self, namespace: NamespaceKeys, place: Place, *, with_key: bool, makes: bool, session_key: bytes
    ) -> Seen | None:
        looked = self._looked.pop(place, None) if with_key and makes else None
        is_new = looked is not None and self._state.wire.now() - looked[1] < LOOKED_S
        if looked is not None and is_new and not (looked[0] is not None and looked[0].is_locked):
            return looked[0]
        return self._fetcher.look(namespace, place, with_key=with_key, session_key=session_key)

    def _look_again(self, hold: Hold) -> bool:
        """Reads HEAD, and returns whether a thread is still ours. An idle owner may have been replaced unnoticed."""
        return self._confirm(hold, self._reconciler.look(hold.thread, hold.place))

    def _confirm(self, hold: Hold, seen: Seen | None) -> bool:
        if seen is not None and seen.head.write_id == hold.head.write_id:
            hold.checked_at = seen.asked_at
            return True
        return self._reconciler.settle(hold.thread, hold.head, hold.place, seen) is not None

    def confirm(self, name: Name) -> bool:
        """Returns True if this process holds a thread and HEAD, read now, confirms it. Raises ArchiveUnavailable,
        Corrupt."""
        with self._state.locks.of(name):
            thread = self._local(name)
            hold = self._state.holds.get(thread.number) if thread is not None else None
            return hold is not None and (hold.is_rolled_back or self._look_again(hold))

    def own_now(self, name: Name, *, must_exist: bool) -> None:
        """Does the same as ``own``, and reads HEAD also for a thread of ours: another sidecar may have taken it while
        it was idle here."""
        with self._state.locks.of(name):
            self.own(name, must_exist=must_exist)
            if self._local(name) is not None and not self.confirm(name):
                self.own(name, must_exist=True)

    def renew(self, name: Name) -> None:
        """Asks HEAD now, whoever owns the thread. Raises ArchiveUnavailable, ThreadNotFound, Corrupt."""
        if not self.confirm(name):
            self.know(name)

    def resume(self, thread: Thread, *, waits: bool = True) -> bool:
        """Checks a thread of ours at its first touch since the start: another sidecar may have taken it meanwhile.

        Returns True if the thread is still ours. The caller holds the lock of its name. Raises NotOwner while another
        copy of these data may own it, see ``Reconciler.settle``.
        """
        state, identity = self._state, thread.identity
        assert thread.archive is not None
        known, place = thread.archive.head, state.place(identity.namespace_keys, thread.name)
        if thread.archive.rolled_back and not thread.is_outdated:
            state.hold(thread, place, known, "", rolled_back_to=thread.archive.rolled_back_to)
            return True
        try:
            if state.wire.away_s:
                raise ArchiveUnavailable("the archive does not answer")
            seen = self._reconciler.look(thread, place)
        except NewerFormat:
            raise
        except (ArchiveUnavailable, Corrupt) as error:
            if thread.is_outdated:
                raise  # another sidecar has it: this disk is no excuse
            # It was ours when this disk was last used: neither a bucket that is away nor a damaged HEAD stops a commit.
            log.warning(
                "a thread is used although its HEAD could not be read", uid=identity.uid_text, error=told(error)
            )
            hold = state.hold(thread, place, known, "")
            hold.is_verified = False
            return True
        return self._reconciler.settle(thread, known, place, seen, waits=waits) is not None

    def _claim(
        self, name: Name, namespace: NamespaceKeys, place: Place, seen: Seen | None, thread: Thread | None, *,
        take_over: bool, session_key: bytes,
    ) -> bool:  # fmt: skip
        """Claims a name without a thread: writes key and HEAD. Returns False if HEAD changed meanwhile."""
        state, dead = self._state, list[str]()
        known = self._reconciler.with_key(thread, Seen(ArchiveHead(), "", None)).key if thread is not None else None
        if seen is not None and seen.is_empty and not seen.head.deleted:
            self._check_free(name, place, seen.head, take_over=take_over)
            is_other = seen.key is not None and bool(seen.key.held) != bool(session_key)
            if thread is None and (seen.is_locked or is_other):
                # Whoever claimed the name has made nothing: another thread begins, with the key of this call.
                self.bury_claim(namespace, place, seen)
                return False
            if known is not None and seen.head.uid != known.uid:
                assert thread is not None
                return self._reconciler.settle(thread, ArchiveHead(), place, seen) is not None
            key = known if known is not None and known.held else seen.key
            key = key or state.keys.find_thread(namespace, place, seen.head.created_epoch, session_key)
            if key is None:
                raise KeyUnavailable(f"the key of thread {name[1]!r} is missing in the archive", thread=name[1])
            head = self._follow(seen.head)
        else:
            dead = self._finisher.make_way(place, seen) if seen is not None and seen.head.deleted else []
            state.cut.discard(seen.head.uid if seen is not None else b"")  # nobody takes that thread again
            begun = seen.head.epoch + 1 if seen is not None else FIRST_EPOCH
            key, epoch = self._make_key(namespace, place, begun, known, session_key)
            if known is not None and key.uid != known.uid:
                raise NotOwner(f"another sidecar is making thread {name[1]!r}; try again", thread=name[1])
            head = self._first_head(key, epoch, seen)
            if epoch > begun:  # whoever has a thread of these epochs sets it aside
                head.unused_epochs.add(first=begun, last=epoch - 1)
                del head.unused_epochs[:-UNUSED_MAX]
        now = state.wire.now()
        etag = self._write_claim(namespace, place, head, seen)
        if etag is None:
            return False
        state.cut.discard(head.uid)
        if dead:
            state.wire.later(partial(self._finisher.delete, dead))
        if thread is not None:
            self._reconciler.write_row(thread, row_of(head))
            state.hold(thread, place, head, etag, now)
        else:
            state.claimed[name] = etag, now
            state.hooks.claims[name] = Claim(key.uid, key.data_key, row_of(head), key.held)
        return True

    def _make_key(
        self, namespace: NamespaceKeys, place: Place, epoch: int, known: ThreadKey | None, session_key: bytes
    ) -> tuple[ThreadKey, int]:
        """Makes the key of a thread, and returns it with its epoch. A process that ended between key and HEAD has left
        a key: the next thread takes it. If it is of a held thread, and this call cannot open it, or of one that is not
        held, the next epoch is taken."""
        for skipped in range(ROUNDS):
            try:
                key = self._state.keys.make_thread(namespace, place, epoch + skipped, known, session_key)
            except Locked:
                continue
            if bool(key.held) == bool(session_key) or known is not None:
                return key, epoch + skipped
        raise ArchiveUnavailable("the archive has keys of other threads under this name; try again later")

    def _write_claim(
        self, namespace: NamespaceKeys, place: Place, head: ArchiveHead, seen: Seen | None
    ) -> str | None:  # fmt: skip
        """Writes the HEAD of a claim and returns its etag; None if HEAD changed meanwhile. If the epoch of the claim is
        over, its key object is no one's."""
        wire, data = self._state.wire, seal_head(namespace, place, head)
        try:
            return wire.create(place.head, data) if seen is None else wire.replace(place.head, data, seen.etag)
        except (ObjectExists, ObjectChanged, Unclear):
            found = self._fetcher.look(namespace, place, with_key=False)
            if found is None:
                return None
            if found.head.write_id == head.write_id:
                return found.etag
            if is_over(found.head, head.created_epoch):
                self._state.keys.destroy_thread(place, head.created_epoch)
            return None

    def _is_claimed_still(self, name: Name, claim: Claim) -> bool:
        """Returns True if a claim without a save is still ours. The save may have failed long ago, and another sidecar
        may have taken the name since."""
        state = self._state
        claimed = state.claimed.get(name)
        if claimed is None or state.wire.now() - claimed[1] < state.options.check_s:
            return True  # if ``claimed`` is None, the thread is being committed
        namespace = state.keys.namespace(name[0])
        seen = self._fetcher.look(namespace, state.place(namespace, name[1]), with_key=False)
        if seen is not None and seen.head.write_id == claim.row.head.write_id:
            state.claimed[name] = claimed[0], seen.asked_at
            return True
        state.claimed.pop(name, None)
        state.hooks.claims.pop(name, None)
        return False

    def unclaim(self, name: Name) -> None:
        """Gives a claimed name back that has no thread, because what was to make the thread has failed: else its key
        and HEAD would stay for ever. Raises ArchiveUnavailable.

        If anybody else ever held the claim, their disk may have entries under it, which it then sets aside.
        """
        state = self._state
        with state.locks.of(name):
            claim, claimed = state.hooks.claims.get(name), state.claimed.get(name)
            if claim is None or claimed is None:
                return

            def drop(txn: lmdb.Transaction, batch: Batch) -> bool:
                is_used = self._state.context.keystore.has_thread(claim.uid)  # by a thread, or by an import under way
                is_used = is_used or state.store.threads.draft(txn, batch, *name) is not None
                if is_used or state.hooks.claims.get(name) is not claim:
                    return False
                del state.hooks.claims[name]
                return True

            if not state.context.writer.submit(Write(run=drop, frees_space=True), wait=True).wait():
                return
            state.claimed.pop(name, None)
            namespace = state.keys.namespace(name[0])
            place = state.place(namespace, name[1])
            self._looked.pop(place, None)
            self.bury_claim(namespace, place, Seen(claim.row.head, claimed[0], None))

    def bury_claim(self, namespace: NamespaceKeys, place: Place, seen: Seen) -> bool:
        """Gives a name back that is claimed by ``seen`` and that nobody uses. Returns False if HEAD has changed. Raises
        ArchiveUnavailable."""
        state = self._state
        head = claim_tombstone(seen.head, state.boot_id, state.options.owner_id, state.now_us())
        try:
            etag = state.wire.replace(place.head, seal_head(namespace, place, head), seen.etag)
        except ObjectChanged:
            return False
        self._finisher.finish(namespace, place, Seen(head, etag, None))
        return True

    def _first_head(self, key: ThreadKey, epoch: int, seen: Seen | None) -> ArchiveHead:
        state = self._state
        head = ArchiveHead(
            min_reader=FORMAT, min_writer=FORMAT, uid=key.uid, created_epoch=epoch, epoch=epoch,
            boot_id=state.boot_id, owner_id=state.options.owner_id, write_id=os.urandom(WRITE_ID_BYTES),
            lineage=[epoch_start(epoch, state.boot_id)], update_time_us=state.now_us(),
        )  # fmt: skip
        if seen is not None:
            head.previous_write_ids.append(seen.head.write_id)
            head.unused_epochs.extend(seen.head.unused_epochs)
        return head

    def _check_free(self, name: Name, place: Place, head: ArchiveHead, *, take_over: bool) -> None:
        """Raises NotOwner if the thread is not free, or Fenced if this process lost it and its orphan still exists."""
        state = self._state
        if take_over or head.detached or state.is_own(head):
            return
        unchanged = state.observe(place, head)
        if unchanged >= state.options.lease_s:
            return
        if name in state.fenced and self._is_kept(name, state.fenced[name]):
            raise state.fenced[name]
        raise state.held(name[1], head, unchanged)

    def _take(
        self, namespace: NamespaceKeys, place: Place, seen: Seen, thread: Thread | None, *, take_over: bool
    ) -> bool:  # fmt: skip
        """Fetches what is needed, then writes HEAD under a new epoch. Returns False if the copy or HEAD changed."""
        state = self._state
        if seen.key is None:
            seen = self._reconciler.with_key(thread, seen) if thread is not None else seen
        if thread is not None and thread.archive is not None and not self._reconciler.follows(thread, place, seen):
            return False
        have = entries_here(thread) if thread is not None else 0
        if thread is not None and have:
            try:
                self.window.fill(thread, place, seen.head)  # the copy was fetched for a reader
            except HistoryChanged:
                self.refresh(namespace, place, seen, thread)
                return False
        try:
            seen, fetched = self._fetch(namespace, place, seen, have, for_writer=True)
        except NewerFormat:
            raise
        except Corrupt:  # perhaps only retries need the object
            seen, fetched = self._fetch(namespace, place, seen, have, for_writer=False)
        if thread is not None and not continues(thread, fetched.rows):
            self._reconciler.part(thread, place, seen)
            return False
        state.installer.check_room(fetched.rows)
        written = self._write_take(namespace, place, seen, take_over=take_over)
        if written is None:
            return False
        head, etag = written
        state.cut.discard(head.uid)
        try:
            row = row_of(head, THREAD_ACCESS_OWNED)
            thread = state.installer.install(fetched.incoming(namespace, row, thread is None))
        except StatewardError:
            self._give_back(namespace, place, head, etag)
            raise
        state.hold(thread, place, head, etag, seen.asked_at)
        if not seen.head.detached and not state.is_own(seen.head):
            security.note(
                TAKEN, "a thread of another sidecar was taken over", uid=head.uid.hex(), epoch=head.epoch,
                was_asked_for=take_over,
            )  # fmt: skip
        return True

    def _write_take(
        self, namespace: NamespaceKeys, place: Place, seen: Seen, *, take_over: bool
    ) -> tuple[ArchiveHead, str] | None:
        """Writes HEAD under a new epoch, and returns it with its etag; None if HEAD changed meanwhile.

        Fetching may take longer than an owner waits between two signs of life. They change nothing that was fetched, so
        with ``take_over`` HEAD is written at once over the newest of them.
        """
        for _ in range(ROUNDS):
            head = self._follow(seen.head)
            try:
                return head, self._state.wire.replace(place.head, seal_head(namespace, place, head), seen.etag)
            except (ObjectChanged, Unclear):
                found = self._fetcher.look(namespace, place, with_key=False)
            if found is not None and found.head.write_id == head.write_id:
                return head, found.etag
            if found is None or not take_over or not is_renewal(found.head, seen.head):
                return None
            seen = Seen(found.head, found.etag, seen.key, found.asked_at)
        return None

    def _follow(self, head: ArchiveHead) -> ArchiveHead:
        """Returns the HEAD that takes a thread."""
        state = self._state
        return follow(head, state.boot_id, state.options.owner_id, state.now_us(), is_cut=state.is_cut(head.uid))

    def _give_back(self, namespace: NamespaceKeys, place: Place, head: ArchiveHead, etag: str) -> None:
        """Says in HEAD that a thread is free which was taken and cannot be installed here, so that others may take
        it."""
        state = self._state
        free = follow(head, state.boot_id, state.options.owner_id, state.now_us())
        free.detached = True
        with suppress(ArchiveUnavailable, ObjectChanged):  # else it is free after a lease
            state.wire.replace(place.head, seal_head(namespace, place, free), etag)

    def _fetch(
        self, namespace: NamespaceKeys, place: Place, seen: Seen, have: int, *, for_writer: bool
    ) -> tuple[Seen, Fetched]:
        """Fetches what HEAD names. If that fails and HEAD has changed, fetches what the new HEAD names instead. Raises
        CopyGone if the thread was deleted meanwhile."""
        while True:
            try:
                return seen, self._fetcher.fetch(place, seen, have, for_writer=for_writer)
            except Corrupt:
                again = self._fetcher.look(namespace, place, with_key=False)
                if again is None or again.head.write_id == seen.head.write_id:
                    raise
                if again.head.deleted or again.head.uid != seen.head.uid:
                    raise CopyGone from None
                seen = Seen(again.head, again.etag, seen.key, again.asked_at)

    # -- for readers ----------------------------------------------------------------------------------------------

    def know(self, name: Name, session_key: bytes = b"") -> None:
        """Brings this disk's copy up to HEAD. Does nothing if this process owns the thread. ``session_key``: of a held
        thread.

        Raises ThreadNotFound if the archive has no such thread, and ArchiveUnavailable, KeyUnavailable, Locked,
        Corrupt.
        """
        with self._state.locks.of(name):
            if is_orphans(name[1]) and self._local(name) is None:
                raise not_found(*name)
            self._know(name, session_key)

    def _know(self, name: Name, session_key: bytes) -> None:
        for _ in range(ROUNDS):
            with suppress(CopyGone):
                return self._know_now(name, session_key)
        raise self._changing(name)

    def _know_now(self, name: Name, session_key: bytes) -> None:
        state = self._state
        thread = self._local(name)
        hold = state.holds.get(thread.number) if thread is not None else None
        if hold is not None:
            if state.is_fresh(hold) or self._is_ours_still(hold):
                return
            thread = self._local(name)
        if thread is not None and (thread.archive is None or thread.access == THREAD_ACCESS_ORPHAN):
            return
        if thread is not None and (thread.access == THREAD_ACCESS_OWNED or thread.is_outdated):
            try:
                if self.resume(thread):
                    return
            except NotOwner:
                return  # another copy of these data may own it; this disk has everything that HEAD has
        thread = self._local(name)
        namespace = state.keys.find_namespace(name[0])
        if namespace is None:
            raise not_found(*name)
        place = state.place(namespace, name[1])
        seen = self._fetcher.look(namespace, place, with_key=thread is None, session_key=session_key)
        if (
            thread is not None
            and thread.archive is not None
            and (seen is None or seen.head.deleted or seen.head.uid != thread.identity.uid)
        ):
            if seen is not None:
                self._reconciler.end_copy(thread, place, seen)
                thread = None
                seen = self._fetcher.look(namespace, place, with_key=True, session_key=session_key)
            else:
                raise self._lost_head(name)
        if seen is None:
            state.wire.check_there()  # without the archive, "not found" would be a guess
            raise not_found(*name)
        state.observe(place, seen.head)  # starts the lease clock: the reader may want to write the thread next
        self._bury_rest(namespace, place, seen)
        if seen.head.deleted or seen.is_new_to(thread):
            raise not_found(*name)
        with self._opened(seen, session_key):
            self.refresh(namespace, place, seen, thread)

    def _bury_rest(self, namespace: NamespaceKeys, place: Place, seen: Seen) -> None:
        """Finishes a deletion whose tombstone a reader found: deletes orphans here, and what is left in the archive."""
        if seen.head.deleted:
            self._state.cut.discard(seen.head.uid)
            if not is_unused(seen.head):
                self._finisher.delete_orphans(seen.head.uid)
            self._finisher.finish_later(namespace, place, seen)

    def _is_ours_still(self, hold: Hold) -> bool:
        """Reads HEAD for a reader. While the bucket is away, the thread stays ours, for reads as for commits.

        Makes no request if one failed less than ``check_s`` ago. After that, the reader waits for a new request.
        """
        wire = self._state.wire
        if wire.away_s and wire.now() - wire.failed_at < self._state.options.check_s:
            wire.ask_again()
            return True
        try:
            seen = self._reconciler.look(hold.thread, hold.place)
        except NewerFormat:
            raise
        except (ArchiveUnavailable, Corrupt):
            return True
        try:
            return self._confirm(hold, seen)
        except ArchiveUnavailable:  # HEAD and the format object are missing: the archive is not mounted
            return self._state.holds.get(hold.number) is hold

    def refresh(self, namespace: NamespaceKeys, place: Place, seen: Seen, thread: Thread | None) -> Thread:
        """Brings a copy up to HEAD without taking the thread. Returns the thread as it is afterwards.

        Raises CopyGone if the copy or the thread was deleted meanwhile: ``seen`` may lack the key.
        """
        state = self._state
        if thread is not None and thread.archive is not None:
            here = thread.archive.head.write_id, entries_here(thread), thread.head.tip_digest
            is_same = here == (seen.head.write_id, seen.head.tip_sequence, seen.head.tip_digest)
            if is_same and not thread.archive.rolled_back:
                return thread
            seen = self._reconciler.with_key(thread, seen)
            name = thread.identity.namespace, thread.name
            if not self._reconciler.follows(thread, place, seen):
                thread = self._local(name)
                if thread is not None and self.resume(thread):
                    return thread
            if seen.is_empty:  # the bucket was set back to before the first entry, and another sidecar begins anew
                raise not_found(*name)
        have = entries_here(thread) if thread is not None else 0
        seen, fetched = self._fetch(namespace, place, seen, have, for_writer=False)
        if thread is not None and not continues(thread, fetched.rows):
            self._reconciler.part(thread, place, seen)
            seen, fetched = self._fetch(namespace, place, seen, 0, for_writer=False)
        row = row_of(seen.head, THREAD_ACCESS_REMOTE)
        return state.installer.install(fetched.incoming(namespace, row, thread is None))

    # -- on request -----------------------------------------------------------------------------------------------

    def is_detached(self, name: Name, session_key: bytes = b"") -> bool:
        """Returns True if the owner of a thread gave it up. Does not take the thread. Raises ThreadNotFound."""
        with self._state.locks.of(name):
            self._know(name, session_key)
            thread = self._local(name)
            return thread is not None and thread.archive is not None and thread.archive.head.detached

    def is_own(self, name: Name) -> bool:
        """Returns True if a process of this disk wrote the HEAD that was read last. Makes no request."""
        thread = self._local(name)
        return thread is not None and thread.archive is not None and self._state.is_own(thread.archive.head)

    def release(self, hold: Hold, head: ArchiveHead) -> bool:
        """Stops writes to a thread of ours, until HEAD has landed or ``Reconciler.take_back`` is called. Returns False,
        and changes nothing, if ``head`` lacks an entry."""

        def keep(row: ArchiveRow) -> None:
            hold.given_up = row

        return self._state.orphans.release(hold.thread, head.tip_sequence, row_of(head, THREAD_ACCESS_REMOTE), keep)

    def _lost_head(self, name: Name) -> Corrupt:
        """Returns the error for a missing HEAD. A thread that this disk has a copy of does not count as new."""
        self._state.wire.check_there()
        return Corrupt("its HEAD is missing in the archive; run `stateward archive repair` to write it again", name[1])

    @staticmethod
    def _changing(name: Name) -> ArchiveUnavailable:
        return ArchiveUnavailable(f"other calls and sidecars change thread {name[1]!r} all the time; try again")

    def _is_kept(self, name: Name, fenced: Fenced) -> bool:
        """Returns True if the orphan that an error names still exists."""
        if self._local((name[0], fenced.metadata["orphan"])) is not None:
            return True
        del self._state.fenced[name]
        return False

    def _local(self, name: Name) -> Thread | None:
        with self._state.context.engine.read() as txn:
            return self._state.store.threads.find(txn, *name)
