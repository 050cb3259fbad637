"""Effects: their claims and results, their deletion, and their rows.

The row of an effect has its record, and the sequence of the entry that has its value.

Row ``E`` is put in the transaction of the effect's entry, under keyed hashes of anchor and key. It is an index, and can
be rebuilt from the newest entry of the effect. Entries that only the archive has are fetched before the daemon answers
that there is no such effect, because a tool that ran once must not run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

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
from stateward_sidecar.store.thread.table import Table
from stateward_sidecar.store.thread.thread import Identity, Thread, ThreadDraft, add_to_sum, rows

OVER = (EFFECT_STATE_DONE, EFFECT_STATE_FAILED)


def effect_key(identity: Identity, anchor: str, key: str) -> bytes:
    """Returns the row key of an effect."""
    return anchor_prefix(identity, anchor) + identity.hash_id(b"effect", anchor, key)


def anchor_prefix(identity: Identity, anchor: str) -> bytes:
    """Returns the prefix of the row keys of an anchor."""
    return identity.keys.effects(identity.hash_id(b"anchor", anchor))


EFFECT_ROWS = Table(b"E", EffectRow, "an effect", lambda it, row: effect_key(it, row.record.anchor, row.record.key))


def find_effect(txn: lmdb.Transaction, thread: ThreadDraft | Thread, row_key: bytes) -> EffectRow | None:
    """Returns the row of an effect; None if nobody ever began it. Raises Corrupt or HistoryElsewhere."""
    identity = thread.identity
    _check_sum(txn, thread)
    row = EFFECT_ROWS.find(txn, identity, row_key)
    # A copy may lack entries below its floor, so a row that is older than the floor may be out of date.
    if thread.floor_sequence and thread.head.effects and (row is None or row.sequence <= thread.floor_sequence):
        raise replay.history_elsewhere(identity)
    return row


def list_effects(txn: lmdb.Transaction, thread: Thread, prefix: bytes) -> Iterator[tuple[bytes, EffectRow]]:
    """Yields row key and row of all effects of an anchor, or of the thread. Raises Corrupt or HistoryElsewhere."""
    if thread.floor_sequence and thread.head.effects:
        raise replay.history_elsewhere(thread.identity)
    _check_sum(txn, thread)
    yield from EFFECT_ROWS.rows(txn, thread.identity, prefix)


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
            found.append((key, EFFECT_ROWS.open(thread.identity, key, record)))
        except Corrupt:
            message = "an effect cannot be opened, and the damage hides its key"
            damage.append(Corrupt(message, thread.identity.name))
    return found, damage or [of_table]


def page_effects(txn: lmdb.Transaction, thread: Thread, after: bytes, count: int) -> list[tuple[bytes, EffectRow]]:
    """Returns the next effects of the thread with their row keys. Raises Corrupt or HistoryElsewhere.

    ``after``: the row key of the previous effect; empty = begin with the first.
    """
    if thread.floor_sequence and thread.head.effects:
        raise replay.history_elsewhere(thread.identity)
    _check_sum(txn, thread)
    return list(islice(EFFECT_ROWS.rows(txn, thread.identity, after=after), count))


def are_effects_whole(txn: lmdb.Transaction, thread: ThreadDraft | Thread) -> bool:
    """Returns whether the rows have the sum in the head. Raises Corrupt if a row cannot be read."""
    return EFFECT_ROWS.total(txn, thread.identity) == int.from_bytes(thread.head.effect_sum, "big")


def has_all_pieces(txn: lmdb.Transaction, thread: ThreadDraft | Thread, cleared: Ranges) -> bool:
    """Returns whether each effect that has a row, and whose entry another line ``cleared``, still has its value: if the
    entry stays for retries, the value of a large effect goes without it. Raises Corrupt."""
    identity = thread.identity
    for _, row in EFFECT_ROWS.rows(txn, identity):
        if row.sequence not in cleared:
            continue
        header = replay.read_entry(txn, identity, row.sequence).header
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
    for _, row in EFFECT_ROWS.rows(txn, identity):
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
    change = EFFECT_ROWS.put_counted(txn, identity, row_key, row) ^ EFFECT_ROWS.part(identity, row_key, old)
    head.effect_sum = add_to_sum(head.effect_sum, change)
    head.effects += old is None


def index_effect(txn: lmdb.Transaction, identity: Identity, header: EntryHeader, record: EffectRecord) -> None:
    """Puts the row for an entry from the archive, unless there is a newer one. The head counts the effect already.

    The caller leaves out entries of deleted effects.
    """
    row_key = effect_key(identity, record.anchor, record.key)
    known = EFFECT_ROWS.find(txn, identity, row_key)
    if known is None or known.sequence < header.sequence:
        EFFECT_ROWS.put(txn, identity, row_key, EffectRow(record=record, sequence=header.sequence))


def take_pruned(txn: lmdb.Transaction, draft: ThreadDraft, pruned: PrunedVersions) -> None:
    """Takes over what the owner of a thread pruned, and removes the rows of effects that it deleted.

    The owner's head does not count these rows any more.
    """
    identity, before, draft.pruned = draft.identity, draft.pruned.effects.pairs(), Pruned.from_message(pruned)
    if draft.pruned.effects.pairs() != before:
        for key, row in list(EFFECT_ROWS.rows(txn, identity)):
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
    row = EFFECT_ROWS.find(txn, identity, row_key)
    if row is None:
        raise Corrupt("the row of an effect is missing", identity.name)
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
