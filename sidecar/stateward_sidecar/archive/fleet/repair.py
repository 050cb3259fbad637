"""Writes a thread's HEAD again from this disk, if HEAD is lost, damaged or rolled back, or names missing objects.

This disk must have all entries, and must have written the thread last. If HEAD is missing or cannot be read, a complete
copy is enough. The repair does not trust the old HEAD: it packs the whole journal again under an epoch above all known
epochs, and replaces exactly the HEAD that it has read, by compare-and-swap. If this process wrote that HEAD, it renews
it while objects are put (``pulse``), because its callers go on saving. An owner that is alive after all is fenced and
loses nothing: its sidecar sets aside what it has beyond this disk's history.

    1. write the new epoch to this disk, so that after a crash in 2 HEAD is recognised as this disk's own
    2. put the objects, then HEAD
    3. this process holds the thread
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from stateward.storage.v1.archive_pb2 import ArchiveHead, ArchiveRow
from stateward.v1.archive_service_pb2 import RepairThreadRequest, RepairThreadResponse
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN, THREAD_ACCESS_OWNED, THREAD_ACCESS_REMOTE
from stateward_sidecar.archive.fleet.fleet import Fleet, judge_here, known_head, object_refs
from stateward_sidecar.archive.fleet.inspect import flaws_of
from stateward_sidecar.archive.objects.fetch import Fetcher, Seen
from stateward_sidecar.archive.objects.heads import (
    FORMAT,
    LINEAGE_KEPT,
    WRITE_ID_BYTES,
    bare,
    catch_up,
    epoch_start,
    open_head,
    seal_head,
    update_us,
)
from stateward_sidecar.archive.objects.holds import ArchiveState, Hold, Name, row_of
from stateward_sidecar.archive.objects.judge import Verdict, set_back_text
from stateward_sidecar.archive.objects.keys import ThreadKey, key_object
from stateward_sidecar.archive.own.pulse import Pulse
from stateward_sidecar.archive.own.reconcile import Reconciler
from stateward_sidecar.archive.own.takeover import Attacher
from stateward_sidecar.archive.requests.metered import Unclear
from stateward_sidecar.archive.requests.places import Place, namespace_key
from stateward_sidecar.archive.ship.compact import GARBAGE_MAX, dropped
from stateward_sidecar.archive.ship.ship import MOMENTS_MAX, Shipper
from stateward_sidecar.bucket.base import Object, ObjectChanged, ObjectExists
from stateward_sidecar.errors import ArchiveUnavailable, Corrupt, KeyUnavailable, Locked, NewerFormat, NotOwner
from stateward_sidecar.store.journal.views import view_thread
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.thread.threads import not_found
from stateward_sidecar.store.travel.outbox import Cleared, Moment
from stateward_sidecar.telemetry import log


@dataclass(slots=True)
class _Diagnosis:
    """What is wrong with a thread. ``refusal``: why this disk must not repair it; empty = it may."""

    object: Object | None
    head: ArchiveHead | None = None  # None = it is missing or cannot be read
    findings: list[str] = field(default_factory=list)
    refusal: str = ""
    # HEAD is in order; only the mark on this disk must go.
    only_marked: bool = False


class Repairer:
    """Runs on the archive's threads."""

    def __init__(self, state: ArchiveState) -> None:
        self._state = state
        fetcher = Fetcher(state.wire)
        self._reconciler = Reconciler(state, fetcher)
        self._attacher = Attacher(state, fetcher, self._reconciler)
        self._rewriter = _Rewriter(state, fetcher, self._reconciler, self._attacher)

    def repair(self, request: RepairThreadRequest) -> RepairThreadResponse:
        """Returns what is wrong, and repairs it unless ``dry_run``.

        Raises ThreadNotFound, NotOwner, ArchiveUnavailable.
        """
        name: Name = request.namespace, request.thread
        with self._state.locks.of(name):
            thread = self._local(name)
            if thread.access == THREAD_ACCESS_ORPHAN:
                raise NotOwner(
                    f"thread {thread.name!r} is an orphan, and orphans are not in the archive", thread=thread.name
                )
            place = self._state.place(thread.identity.namespace_keys, thread.name)
            found = self._diagnose(thread, place)
            if not request.dry_run and found.refusal:
                raise NotOwner(
                    f"thread {thread.name!r} cannot be repaired from here: {found.refusal}", thread=thread.name
                )
            if found.refusal:
                found.findings.append(f"it cannot be repaired from here: {found.refusal}")
            elif found.findings and not request.dry_run:
                found.findings.append(self._mend(thread, place, found))
            return RepairThreadResponse(thread=view_thread(self._local(name)), findings=found.findings)

    def _local(self, name: Name) -> Thread:
        with self._state.context.engine.read() as txn:
            return self._state.store.threads.get(txn, *name)

    # -- what is wrong --------------------------------------------------------------------------------------------

    def _diagnose(self, thread: Thread, place: Place) -> _Diagnosis:
        namespace = thread.identity.namespace_keys
        found = _Diagnosis(self._state.wire.find(place.head))
        if thread.archive is None:
            found.refusal = "this sidecar has never archived it; the next write will"
            return found
        if found.object is None:
            self._state.wire.check_there()
            found.findings.append("HEAD is missing in the archive")
        else:
            try:
                found.head = open_head(namespace, place, found.object.data)
            except Corrupt as error:
                if isinstance(error, NewerFormat) and error.is_proven:
                    found.refusal = error.message
                found.findings.append(f"HEAD cannot be read: {error.message}")
        if found.head is not None:
            self._compare(thread, place, found)
        elif thread.access == THREAD_ACCESS_REMOTE:
            found.findings.append(
                f"this disk has a copy up to entry {thread.head.tip_sequence}; later entries of its last owner "
                "become an orphan there"
            )
        if thread.floor_sequence and not found.refusal:
            found.refusal = (
                f"this disk lacks older entries, up to {thread.floor_sequence}; a sidecar that has all can repair it"
            )
        return found

    def _compare(self, thread: Thread, place: Place, found: _Diagnosis) -> None:
        """Compares a readable HEAD with this disk, and checks that everything that it names exists."""
        state, head = self._state, found.head
        assert head is not None
        assert thread.archive is not None
        hold, known = state.holds.get(thread.number), known_head(state, thread)
        is_marked = thread.archive.rolled_back and thread.access != THREAD_ACCESS_REMOTE  # the next read unmarks a copy
        marked = is_marked or (hold is not None and hold.is_rolled_back)
        if head.min_writer > FORMAT:
            found.refusal = f"only a version with format {head.min_writer} may write its HEAD: upgrade this sidecar"
        elif thread.access == THREAD_ACCESS_REMOTE:
            self._compare_copy(thread, head, found)
        else:
            verdict = judge_here(state, thread, known, head)
            if verdict is Verdict.ROLLED_BACK:
                found.findings.append(set_back_text(head, known))
                return
            found.refusal = _refusal(verdict, head)
        if found.refusal:
            return
        read = Fleet(state).read([place])[0]
        if read.error is None and (read.seen is None or read.seen.head.write_id != head.write_id):
            raise ArchiveUnavailable("another sidecar is changing HEAD; try again")
        found.findings += [flaw.message for flaw in flaws_of(state, read)]
        is_free = head.detached or state.is_own(head)
        if found.findings and thread.access == THREAD_ACCESS_REMOTE and not is_free:
            found.refusal = f"{head.owner_id!r} holds it; repair it there, or after it was given up"
        elif found.findings and head.boot_id in state.former and not head.detached:
            left_s = state.options.lease_s - state.observe(place, head)
            if left_s > 0:
                found.refusal = f"another copy of these data may hold it; if it stays idle, repair it in {left_s:.1f} s"
        if marked and not found.findings:
            found.only_marked = True
            found.findings.append("this disk has marked it as rolled back, but HEAD is in order now")

    def _compare_copy(self, thread: Thread, head: ArchiveHead, found: _Diagnosis) -> None:
        if head.deleted or head.uid != thread.identity.uid:
            found.refusal = "the thread was deleted in the archive"
        elif (head.tip_sequence, head.tip_digest) != (thread.head.tip_sequence, thread.head.tip_digest):
            found.refusal = f"{head.owner_id!r} wrote it last, and the copy on this disk is older"

    # -- mending --------------------------------------------------------------------------------------------------

    def _mend(self, thread: Thread, place: Place, found: _Diagnosis) -> str:
        state, identity = self._state, thread.identity
        assert thread.archive is not None
        if found.only_marked:
            state.holds.pop(thread.number, None)
            row = ArchiveRow()
            row.CopyFrom(thread.archive)
            row.rolled_back, row.rolled_back_to = False, 0
            self._reconciler.write_row(thread, row)
            self._attacher.own((identity.namespace, thread.name), must_exist=True)
            return "the mark was removed; the thread is archived again"
        self._ensure_keys(thread, place)
        old_row, old_hold = ArchiveRow(), state.holds.get(thread.number)
        old_row.CopyFrom(thread.archive)
        known = old_hold.head if old_hold is not None else old_row.head
        base = self._base(thread, known, found.head)
        self._reconciler.write_row(thread, row_of(base, THREAD_ACCESS_OWNED))
        hold = state.hold(thread, place, base, found.object.etag if found.object is not None else "")
        # A HEAD of this process that names lost objects is still its sign of life.
        hold.renews = found.head is not None and found.head.boot_id == state.boot_id and not found.head.detached
        try:
            self._rewriter.rewrite(hold)
        except BaseException:
            state.holds.pop(thread.number, None)
            if old_hold is not None:
                state.holds[thread.number] = old_hold
            self._reconciler.write_row(thread, old_row)
            raise
        hold.renews = True
        self._reconciler.write_row(thread, row_of(hold.head, THREAD_ACCESS_OWNED))
        head = hold.head
        log.warning("HEAD was written again from this disk", uid=identity.uid_text, epoch=head.epoch)
        return (
            f"HEAD was written again from this disk: epoch {head.epoch}, entries up to {head.tip_sequence}, "
            f"{len(head.objects)} objects"
        )

    def _ensure_keys(self, thread: Thread, place: Place) -> None:
        """Puts the thread's key again if it is missing or damaged. Raises NotOwner if it belongs to another thread."""
        keys, identity = self._state.keys, thread.identity
        assert thread.archive is not None
        self._ensure_namespace_key(identity.namespace_keys.id)
        namespace = keys.namespace(identity.namespace)
        data_key = self._state.context.keystore.thread_key(identity.uid, namespace)
        if data_key is None:
            raise not_found(identity.namespace, thread.name)
        held = self._state.context.keystore.held_slot(identity.uid) if identity.is_held else b""
        own, epoch = ThreadKey(identity.uid, data_key, held), thread.archive.head.created_epoch
        try:
            there = keys.make_thread(namespace, place, epoch, own)
        except NewerFormat:
            raise
        except (Corrupt, KeyUnavailable) as error:
            if isinstance(error, Locked) and error.metadata.get("uid") != identity.uid_text:
                raise _of_another(thread) from None
            if isinstance(error, Locked) and held:  # whole, as far as anybody can tell without its session key
                keys.renew_held(held, place, epoch)
                return
            keys.destroy_thread(place, epoch)
            there = keys.make_thread(namespace, place, epoch, own)
        if there != own:
            raise _of_another(thread)

    def _ensure_namespace_key(self, identity: bytes) -> None:
        slots = self._state.context.keystore.namespace_slots(identity)
        key = namespace_key(identity)
        if slots and self._state.wire.find(key) is None:
            with suppress(ObjectExists):
                self._state.wire.create(key, key_object(*slots))

    def _base(self, thread: Thread, known: ArchiveHead, found: ArchiveHead | None) -> ArchiveHead:
        """Returns a HEAD of this process that names no objects yet."""
        state = self._state
        epoch = max(known.epoch, found.epoch if found is not None else 0, thread.epoch) + 1
        last = found if found is not None else known
        base = ArchiveHead(
            min_reader=FORMAT, min_writer=FORMAT, uid=thread.identity.uid, created_epoch=known.created_epoch,
            epoch=epoch, boot_id=state.boot_id, owner_id=state.options.owner_id,
            write_id=last.write_id or os.urandom(WRITE_ID_BYTES), previous_write_ids=last.previous_write_ids,
            lineage=known.lineage, update_time_us=update_us(last, state.now_us()), rekeyed_from=known.rekeyed_from,
        )  # fmt: skip
        tip = thread.head
        base.lineage.append(epoch_start(epoch, state.boot_id, tip.tip_sequence, tip.tip_digest))
        del base.lineage[:-LINEAGE_KEPT]
        if found is not None:  # readers of the old HEAD may still follow it for a while
            refs = [*object_refs(found), *(item.object for item in found.garbage)]
            base.garbage.extend(dropped(ref, base.update_time_us) for ref in refs[:GARBAGE_MAX])
        return base


