"""Does what takes long under the lock of a thread's name, and shows meanwhile that its owner lives.

HEAD is the only sign of life, and names only objects that exist. So it is written after the objects. While objects are
prepared and uploaded, and while older history is fetched, no ship writes HEAD. So the last HEAD is written again from
time to time, with a new write id and the same content, and no other sidecar sees an owner that is silent for the lease.
An owner that cannot reach objects must not keep a thread for ever. So it gives no sign for longer than the transfer
takes at ``SLOWEST_BYTES_S``, and none after some uploads in a row have failed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from stateward.storage.v1.archive_pb2 import ArchiveHead
from stateward_sidecar.archive.objects.fetch import Seen
from stateward_sidecar.archive.objects.heads import bare, follow, seal_head, wrote
from stateward_sidecar.archive.objects.holds import ArchiveState, Hold
from stateward_sidecar.archive.own.reconcile import Reconciler
from stateward_sidecar.archive.requests.metered import Unclear
from stateward_sidecar.archive.requests.waiting import step_aside
from stateward_sidecar.bucket.base import ObjectChanged
from stateward_sidecar.errors import ArchiveUnavailable, Corrupt
from stateward_sidecar.store.thread.thread import Thread

T = TypeVar("T")
SLOWEST_BYTES_S = 64 << 10
FAILURES_MAX = 3


class Parted(Exception):
    """HEAD is not the last one that this process knows. If the thread is no longer ours, waiting callers have their
    answer. If it is ours all the same, there is another hold, and the thread must be shipped again."""


@dataclass(slots=True)
class Uploads:
    """Objects that are to be written before a HEAD. Whoever prepares them calls ``tick`` between its steps."""

    size_bytes: int = 0
    calls: list[Callable[[], object]] = field(default_factory=list)
    tick: Callable[[], None] = lambda: None

    def add(self, size_bytes: int, call: Callable[[], object]) -> None:
        """Adds an object."""
        self.size_bytes += size_bytes
        self.calls.append(call)


class Pulse:
    """Runs under the lock of the thread's name."""

    def __init__(self, state: ArchiveState, reconciler: Reconciler) -> None:
        self._state = state
        self._reconciler = reconciler

    def uploads(self, hold: Hold) -> Uploads:
        """Begins to prepare objects. ``tick`` then writes HEAD again when it is due. It raises Parted if the thread is
        lost meanwhile."""
        wire, due = self._state.wire, self._state.wire.now() + self._first_s(hold)
        hold.spares.begin()

        def tick() -> None:
            nonlocal due
            if wire.now() >= due:
                step_aside()
                if hold.renews and hold.failed_uploads < FAILURES_MAX:
                    self.renew(hold)
                due = wire.now() + self._state.options.renewal_s

        return Uploads(tick=tick)

    def upload(self, hold: Hold, uploads: Uploads) -> None:
        """Writes objects, and HEAD meanwhile. Raises Parted if the thread is lost meanwhile, and ArchiveUnavailable."""
        wire, options = self._state.wire, self._state.options
        hold.spares.check(wire, hold.place, uploads.add)
        begun, longest_s = wire.now(), options.lease_s + uploads.size_bytes / SLOWEST_BYTES_S

        def beat() -> None:
            step_aside()
            if hold.renews and hold.failed_uploads < FAILURES_MAX and wire.now() - begun < longest_s:
                self.renew(hold)

        try:
            wire.run_long(uploads.calls, beat, self._first_s(hold), options.renewal_s)
        except ArchiveUnavailable:
            hold.failed_uploads += 1
            raise
        if uploads.calls:
            hold.failed_uploads = 0

    def fetch(self, thread: Thread, size_bytes: int, call: Callable[[], T]) -> T:
        """Runs a call that reads about so many bytes for a thread, and writes HEAD meanwhile if this process holds the
        thread. Raises ArchiveUnavailable if the thread is lost meanwhile."""
        state, hold = self._state, self._state.holds.get(thread.number)
        if hold is None or hold.is_rolled_back or not hold.is_verified:
            return call()
        begun, longest_s, found = state.wire.now(), state.options.lease_s + size_bytes / SLOWEST_BYTES_S, list[T]()

        def beat() -> None:
            if state.wire.now() - begun < longest_s:
                self.renew(hold)

        try:
            state.wire.run_long([lambda: found.append(call())], beat, self._first_s(hold), state.options.renewal_s)
        except Parted:
            raise ArchiveUnavailable(
                f"another sidecar took thread {thread.name!r} while its history was fetched; try again"
            ) from None
        return found[0]

    def _first_s(self, hold: Hold) -> float:
        """In how many seconds the first sign of life is due: soon if HEAD was written long ago, because its owner then
        looks idle already. What takes a moment needs none."""
        period_s, age_s = self._state.options.renewal_s, self._state.wire.now() - hold.written_at
        return max(period_s - age_s, period_s / 4)

    def renew(self, hold: Hold) -> None:
        """Writes the last HEAD again, if the bucket answers. Raises Parted."""
        try:
            self._renew(hold)
        except (ArchiveUnavailable, Corrupt):  # the next renewal, or the ship's own HEAD, tells
            if self._state.holds.get(hold.number) is not hold:
                raise Parted from None

    def _renew(self, hold: Hold) -> None:
        state = self._state
        seen = self._reconciler.look(hold.thread, hold.place)
        if seen is None or not self._is_last(hold, seen):
            self.part(hold, seen)
        hold.head, hold.etag = bare(seen.head), seen.etag  # an earlier renewal may have landed without an answer
        head = follow(seen.head, state.boot_id, state.options.owner_id, state.now_us())
        if not self.put(hold, head):
            raise Parted
        hold.head = bare(head)

    def part(self, hold: Hold, seen: Seen | None) -> NoReturn:
        """Acts on a HEAD that is not the last one of this process."""
        self._reconciler.settle(hold.thread, hold.head, hold.place, seen)
        raise Parted

    def put(self, hold: Hold, head: ArchiveHead) -> bool:
        """Writes HEAD by compare-and-swap. Returns False if the thread is lost or rolled back; the waiting callers then
        have their answer."""
        state, identity = self._state, hold.thread.identity
        data, now = seal_head(identity.namespace_keys, hold.place, head), state.wire.now()
        try:
            try:
                hold.etag = state.wire.replace(hold.place.head, data, hold.etag)
            except ObjectChanged:
                seen = self._reconciler.look(hold.thread, hold.place)
                if seen is None or seen.head.write_id != hold.head.write_id or seen.etag == hold.etag:
                    raise
                # It was sealed anew, because the key of its namespace was changed, and is the same otherwise.
                data, hold.etag = seal_head(identity.namespace_keys, hold.place, head), seen.etag
                hold.etag = state.wire.replace(hold.place.head, data, hold.etag)
        except (ObjectChanged, Unclear):
            seen = self._reconciler.look(hold.thread, hold.place)
            if seen is not None and seen.head.write_id == head.write_id:
                hold.etag, hold.checked_at = seen.etag, seen.asked_at  # our write landed, and its answer was lost
                hold.written_at = now
                return True
            known = head if seen is not None and wrote(seen.head, head.write_id) else hold.head
            settled = self._reconciler.settle(hold.thread, known, hold.place, seen)
            if settled is not None and not settled.is_rolled_back:
                raise ArchiveUnavailable("an earlier write of this sidecar changed HEAD; shipping again") from None
            return False
        hold.checked_at = hold.written_at = now
        return True

    def _is_last(self, hold: Hold, seen: Seen) -> bool:
        """Whether HEAD is the last one that this process knows, or a renewal of it."""
        head, last = seen.head, hold.head
        if head.write_id == last.write_id:
            return True
        is_same = (head.uid, head.tip_sequence, head.tip_digest) == (last.uid, last.tip_sequence, last.tip_digest)
        return is_same and head.boot_id == self._state.boot_id and not head.deleted and not head.detached
