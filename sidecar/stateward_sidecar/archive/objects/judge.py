"""Decides what a HEAD that was read means for the thread on this disk. No I/O.

Entries are identified by sequence and digest, never by a number alone. The writer of a HEAD is identified by its epoch
and boot id, never by an etag or a clock. Below, "another process" is one that does not belong to this disk, or that
belongs to a copy of it.

    MISSING        the thread had a HEAD, and somebody removed it
    DELETED        the thread was deleted. Another thread may have its name now
    OURS           no other process took the thread, and this disk has all entries of HEAD, perhaps more: ship
    BEHIND         no other process took the thread, but HEAD has entries that this disk lacks, because the disk was
                   restored from an older copy: fetch them
    TAKEN          another process took the thread, and HEAD has all entries of this disk: this disk has a copy now
    FENCED         this disk has entries that cannot become history, because another process took the thread, this disk
                   was set back and wrote others, the thread got another data key elsewhere while this disk had more,
                   the thread was made here without the archive or under a claim that was given back, or the bucket
                   lost the thread and another one has its name: set them aside
    ROLLED_BACK    HEAD is older than what was archived: ship nothing, and report it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from stateward.storage.v1.archive_pb2 import ArchiveHead
from stateward_sidecar.archive.objects.heads import was_unused


class Verdict(Enum):
    """The results, described above."""

    MISSING = "missing"
    DELETED = "deleted"
    OURS = "ours"
    BEHIND = "behind"
    TAKEN = "taken"
    FENCED = "fenced"
    ROLLED_BACK = "rolled back"


@dataclass(frozen=True, slots=True)
class Local:
    """The thread on this disk."""

    uid: bytes
    known: ArchiveHead  # HEAD as this disk last wrote or accepted it; empty if it never did
    tip_sequence: int
    floor_sequence: int  # entries up to this one come from the archive, and may be missing here
    digest_at: Callable[[int], bytes]  # empty if the entry is not on this disk
    boots: frozenset[bytes]  # boot ids of the processes of this disk
    former: frozenset[bytes] = frozenset()  # those from before the disk was copied or moved


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and for BEHIND, FENCED, TAKEN and ROLLED_BACK the newest entry that both histories share."""

    verdict: Verdict
    common_sequence: int = 0  # 0 = none is known
    # False if HEAD does not name every epoch since the known HEAD: its line may have left ours before that entry.
    is_certain: bool = True


def judge(local: Local, head: ArchiveHead | None) -> Judgement:
    """Compares HEAD with the thread on this disk. ``head`` is None if the bucket has none."""
    known = local.known
    if head is None:
        return Judgement(Verdict.MISSING)
    if head.uid != local.uid or head.deleted:
        if not known.write_id:
            # The thread was made here without the archive, which has another thread of its name: nobody deleted it.
            return Judgement(Verdict.FENCED)
        if was_unused(head, known.epoch):
            return Judgement(Verdict.FENCED)  # the claim of the name was given back, and the thread was made under it
        # If the epoch is older, the tombstone or the other thread came before this thread: the bucket was set back.
        if head.epoch < known.epoch:
            return Judgement(Verdict.ROLLED_BACK)
        # A deletion leaves a tombstone, and the next thread of the name begins an epoch after it. A thread that began
        # earlier was made when the bucket had lost ours: nobody deleted ours.
        is_next = head.uid == local.uid or head.created_epoch > known.epoch
        if is_next and _has_more(local, head):
            return Judgement(Verdict.FENCED)
        return Judgement(Verdict.DELETED if is_next else Verdict.FENCED)
    if head.epoch < known.epoch:
        return Judgement(Verdict.ROLLED_BACK, _left(local, head))
    is_own = head.boot_id in local.boots or (head.epoch, head.boot_id) == (known.epoch, known.boot_id)
    is_here = head.tip_sequence <= local.tip_sequence and _agrees(local, head.tip_sequence, head.tip_digest)
    if is_own and (is_here or head.boot_id not in local.former):  # else another copy of this disk wrote it
        return _judge_own(local, head)
    return _judge_foreign(local, head)


def _has_more(local: Local, head: ArchiveHead) -> bool:
    """Whether HEAD is this thread under another data key, and this disk has entries that are not known to be in it."""
    for last in head.rekeyed_from:
        if last.uid == local.uid:
            before = ArchiveHead(
                uid=last.uid, epoch=last.epoch, boot_id=last.boot_id, tip_sequence=last.tip_sequence,
                tip_digest=last.tip_digest, lineage=last.lineage,
            )  # fmt: skip
            return _common(local, before) < local.tip_sequence
    return False


