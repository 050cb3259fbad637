"""Effects: their claims and results, their deletion, and their rows.

The rows of effects: the record of each effect, and the sequence of the entry that has its value.

Row ``E`` is put in the transaction of the effect's entry, under keyed hashes of anchor and key. It is an index, and can
be rebuilt from the newest entry of the effect. Entries that only the archive has are fetched before the daemon answers
that there is no such effect, because a tool that ran once must not run again.

Effects: their claims and results, and their deletion.
"""

from __future__ import annotations

from collections.abc import Iterator

import lmdb
from google.protobuf.message import DecodeError

from stateward.storage.v1.head_pb2 import EffectRow, ThreadHead
from stateward.storage.v1.journal_pb2 import (
    ENTRY_KIND_EFFECT,
    ENTRY_KIND_EFFECTS_DELETED,
    EffectRecord,
    EntryHeader,
    EntryMetadata,
    PrunedVersions,
)
from stateward.v1.effect_pb2 import EFFECT_STATE_DONE, EFFECT_STATE_FAILED, RecordedEffect
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_service_pb2 import JournalEvent
from stateward_sidecar.codec.entry import Entry
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.kind import Kind, Watched
from stateward_sidecar.store.thread.cache import Cache
from stateward_sidecar.store.thread.ranges import Pruned, Ranges
from stateward_sidecar.store.thread.thread import Identity, Thread, ThreadDraft, rows

OVER = (EFFECT_STATE_DONE, EFFECT_STATE_FAILED)


def effect_key(identity: Identity, anchor: str, key: str) -> bytes:
    """Returns the row key of an effect."""
    return anchor_prefix(identity, anchor) + identity.hash_id(b"effect", anchor, key)


def anchor_prefix(identity: Identity, anchor: str) -> bytes:
    """Returns the prefix of the row keys of an anchor."""
    return identity.keys.effects(identity.hash_id(b"anchor", anchor))


def find_effect(txn: lmdb.Transaction, thread: ThreadDraft | Thread, row_key: bytes) -> EffectRow | None:
    """Returns the row of an effect; None if nobody ever began it. Raises Corrupt or HistoryElsewhere."""
    identity = thread.identity
    _check_sum(txn, thread)
    record = txn.get(row_key)
    row = open_effect_row(identity, row_key, record) if record is not None else None
    # A copy may lack entries below its floor, so a row that is older than the floor may be out of date.
    if thread.floor_sequence and thread.head.effects and (row is None or row.sequence <= thread.floor_sequence):
        raise replay.history_elsewhere(identity)
    return row


def list_effects(txn: lmdb.Transaction, thread: Thread, prefix: bytes) -> Iterator[tuple[bytes, EffectRow]]:
    """Yields row key and row of all effects of an anchor, or of the thread. Raises Corrupt or HistoryElsewhere."""
    if thread.floor_sequence and thread.head.effects:
        raise replay.history_elsewhere(thread.identity)
    _check_sum(txn, thread)
    for key, record in rows(txn, prefix):
        yield bytes(key), open_effect_row(thread.identity, key, record)


def salvage_effects(
    txn: lmdb.Transaction, thread: Thread, prefix: bytes
) -> tuple[list[tuple[bytes, EffectRow]], list[Corrupt]]:
    """Returns what ``list_effects`` yields, as far as it can be read, and the damage by which others may be missing.

    For lists that name the damage. Nobody may decide by such a list whether a tool ran. Raises HistoryElsewhere.
    """
    try:
        return list(list_effects(txn, thread, prefix)), []
    except Corrupt as error:
        of_table = error
    found, damage = list[tuple[bytes, EffectRow]](), list[Corrupt]()
    for key, record in rows(txn, prefix):
        try:
            found.append((bytes(key), open_effect_row(thread.identity, key, record)))
        except Corrupt:
            message = "an effect cannot be opened, and the damage hides its key"
            damage.append(Corrupt(message, thread.identity.name))
    return found, damage or [of_table]


def anchor_rows(txn: lmdb.Transaction, identity: Identity, prefix: bytes) -> Iterator[tuple[bytes, EffectRow]]:
    """Yields row key and row of the effects of an anchor, without a look at the sum. Raises Corrupt."""
    for key, record in rows(txn, prefix):
        yield bytes(key), open_effect_row(identity, key, record)


