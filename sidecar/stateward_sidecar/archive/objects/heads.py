"""Encodes and decodes HEAD, and builds the next HEAD from the last one.

"SH" ‖ format ‖ suite ‖ nonce ‖ sealed ArchiveHead         under the namespace's key; place: namespace, name
"""

from __future__ import annotations

import os
import struct

from google.protobuf.message import DecodeError

from stateward.storage.v1.archive_pb2 import ArchiveHead, EpochStart
from stateward_sidecar.archive.requests.places import Place
from stateward_sidecar.codec.seal import FORMAT as SEAL_FORMAT
from stateward_sidecar.codec.seal import PREFIX_BYTES
from stateward_sidecar.errors import Corrupt, newer_format
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.store.thread.times import WRONG_US

FORMAT = 1  # the newest that this version knows
HEAD_MAGIC = b"SH"
WRITE_ID_BYTES = 16
WRITE_IDS_KEPT = 4
LINEAGE_KEPT = 16
# How many ranges of epochs in which a name was only claimed are remembered.
UNUSED_MAX = 16
_U64 = struct.Struct(">Q")


def seal_head(namespace: NamespaceKeys, place: Place, head: ArchiveHead) -> bytes:
    """Returns HEAD's bytes. Raises ArchiveUnavailable if the key must be asked for first."""
    namespace.freshen()
    return reseal_head(namespace, place, head)


def reseal_head(namespace: NamespaceKeys, place: Place, head: ArchiveHead) -> bytes:
    """Returns HEAD's bytes, under the newest generation that is known."""
    return namespace.seal(HEAD_MAGIC, head.SerializeToString(), place.namespace_id, place.name_hash)


def open_head(namespace: NamespaceKeys, place: Place, data: bytes) -> ArchiveHead:
    """Opens HEAD's bytes. Asks for a newer key if none opens them. Raises Corrupt, ArchiveUnavailable, and NewerFormat
    if a newer version wrote a format that this one cannot read.

    The format of the seal comes before the seal. If it is newer, nobody can tell whether it was changed. But a thread
    whose HEAD cannot be read for this reason must not be taken for a damaged one, because its owner may go on.
    """
    if data[:2] == HEAD_MAGIC and len(data) > PREFIX_BYTES and data[2] > SEAL_FORMAT:
        raise newer_format("the seal of HEAD", data[2], SEAL_FORMAT, is_proven=False)
    try:
        plain = namespace.open(HEAD_MAGIC, data, place.namespace_id, place.name_hash)
    except Corrupt:
        if not namespace.ask():
            raise
        plain = namespace.open(HEAD_MAGIC, data, place.namespace_id, place.name_hash)
    try:
        head = ArchiveHead.FromString(plain)
    except DecodeError:
        raise Corrupt("HEAD cannot be read") from None
    if head.min_reader > FORMAT:
        raise newer_format("HEAD", head.min_reader, FORMAT)
    return head


def check_writable(head: ArchiveHead) -> None:
    """Raises NewerFormat if only a newer version may write the next HEAD."""
    if head.min_writer > FORMAT:
        raise newer_format("HEAD, for those who write it,", head.min_writer, FORMAT)


def bare(head: ArchiveHead) -> ArchiveHead:
    """Returns HEAD without image, snapshot and tail, which this disk has in its own rows."""
    kept = ArchiveHead()
    kept.CopyFrom(head)
    for field in ("image", "snapshot_pieces", "snapshot_version", "tail"):
        kept.ClearField(field)
    return kept


def follow(head: ArchiveHead, boot_id: bytes, owner_id: str, now_us: int, *, is_cut: bool = False) -> ArchiveHead:
    """Returns the HEAD that this process writes next. Its write id is new. Its epoch is new if another process wrote
    the last HEAD, or if this process's line ``is_cut``: see ``ArchiveState.cut``. Raises NewerFormat."""
    check_writable(head)
    following = ArchiveHead()
    following.CopyFrom(head)
    if head.boot_id != boot_id or is_cut:
        following.epoch = head.epoch + 1
        following.lineage.append(epoch_start(following.epoch, boot_id, head.tip_sequence, head.tip_digest))
        del following.lineage[:-LINEAGE_KEPT]
        following.settled_counter = 0  # it counted the objects of that process
    following.boot_id, following.owner_id = boot_id, owner_id
    following.write_id = os.urandom(WRITE_ID_BYTES)
    if head.write_id:
        del following.previous_write_ids[:]
        following.previous_write_ids.extend([head.write_id, *head.previous_write_ids][:WRITE_IDS_KEPT])
    following.update_time_us = update_us(head, now_us)
    for item in following.garbage:  # dropped by an earlier HEAD; if its clock was ahead, it waits from now on
        item.time_us = min(item.time_us, following.update_time_us)
    following.detached = False
    following.min_reader = following.min_writer = max(head.min_reader, FORMAT)
    return following