def _of_another(thread: Thread) -> NotOwner:
    return NotOwner(
        f"the key in the archive under the name {thread.name!r} belongs to another thread", thread=thread.name
    )


class _Pulse(Pulse):
    """Writes HEAD while a thread is repaired. A HEAD that somebody else changed ends the repair, and nothing is settled
    by it."""

    def part(self, hold: Hold, seen: Seen | None) -> NoReturn:
        raise ArchiveUnavailable("another sidecar changed HEAD meanwhile; try again")

    def put(self, hold: Hold, head: ArchiveHead) -> bool:
        wire, namespace = self._state.wire, hold.thread.identity.namespace_keys
        data = seal_head(namespace, hold.place, head)
        try:
            if hold.etag:
                hold.etag = wire.replace(hold.place.head, data, hold.etag)
            else:
                hold.etag = wire.create(hold.place.head, data)
        except (ObjectChanged, ObjectExists, Unclear):
            found = wire.find(hold.place.head)
            if found is None or found.data != data:
                raise ArchiveUnavailable("another sidecar changed HEAD meanwhile; try again") from None
            hold.etag = found.etag
        return True


class _Rewriter(Shipper):
    """Ships a thread whose HEAD names no objects, so everything goes into new objects."""

    _pulse_type = _Pulse
    is_repair = True

    def rewrite(self, hold: Hold) -> None:
        """Writes objects and HEAD. Raises ArchiveUnavailable if HEAD has changed since it was read."""
        base = bare(hold.head)
        for _ in range(MOMENTS_MAX):
            moment: Moment | None = self._state.outbox.moment(hold.thread.identity)
            if moment is None:
                raise not_found(*hold.name)
            with suppress(Cleared):
                self._ship(hold, moment, detach=False)
                return
            catch_up(base, hold.head)  # the old HEAD was renewed meanwhile
            base.write_id = hold.head.write_id
            hold.head = bare(base)
        raise ArchiveUnavailable(f"thread {hold.thread.name!r} is pruned all the time; try again")


def _refusal(verdict: Verdict, head: ArchiveHead) -> str:
    """Returns why this disk must not replace a readable HEAD; empty = it may."""
    if verdict is Verdict.OURS:
        return ""
    if verdict is Verdict.DELETED:
        return "the thread was deleted in the archive"
    if verdict is Verdict.BEHIND:
        return f"HEAD is ahead of this disk, at entry {head.tip_sequence}; attach the thread to fetch the rest"
    history = "with entries that are not here" if verdict is Verdict.FENCED else "with all entries that are here"
    return f"it belongs to {head.owner_id!r}, epoch {head.epoch}, {history}"
