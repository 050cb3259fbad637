"""What a HEAD that was read means for the thread on this disk. No I/O.

Identity is (sequence, digest), never a number alone, and who wrote is told by epoch and boot id, never by an etag or a
clock.

    MISSING        there is no HEAD, and there was one: it was removed behind our back
    DELETED        the thread was deleted, and perhaps another one of its name was made
    OURS           HEAD is an ancestor of what is here, or the same, and nobody took the thread: ship
    BEHIND         HEAD is ahead, on what ought to be our own line (a disk that was restored from a copy): pull
    TAKEN          another process took it, with all that is here: what is here is a copy now
    FENCED         another process took it, and what is here has entries that are no history: set them aside
    ROLLED_BACK    HEAD is older than what we know to be archived: ship nothing, and say so
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from stateward.storage.v1.archive_pb2 import ArchiveHead


class Verdict(Enum):
    """See above."""

    MISSING = "missing"
    DELETED = "deleted"
    OURS = "ours"
    BEHIND = "behind"
    TAKEN = "taken"
    FENCED = "fenced"
    ROLLED_BACK = "rolled back"


@dataclass(frozen=True, slots=True)
class Local:
    """What is on this disk."""

    uid: bytes
    known: ArchiveHead  # HEAD as this sidecar last wrote or accepted it
    tip_sequence: int
    floor_sequence: int  # older entries came from the archive, so they are its own
    digest_at: Callable[[int], bytes]  # empty where the entry is not here
    boots: frozenset[bytes]  # the processes of this disk
    former: frozenset[bytes] = frozenset()  # those of them that ran before the disk was copied, or moved


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and up to where both histories are one for certain (BEHIND, FENCED, TAKEN, ROLLED_BACK)."""

    verdict: Verdict
    common_sequence: int = 0
    # False: HEAD has seen more epochs since what was known than it names, and may have left our line before that place.
    is_certain: bool = True


def judge(local: Local, head: ArchiveHead | None) -> Judgement:
    """Compares."""
    known = local.known
    if head is None:
        return Judgement(Verdict.MISSING)
    if head.uid != local.uid or head.deleted:
        if not known.write_id:
            # Made here without the archive, under a name that another thread has there: nobody deleted it.
            return Judgement(Verdict.FENCED)
        # A tombstone of an earlier thread, or another earlier thread, is an old copy of HEAD.
        return Judgement(Verdict.ROLLED_BACK if head.epoch < known.epoch else Verdict.DELETED)
    if head.epoch < known.epoch:
        return Judgement(Verdict.ROLLED_BACK, _left(local, head))
    is_own = head.boot_id in local.boots or (head.epoch, head.boot_id) == (known.epoch, known.boot_id)
    is_here = head.tip_sequence <= local.tip_sequence and _agrees(local, head.tip_sequence, head.tip_digest)
    if is_own and (is_here or head.boot_id not in local.former):  # else the other copy went on
        return _judge_own(local, head)
    return _judge_foreign(local, head)


def _judge_own(local: Local, head: ArchiveHead) -> Judgement:
    if head.tip_sequence < local.known.tip_sequence:
        return Judgement(Verdict.ROLLED_BACK, _left(local, head))
    if head.tip_sequence > local.tip_sequence:
        return Judgement(Verdict.BEHIND, _common(local, head))
    if _agrees(local, head.tip_sequence, head.tip_digest):
        return Judgement(Verdict.OURS)
    # The disk was set back and went on from there: what HEAD has is history.
    return Judgement(Verdict.FENCED, _common(local, head))


def _judge_foreign(local: Local, head: ArchiveHead) -> Judgement:
    common = _common(local, head)
    is_same = head.tip_sequence <= local.tip_sequence and local.digest_at(head.tip_sequence) == head.tip_digest
    is_certain = is_same or not head.lineage or head.lineage[0].epoch <= local.known.epoch + 1
    verdict = Verdict.TAKEN if common >= local.tip_sequence else Verdict.FENCED
    return Judgement(verdict, common, is_certain)


def _left(local: Local, head: ArchiveHead) -> int:
    """The newest entry here that a HEAD has for certain which was set back; what was known of HEAD says nothing now."""
    theirs = [(head.tip_sequence, head.tip_digest), *((start.sequence, start.digest) for start in head.lineage)]
    return max((sequence for sequence, digest in theirs if digest and local.digest_at(sequence) == digest), default=0)


def _common(local: Local, head: ArchiveHead) -> int:
    """The newest place both share: where HEAD's line left what was known, or the newest before that which agrees."""
    if head.tip_sequence <= local.tip_sequence and local.digest_at(head.tip_sequence) == head.tip_digest:
        return head.tip_sequence
    known = local.known
    theirs = [(head.tip_sequence, head.tip_digest), *((start.sequence, start.digest) for start in head.lineage)]
    # One place that differs is enough: HEAD's line had parted before it.
    differing = [
        sequence - 1 for sequence, digest in theirs
        if sequence <= local.tip_sequence and _digest_at(local, sequence) not in (b"", digest)
    ]  # fmt: skip
    until = min([local.tip_sequence, *_parted(known, head), *differing])
    places = [(known.tip_sequence, known.tip_digest), *theirs]
    agreed = [sequence for sequence, digest in places if sequence <= until and _agrees(local, sequence, digest)]
    return max(agreed, default=0)


def _parted(known: ArchiveHead, head: ArchiveHead) -> list[int]:
    """Places where HEAD's line may have left the one of the HEAD that was known; what was known need not be in it.

    Who wrote HEAD anew from a copy, or took a thread whose HEAD was set back, had less than was archived.
    """
    places = [start.sequence for start in head.lineage if start.epoch > known.epoch]
    begun = {start.epoch: start.boot for start in known.lineage}
    for start in head.lineage:
        ours = begun.get(start.epoch, 0)
        is_same_epoch_of_another = start.epoch == known.epoch == head.epoch and head.boot_id != known.boot_id
        if is_same_epoch_of_another or (ours and start.boot and ours != start.boot):
            places.append(start.sequence)
    return places


def _agrees(local: Local, sequence: int, digest: bytes) -> bool:
    if sequence == 0:
        return True
    found = _digest_at(local, sequence)
    return found == digest if found else sequence <= local.floor_sequence


def _digest_at(local: Local, sequence: int) -> bytes:
    """Empty where nothing here says it: the entry may be in the archive only, or pruned."""
    known = local.known
    return local.digest_at(sequence) or (known.tip_digest if sequence == known.tip_sequence else b"")