def update_us(last: ArchiveHead, now_us: int) -> int:
    """Returns the time of the HEAD after ``last``. It goes back only if the clock of the last writer was wrong."""
    return max(now_us, last.update_time_us) if last.update_time_us <= now_us + WRONG_US else now_us


def catch_up(head: ArchiveHead, last: ArchiveHead) -> None:
    """Makes a HEAD that is not written yet follow the last one, which was renewed since."""
    head.epoch = max(head.epoch, last.epoch)
    del head.previous_write_ids[:]
    head.previous_write_ids.extend([last.write_id, *last.previous_write_ids][:WRITE_IDS_KEPT])
    head.update_time_us = max(head.update_time_us, last.update_time_us)


def is_renewal(head: ArchiveHead, last: ArchiveHead) -> bool:
    """Returns whether an owner only showed with a HEAD that it lives: all that the last one named is the same."""
    one, other = ArchiveHead(), ArchiveHead()
    for copy, source in ((one, head), (other, last)):
        copy.CopyFrom(source)
        for name in ("write_id", "previous_write_ids", "update_time_us"):
            copy.ClearField(name)
        for item in copy.garbage:
            item.ClearField("time_us")
    return one == other and head.write_id != last.write_id


def epoch_start(epoch: int, boot_id: bytes, sequence: int = 0, digest: bytes = b"") -> EpochStart:
    """Returns the record of the place where this process begins an epoch."""
    return EpochStart(epoch=epoch, sequence=sequence, digest=digest, boot=_U64.unpack(boot_id[:8])[0])


def wrote(head: ArchiveHead, write_id: bytes) -> bool:
    """Returns True if a write id belongs to this HEAD or to one of the last before it."""
    return write_id == head.write_id or write_id in head.previous_write_ids


def tombstone(
    head: ArchiveHead, boot_id: bytes, owner_id: str, now_us: int, *, cleared: bool = False
) -> ArchiveHead:  # fmt: skip
    """Returns the HEAD that stays after a thread is deleted. ``cleared``: its key and its objects are deleted, too."""
    # Its epoch is always after the thread's: under the next epoch, a change of the data key that failed left a key.
    following = follow(head, boot_id, owner_id, now_us, is_cut=not head.deleted)
    grave = ArchiveHead(
        min_reader=FORMAT, min_writer=FORMAT, uid=following.uid, created_epoch=following.created_epoch,
        epoch=following.epoch, boot_id=boot_id, owner_id=owner_id, write_id=following.write_id,
        previous_write_ids=following.previous_write_ids, lineage=following.lineage, deleted=True,
        cleared=cleared, update_time_us=following.update_time_us, unused_epochs=head.unused_epochs,
    )  # fmt: skip
    if is_unused(head):
        grave.unused_epochs[-1].last = grave.epoch
    return grave


def claim_tombstone(head: ArchiveHead, boot_id: bytes, owner_id: str, now_us: int) -> ArchiveHead:
    """Returns the HEAD that takes the place of a claim under which nothing was archived."""
    grave = tombstone(head, boot_id, owner_id, now_us)
    if not grave.unused_epochs or grave.unused_epochs[-1].last + 1 != head.created_epoch:
        grave.unused_epochs.add(first=head.created_epoch)
        del grave.unused_epochs[:-UNUSED_MAX]
    grave.unused_epochs[-1].last = grave.epoch
    return grave


def is_unused(head: ArchiveHead) -> bool:
    """Whether a HEAD is the tombstone of a claim, and not of a thread."""
    return head.deleted and was_unused(head, head.created_epoch)


def was_unused(head: ArchiveHead, epoch: int) -> bool:
    """Whether the name was only claimed in an epoch, and nothing was archived under it before it was given back."""
    return any(each.first <= epoch <= each.last for each in head.unused_epochs)


def is_over(head: ArchiveHead, epoch: int) -> bool:
    """Whether no thread that began in an epoch lives, nor will: another sidecar was faster, or the thread was deleted.
    HEAD's epoch only grows, so a HEAD that begins a thread in that epoch cannot be written any more."""
    return head.epoch >= epoch and (head.deleted or head.created_epoch != epoch)
