"""The danger: a HEAD is taken for something it is not, and history is forked, lost, or called lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.daemon.driven import NAME, NAMESPACE
from tests.daemon.town import twins

from stateward.storage.v1.archive_pb2 import ArchiveHead, EpochStart
from stateward.v1.thread_pb2 import Retention
from stateward.v1.thread_service_pb2 import UpdateThreadRequest
from stateward_sidecar.archive.objects.heads import LINEAGE_KEPT, WRITE_IDS_KEPT, epoch_start, follow, tombstone, wrote
from stateward_sidecar.archive.objects.judge import Judgement, Local, Verdict, judge
from stateward_sidecar.bucket.base import BucketUnavailable
from stateward_sidecar.store.clean import clear
from stateward_sidecar.store.journal import requests
from stateward_sidecar.store.thread.blocks import has_entry

UID, BOOT, OLD_BOOT, OTHER, KILLED = b"u" * 16, b"b" * 16, b"o" * 16, b"x" * 16, b"k" * 16
BOOTS = frozenset((KILLED, BOOT))
FOREIGN = b"?" * 16


def digest(sequence: int) -> bytes:
    return bytes([sequence]) * 16


def head(
    tip: int = 10, *, epoch: int = 3, boot: bytes = OLD_BOOT, digest_of: bytes | None = None, lineage: int | None = None
) -> ArchiveHead:
    """A HEAD of our line, unless it is said otherwise; ``lineage``: where the newest epoch began."""
    made = ArchiveHead(uid=UID, epoch=epoch, boot_id=boot, tip_sequence=tip, tip_digest=digest_of or digest(tip))
    made.write_id = b"w" * 16
    made.lineage.append(EpochStart(epoch=1))
    if lineage is not None:
        made.lineage.append(epoch_start(epoch, boot, lineage, digest(lineage)))
    return made


def taken_again(before: ArchiveHead, tip: int, begun: int) -> ArchiveHead:
    """The HEAD of the next owner, on a line that is not ours."""
    made = ArchiveHead()
    made.CopyFrom(before)
    made.epoch, made.boot_id, made.tip_sequence, made.tip_digest = before.epoch + 1, OTHER, tip, FOREIGN
    made.lineage.append(epoch_start(made.epoch, OTHER, begun, FOREIGN))
    return made


def rekeyed(before: ArchiveHead, uid: str = "first") -> ArchiveHead:
    """The HEAD of the same thread under another key."""
    epoch = before.epoch + 1
    made = ArchiveHead(uid=uid.encode().ljust(16), epoch=epoch, created_epoch=epoch, boot_id=OTHER)
    made.rekeyed_from.extend(before.rekeyed_from)
    made.rekeyed_from.add(
        uid=before.uid, epoch=before.epoch, boot_id=before.boot_id, tip_sequence=before.tip_sequence,
        tip_digest=before.tip_digest, lineage=before.lineage,
    )  # fmt: skip
    return made


def begun_earlier(made: ArchiveHead, sequence: int) -> ArchiveHead:
    """The same, and epoch 2 began there."""
    made.lineage.insert(1, epoch_start(2, OLD_BOOT, sequence, digest(sequence)))
    return made


def begun(*sequences: int, tip: int = 20) -> ArchiveHead:
    """A HEAD of another line, whose epochs after 3 began at these entries of ours."""
    made = head(tip, epoch=3 + len(sequences), boot=OTHER, digest_of=FOREIGN)
    made.lineage.extend(epoch_start(epoch, OTHER, each, digest(each)) for epoch, each in enumerate(sequences, 4))
    return made


def local(tip: int = 12, known: int = 10, floor: int = 0) -> Local:
    """What is here: entries up to ``tip``, of which ``known`` were archived when we last looked."""
    here = range(floor + 1, tip + 1)
    return Local(UID, head(known), tip, floor, lambda sequence: digest(sequence) if sequence in here else b"", BOOTS)


CASES = {
    "equal": (local(tip=10), head(10), Verdict.OURS, 0),
    "ours is ahead": (local(tip=12), head(10), Verdict.OURS, 0),
    "our own write landed, and we never heard": (
        local(tip=12), head(12, epoch=4, boot=BOOT, lineage=10), Verdict.OURS, 0,
    ),
    "the write of the process before landed late": (local(tip=12), head(11), Verdict.OURS, 0),
    "a process that was killed before it wrote down what it shipped": (
        local(tip=12), head(11, epoch=4, boot=KILLED, lineage=10), Verdict.OURS, 0,
    ),
    "claimed and empty": (local(tip=3, known=0), head(0), Verdict.OURS, 0),
    "a disk that was set back": (local(tip=8, known=8), head(10), Verdict.BEHIND, 0),
    "a disk that was set back and went on": (
        local(tip=12, known=8), head(10, digest_of=FOREIGN), Verdict.FENCED, 8,
    ),
    "taken with everything": (local(tip=10), head(13, epoch=4, boot=OTHER, lineage=10), Verdict.TAKEN, 10),
    "taken after our lost answer": (local(tip=12), head(15, epoch=4, boot=OTHER, lineage=12), Verdict.TAKEN, 12),
    "taken, and nothing written yet": (local(tip=10), head(10, epoch=4, boot=OTHER, lineage=10), Verdict.TAKEN, 10),
    "fenced with a tail": (
        local(tip=12), head(12, epoch=4, boot=OTHER, digest_of=FOREIGN, lineage=10), Verdict.FENCED, 10,
    ),
    "fenced, and half of the tail had landed": (
        local(tip=14), head(20, epoch=5, boot=OTHER, digest_of=FOREIGN, lineage=12), Verdict.FENCED, 12,
    ),
    "a cloned disk": (local(tip=12), head(11, epoch=3, boot=OTHER, digest_of=FOREIGN), Verdict.FENCED, 10),
    "fenced so often that the lineage begins after us": (
        local(tip=12), head(50, epoch=40, boot=OTHER, digest_of=FOREIGN), Verdict.FENCED, 10,
    ),
    "set back, and our epoch taken by another": (
        replace(local(tip=10), known=head(10, lineage=8)), head(10, boot=OTHER, digest_of=FOREIGN, lineage=8),
        Verdict.FENCED, 8,
    ),
    "set back, and our epoch taken by another, who wrote more": (
        replace(local(tip=10), known=head(10, lineage=8)), head(12, boot=OTHER, digest_of=FOREIGN, lineage=8),
        Verdict.FENCED, 8,
    ),
    "set back, our epoch taken by another, and taken again": (
        replace(local(tip=10), known=head(10, lineage=8)), taken_again(head(boot=OTHER, lineage=8), 14, 12),
        Verdict.FENCED, 8,
    ),
    "set back, and an epoch began where we have another entry": (
        replace(local(tip=10), known=head(10)), taken_again(head(8), 14, 9), Verdict.FENCED, 0,
    ),
    "set back below our floor, and taken": (
        replace(local(tip=12, floor=11), known=head(12, lineage=8)), head(9, boot=OTHER, digest_of=FOREIGN, lineage=8),
        Verdict.FENCED, 8,
    ),
    "set back to an older epoch": (local(), head(5, epoch=2), Verdict.ROLLED_BACK, 5),
    "set back within our epoch": (local(), head(9), Verdict.ROLLED_BACK, 9),
    "set back to an older epoch of another line": (
        local(), head(11, epoch=2, boot=OTHER, digest_of=FOREIGN, lineage=4), Verdict.ROLLED_BACK, 4,
    ),
    "ours, and the entry that HEAD ends with was pruned": (
        replace(local(tip=12), digest_at=lambda sequence: digest(sequence) if sequence > 10 else b""), head(10),
        Verdict.OURS, 0,
    ),
    "taken, and the entry where an older epoch began was pruned": (
        replace(local(tip=10), digest_at=lambda sequence: digest(sequence) if sequence > 6 else b""),
        begun_earlier(head(13, epoch=4, boot=OTHER, lineage=10), 5), Verdict.TAKEN, 10,
    ),
    "taken twice, and only the first owner left a trace here": (
        local(tip=14, known=2), begun(4, 9), Verdict.FENCED, 9,
    ),
    "taken three times, by one who had fewer": (local(tip=14, known=2), begun(4, 9, 6), Verdict.FENCED, 6),
    "gone": (local(), None, Verdict.MISSING, 0),
    "deleted": (local(), ArchiveHead(uid=UID, epoch=4, deleted=True), Verdict.DELETED, 0),
    "deleted and made again": (local(), ArchiveHead(uid=OTHER, epoch=5, created_epoch=5), Verdict.DELETED, 0),
    "deleted and made again, and deleted": (
        local(), ArchiveHead(uid=OTHER, epoch=6, created_epoch=5, deleted=True), Verdict.DELETED, 0,
    ),
    "under another key, with all that is here": (local(tip=12), rekeyed(head(12)), Verdict.DELETED, 0),
    "under another key, and more is here": (local(tip=12), rekeyed(head(11)), Verdict.FENCED, 0),
    "taken with all that is here, and under another key": (
        local(tip=10), rekeyed(head(15, epoch=4, boot=OTHER, lineage=10)), Verdict.DELETED, 0,
    ),
    "taken while more was here, continued further, and under another key": (
        local(tip=12), rekeyed(head(15, epoch=4, boot=OTHER, lineage=10)), Verdict.FENCED, 0,
    ),
    "under another key twice, and more is here": (
        local(tip=12), rekeyed(rekeyed(head(11)), "second"), Verdict.FENCED, 0,
    ),
    "lost by the bucket, and another one made": (
        local(), ArchiveHead(uid=OTHER, epoch=3, created_epoch=3), Verdict.FENCED, 0,
    ),
    "lost by the bucket, and another one made and deleted": (
        local(), ArchiveHead(uid=OTHER, epoch=6, created_epoch=1, deleted=True), Verdict.FENCED, 0,
    ),
    "an older thread of that name, set back": (local(), ArchiveHead(uid=OTHER, epoch=1), Verdict.ROLLED_BACK, 0),
    "made here before there was an archive": (
        replace(local(), known=ArchiveHead()), ArchiveHead(uid=OTHER, epoch=5), Verdict.FENCED, 0,
    ),
    "what lies below the floor is the archive's own": (
        replace(local(tip=12, floor=11), digest_at=lambda sequence: digest(sequence) if sequence == 12 else b""),
        head(10), Verdict.OURS, 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("here", "found", "verdict", "common"), CASES.values(), ids=CASES)
def test_what_a_head_means(here: Local, found: ArchiveHead | None, verdict: Verdict, common: int) -> None:
    """Each way in which disk and HEAD can differ has its one meaning, and the right common place."""
    judged = judge(here, found)
    assert judged.verdict is verdict
    if verdict in (Verdict.TAKEN, Verdict.FENCED, Verdict.ROLLED_BACK):
        assert judged == Judgement(verdict, common)


def test_a_head_follows_another() -> None:
    """A new process raises the epoch and says where it began; the same one does not; write ids are never the same."""
    first = follow(head(10), BOOT, "me", 5)
    assert (first.epoch, first.boot_id, first.lineage[-1].sequence) == (4, BOOT, 10)
    second = follow(first, BOOT, "me", 4)
    assert (second.epoch, len(second.lineage)) == (4, len(first.lineage))
    assert second.update_time_us == first.update_time_us
    assert wrote(second, first.write_id)
    for _ in range(WRITE_IDS_KEPT):
        second = follow(second, BOOT, "me", 5)
    assert not wrote(second, first.write_id)
    for number in range(LINEAGE_KEPT + 3):
        second = follow(second, bytes([number]) * 16, "me", 5)
    assert len(second.lineage) == LINEAGE_KEPT


def test_a_tombstone_says_little_and_can_be_followed() -> None:
    """Nothing of the thread stays in it but who it was and whose it was last."""
    grave = tombstone(head(10, boot=BOOT, epoch=4), BOOT, "me", 5)
    assert (grave.deleted, grave.uid, grave.epoch, grave.tip_sequence, bytes(grave.image)) == (True, UID, 5, 0, b"")
    assert judge(local(), grave).verdict is Verdict.DELETED


def test_the_newest_archived_entry_was_pruned_while_the_bucket_was_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left is still HEAD's line: it is shipped after a restart, and not set aside."""
    for module in (clear, requests):
        monkeypatch.setattr(module, "REQUEST_WINDOW_ENTRIES", 2)
    with twins(tmp_path) as pair:
        pair.a.put("0")
        change = UpdateThreadRequest(namespace=NAMESPACE, thread=NAME)
        change.update.retention.CopyFrom(Retention(keep_last=2))
        change.update_mask.paths.append("retention")
        pair.a.write(pair.a.store.settings.update(change))
        pair.a.put("1")
        pair.a.ship(pair.a.thread().number)
        pair.a.write_rows()

        def away(_method: str, key: str) -> None:
            raise BucketUnavailable(key)

        pair.bucket.before = away
        words = [str(number) for number in range(8)]
        for word in words[2:]:
            pair.a.put(word)
        pair.time.sleep(7200)
        assert pair.a.store.pruner.retain(NAMESPACE, NAME) == 2
        thread = pair.a.find(NAME)
        assert thread is not None
        with pair.a.store.context.engine.read() as txn:
            assert not has_entry(txn, thread.identity.keys, thread.archived_sequence)
        pair.mend()
        pair.a.restart()
        pair.a.put("8")
        pair.a.archive_all()
        assert pair.a.orphans() == []
        assert pair.b.words() == [*words, "8"]