def page_effects(txn: lmdb.Transaction, thread: Thread, after: bytes, count: int) -> list[tuple[bytes, EffectRow]]:
    """Returns the next effects of the thread with their row keys. Raises Corrupt or HistoryElsewhere.

    ``after``: the row key of the previous effect; empty = begin with the first.
    """
    if thread.floor_sequence and thread.head.effects:
        raise replay.history_elsewhere(thread.identity)
    _check_sum(txn, thread)
    prefix, cursor = thread.identity.keys.all_of(b"E"), txn.cursor()
    found = cursor.set_range(after + b"\0" if after else prefix)
    page: list[tuple[bytes, EffectRow]] = []
    while found and len(page) < count and bytes(cursor.key()).startswith(prefix):
        key = bytes(cursor.key())
        page.append((key, open_effect_row(thread.identity, key, cursor.value())))
        found = cursor.next()
    return page


def are_effects_whole(txn: lmdb.Transaction, thread: ThreadDraft | Thread) -> bool:
    """Returns whether the rows have the sum in the head. Raises Corrupt if a row cannot be read."""
    total, identity = 0, thread.identity
    for key, record in rows(txn, identity.keys.all_of(b"E")):
        total ^= effect_part(identity, key, open_effect_row(identity, key, record))
    return total == int.from_bytes(thread.head.effect_sum, "big")


def has_all_pieces(txn: lmdb.Transaction, thread: ThreadDraft | Thread, cleared: Ranges) -> bool:
    """Returns whether each effect that has a row, and whose entry another line ``cleared``, still has its value: if the
    entry stays for retries, the value of a large effect goes without it. Raises Corrupt."""
    identity = thread.identity
    for key, record in rows(txn, identity.keys.all_of(b"E")):
        sequence = open_effect_row(identity, key, record).sequence
        if sequence not in cleared:
            continue
        header = replay.read_entry(txn, identity, sequence).header
        pieces = identity.keys.edits_pieces(header.parts_id)
        if header.parts_id and next(rows(txn, pieces), None) is None:
            return False
    return True


def _check_sum(txn: lmdb.Transaction, thread: ThreadDraft | Thread) -> None:
    """Compares the effect rows with the sum in the head, once for each thread in memory. Raises Corrupt, and
    VersionPruned if entries went.

    A row that was lost or rolled back would make a tool run again.
    """
    loaded = thread.thread if isinstance(thread, ThreadDraft) else thread
    if loaded.effects_checked or thread.floor_sequence:
        return
    if thread.archive is not None and thread.archive.effects_gone:
        raise replay.gone_with_thread(thread, "effects")
    if not are_effects_whole(txn, thread):
        raise Corrupt("the row of an effect is missing, foreign or older than the thread's head", thread.identity.name)
    loaded.effects_checked = True


def verify_effects(txn: lmdb.Transaction, thread: Thread) -> Iterator[Corrupt]:
    """Compares all rows with the sum in the head, and each row with the entry that it names. Yields the damage."""
    identity = thread.identity
    if thread.archive is not None and thread.archive.effects_gone:
        return
    try:
        _check_sum(txn, thread)
    except Corrupt as error:
        yield error.locate(identity.name)
        return
    for key, record in rows(txn, identity.keys.all_of(b"E")):
        row = open_effect_row(identity, key, record)
        if row.sequence <= thread.floor_sequence:
            continue
        try:
            if row.sequence in thread.pruned.effects:
                raise Corrupt("the row of an effect names an entry of a deleted effect", identity.name)
            entry = replay.read_entry(txn, identity, row.sequence)
            if replay.open_metadata(identity, entry).effect != row.record:
                raise Corrupt("the row of an effect differs from its journal entry", identity.name)
        except Corrupt as error:
            yield error.locate(identity.name)


def put_effect(
    txn: lmdb.Transaction, identity: Identity, head: ThreadHead, row_key: bytes, old: EffectRow | None, row: EffectRow
) -> None:
    """Puts the row of an effect, and counts it in the head."""
    change = effect_part(identity, row_key, row) ^ (effect_part(identity, row_key, old) if old is not None else 0)
    head.effect_sum = (int.from_bytes(head.effect_sum, "big") ^ change).to_bytes(16, "big")
    head.effects += old is None
    _put(txn, identity, row_key, row)


def _put(txn: lmdb.Transaction, identity: Identity, row_key: bytes, row: EffectRow) -> None:
    txn.put(row_key, identity.seal_row(row_key, row.SerializeToString(deterministic=True)))


def effect_part(identity: Identity, row_key: bytes, row: EffectRow) -> int:
    """Returns what a row adds to the sum in the head."""
    return identity.row_sum(row_key, row.SerializeToString(deterministic=True))