def _judge_own(local: Local, head: ArchiveHead) -> Judgement:
    if head.tip_sequence < local.known.tip_sequence:
        return Judgement(Verdict.ROLLED_BACK, _left(local, head))
    if head.tip_sequence > local.tip_sequence:
        return Judgement(Verdict.BEHIND, _common(local, head))
    if _agrees(local, head.tip_sequence, head.tip_digest):
        return Judgement(Verdict.OURS)
    # The disk was set back and wrote other entries since. The entries in HEAD are history.
    return Judgement(Verdict.FENCED, _common(local, head))


def _judge_foreign(local: Local, head: ArchiveHead) -> Judgement:
    common = _common(local, head)
    is_same = head.tip_sequence <= local.tip_sequence and local.digest_at(head.tip_sequence) == head.tip_digest
    is_same = is_same or 0 < common == _proven(local, head)
    is_certain = is_same or not head.lineage or head.lineage[0].epoch <= local.known.epoch + 1
    verdict = Verdict.TAKEN if common >= local.tip_sequence else Verdict.FENCED
    return Judgement(verdict, common, is_certain)


def set_back_text(head: ArchiveHead, known: ArchiveHead) -> str:
    """Returns what is wrong with a HEAD that is rolled back."""
    return (
        f"HEAD is older than what was archived: it ends at entry {head.tip_sequence} of epoch {head.epoch}, and entry "
        f"{known.tip_sequence} of epoch {known.epoch} was archived"
    )


def _left(local: Local, head: ArchiveHead) -> int:
    """Returns the newest entry on this disk that a HEAD that was set back certainly has; 0 if none is known.

    The known HEAD is not used: the bucket may have lost what it names.
    """
    theirs = [(head.tip_sequence, head.tip_digest), *((start.sequence, start.digest) for start in head.lineage)]
    return max((sequence for sequence, digest in theirs if digest and local.digest_at(sequence) == digest), default=0)


def _common(local: Local, head: ArchiveHead) -> int:
    """Returns the newest entry that both lines share, as far as HEAD tells; 0 if none is known.

    Looks at HEAD's tip, the tip of the known HEAD, and the entries at which HEAD's epochs began, up to the place where
    HEAD's line may have left ours. What a digest of HEAD's own line proves needs no such limit.
    """
    if head.tip_sequence <= local.tip_sequence and local.digest_at(head.tip_sequence) == head.tip_digest:
        return head.tip_sequence
    known = local.known
    theirs = [(head.tip_sequence, head.tip_digest), *((start.sequence, start.digest) for start in head.lineage)]
    # If the digests of one entry differ, HEAD's line left ours before that entry.
    differing = [
        sequence - 1 for sequence, digest in theirs
        if sequence <= local.tip_sequence and _digest_at(local, sequence) not in (b"", digest)
    ]  # fmt: skip
    until = min([local.tip_sequence, *_parted(known, head), *differing])
    places = [(known.tip_sequence, known.tip_digest), *theirs]
    agreed = [sequence for sequence, digest in places if sequence <= until and _agrees(local, sequence, digest)]
    return max(*agreed, _proven(local, head), 0)


def _proven(local: Local, head: ArchiveHead) -> int:
    """Returns the newest beginning of an epoch at which this disk has the entry of HEAD's line; 0 if none is known.

    Each digest covers all entries before it. A place is on HEAD's line if no later epoch began before it: then a
    process that had fewer entries wrote HEAD again, and what followed is of another line. The place counts even if all
    entries before it were removed from the archive, so that they cannot be compared.
    """
    until = head.tip_sequence
    for start in reversed(head.lineage):
        until = min(until, start.sequence)
        if start.sequence == until and start.digest and local.digest_at(until) == start.digest:
            return until
    return 0


def _parted(known: ArchiveHead, head: ArchiveHead) -> list[int]:
    """Returns the places where HEAD's line may have left the line of the known HEAD.

    HEAD's line may lack entries of the known HEAD: a process that wrote HEAD again from a copy, or that took a thread
    whose HEAD was set back, had fewer entries than were archived.
    """
    places = [start.sequence for start in head.lineage if start.epoch > known.epoch]
    begun = {start.epoch: start.boot for start in known.lineage}
    for start in head.lineage:
        ours = begun.get(start.epoch, 0)
        is_same_epoch_of_another = start.epoch == known.epoch == head.epoch and head.boot_id != known.boot_id
        if is_same_epoch_of_another or (ours and ours != start.boot):
            places.append(start.sequence)
    return places


def _agrees(local: Local, sequence: int, digest: bytes) -> bool:
    if sequence == 0:
        return True
    found = _digest_at(local, sequence)
    return found == digest if found else sequence <= local.floor_sequence


def _digest_at(local: Local, sequence: int) -> bytes:
    """Returns the digest of an entry; empty if this disk does not know it (only in the archive, or pruned)."""
    known = local.known
    return local.digest_at(sequence) or (known.tip_digest if sequence == known.tip_sequence else b"")
