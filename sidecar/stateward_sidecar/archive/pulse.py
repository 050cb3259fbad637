"""Uploads the objects of a thread, and shows meanwhile that its owner lives.

HEAD is the only sign of life, and names only objects that exist. So it is written after the objects. Until then the
last HEAD is written again from time to time, with a new write id and the same content, and no other sidecar sees an
owner that is silent for the lease. An owner that cannot upload must not keep a thread for ever. So it gives no sign for
longer than the upload takes at ``SLOWEST_BYTES_S``, and none after some uploads in a row have failed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stateward.storage.v1.archive_pb2 import ArchiveHead
from stateward_sidecar.archive.desk import Desk, Hold
from stateward_sidecar.archive.fetch import Seen
from stateward_sidecar.archive.heads import bare, follow
from stateward_sidecar.archive.settle import Settler
from stateward_sidecar.errors import ArchiveUnavailable, Corrupt

SLOWEST_BYTES_S = 64 << 10
FAILURES_MAX = 3


class Parted(Exception):
    """HEAD says that the thread is no longer ours, or it was settled in another way. The hold is not the present one,
    and waiting callers have their answer."""


@dataclass(slots=True)
class Uploads:
    """Objects that are to be written before a HEAD."""

    size_bytes: int = 0
    calls: list[Callable[[], object]] = field(default_factory=list)

    def add(self, size_bytes: int, call: Callable[[], object]) -> None:
        """Adds an object."""
        self.size_bytes += size_bytes
        self.calls.append(call)


class Pulse:
    """Runs under the lock of the thread's name. ``put`` writes a HEAD, see ``Shipper``."""

    def __init__(self, desk: Desk, settler: Settler, put: Callable[[Hold, ArchiveHead], bool]) -> None:
        self._desk = desk
        self._settler = settler
        self._put = put

    def upload(self, hold: Hold, uploads: Uploads, *, renews: bool = True) -> None:
        """Writes objects, and HEAD meanwhile if ``renews`` is set. Raises Parted if the thread is lost meanwhile, and
        ArchiveUnavailable."""
        wire, options = self._desk.wire, self._desk.options
        begun, longest_s = wire.now(), options.lease_s + uploads.size_bytes / SLOWEST_BYTES_S

        def beat() -> None:
            if renews and hold.failed_uploads < FAILURES_MAX and wire.now() - begun < longest_s:
                self.renew(hold)

        try:
            wire.upload(uploads.calls, beat, options.renewal_s)
        except ArchiveUnavailable:
            hold.failed_uploads += 1
            raise
        if uploads.calls:
            hold.failed_uploads = 0

    def renew(self, hold: Hold) -> None:
        """Writes the last HEAD again, if the bucket answers. Raises Parted."""
        try:
            self._renew(hold)
        except (ArchiveUnavailable, Corrupt):  # the next renewal, or the ship's own HEAD, tells
            if self._desk.holds.get(hold.number) is not hold:
                raise Parted from None

    def _renew(self, hold: Hold) -> None:
        desk = self._desk
        seen = self._settler.look(hold.thread, hold.place)
        if seen is None or not self._is_last(hold, seen):
            self._settler.settle(hold.thread, hold.head, hold.place, seen)
            raise Parted
        hold.head, hold.etag = bare(seen.head), seen.etag  # an earlier renewal may have landed without an answer
        head = follow(seen.head, desk.boot_id, desk.options.owner_id, desk.now_us())
        if not self._put(hold, head):
            raise Parted
        hold.head = bare(head)

    def _is_last(self, hold: Hold, seen: Seen) -> bool:
        """Whether HEAD is the last one that this process knows, or a renewal of it."""
        head, last = seen.head, hold.head
        if head.write_id == last.write_id:
            return True
        is_same = (head.uid, head.tip_sequence, head.tip_digest) == (last.uid, last.tip_sequence, last.tip_digest)
        return is_same and head.boot_id == self._desk.boot_id and not head.deleted and not head.detached