def index_effect(txn: lmdb.Transaction, identity: Identity, header: EntryHeader, record: EffectRecord) -> None:
    """Puts the row for an entry from the archive, unless there is a newer one. The head counts the effect already.

    The caller leaves out entries of deleted effects.
    """
    row_key = effect_key(identity, record.anchor, record.key)
    known = txn.get(row_key)
    if known is None or open_effect_row(identity, row_key, known).sequence < header.sequence:
        _put(txn, identity, row_key, EffectRow(record=record, sequence=header.sequence))


def take_pruned(txn: lmdb.Transaction, draft: ThreadDraft, pruned: PrunedVersions) -> None:
    """Takes over what the owner of a thread pruned, and removes the rows of effects that it deleted.

    The owner's head does not count these rows any more.
    """
    identity, before, draft.pruned = draft.identity, draft.pruned.effects.pairs(), Pruned.from_message(pruned)
    if draft.pruned.effects.pairs() != before:
        for key, row in list(anchor_rows(txn, identity, identity.keys.all_of(b"E"))):
            if row.sequence in draft.pruned.effects:
                txn.delete(key)


def read_value(txn: lmdb.Transaction, identity: Identity, row: EffectRow, cache: Cache) -> Value | None:
    """Returns the value of an effect that is over; None if it has none. Raises Corrupt."""
    if not row.record.has_value:
        return None
    entry = replay.read_entry(txn, identity, row.sequence)
    try:
        return Value.FromString(replay.read_edits(txn, identity, entry, cache))
    except DecodeError:
        raise Corrupt("the value of an effect cannot be read", identity.name) from None


def view_effect(row: EffectRow, value: Value | None = None) -> RecordedEffect:
    """The contract's message for an effect."""
    record = row.record
    view = RecordedEffect(
        state=record.state, claim_token=record.claim_token, sequence=row.sequence, detail=record.detail,
        attempts=record.attempts,
    )  # fmt: skip
    effect = view.effect
    effect.anchor, effect.key, effect.name, effect.sort_key = record.anchor, record.key, record.name, record.sort_key
    effect.keep_when_pruned = record.stays
    if value is not None:
        effect.value.CopyFrom(value)
    if record.HasField("holder"):
        view.holder.CopyFrom(record.holder)
    view.begin_time.FromMicroseconds(record.begin_time_us)
    if record.end_time_us:
        view.end_time.FromMicroseconds(record.end_time_us)
    return view


def open_effect(txn: lmdb.Transaction, identity: Identity, row_key: bytes) -> EffectRow:
    """Returns the row of an effect that must exist. Raises Corrupt."""
    record = txn.get(row_key)
    if record is None:
        raise Corrupt("the row of an effect is missing", identity.name)
    return open_effect_row(identity, row_key, record)


def open_effect_row(identity: Identity, key: bytes, record: bytes | memoryview) -> EffectRow:
    """Returns a row. Raises Corrupt if it is not the one of its key."""
    try:
        row = EffectRow.FromString(identity.open_row(key, record))
    except Corrupt as error:
        raise error.locate(identity.name) from None
    except DecodeError:
        raise Corrupt("the row of an effect cannot be read", identity.name) from None
    if effect_key(identity, row.record.anchor, row.record.key) != key:
        raise Corrupt("the row of an effect holds another effect", identity.name)
    return row


class EffectKind(Kind):
    """A claim on an effect, or its result."""

    number = ENTRY_KIND_EFFECT
    may_repeat_id = True  # a claim that is made again

    def removed(self, pruned: Pruned) -> Ranges:
        """Those of deleted effects."""
        return pruned.effects

    def tell(self, watched: Watched, event: JournalEvent) -> bool:
        """Without its value, which is in the second part of the entry."""
        metadata = watched.metadata()
        row = EffectRow(record=metadata.effect, sequence=watched.entry.header.sequence)
        event.effect.CopyFrom(view_effect(row))
        if metadata.HasField("told"):
            event.status_told.CopyFrom(metadata.told)
        return True

    def index(
        self, txn: lmdb.Transaction, draft: ThreadDraft, entry: Entry, metadata: EntryMetadata, *, is_whole: bool
    ) -> None:
        """The row of the effect."""
        if is_whole:
            index_effect(txn, draft.identity, entry.header, metadata.effect)

    def verify(self, txn: lmdb.Transaction, thread: Thread) -> Iterator[Corrupt]:
        """All rows, and their sum in the head."""
        return verify_effects(txn, thread)


class EffectsDeletedKind(Kind):
    """The deletion of effects."""

    number = ENTRY_KIND_EFFECTS_DELETED

    def tell(self, watched: Watched, event: JournalEvent) -> bool:
        """Which ones."""
        event.effects_deleted.CopyFrom(watched.metadata().deleted_effects)
        return True


EFFECT, EFFECTS_DELETED = EffectKind(), EffectsDeletedKind()
