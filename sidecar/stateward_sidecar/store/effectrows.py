"""The rows of effects: what is known of each, and where in the journal its value is.

Row ``E`` is put in the transaction of the entry that tells of the effect, under keyed hashes of anchor and key. It is
an index: the newest entry of an effect implies it. What only the archive has is fetched before it is said that there
is no effect, for a tool that ran once must not run again.
"""

from __future__ import annotations

from collections.abc import Iterator

import lmdb
from google.protobuf.message import DecodeError

from stateward.storage.v1.head_pb2 import EffectRow
from stateward.storage.v1.journal_pb2 import EffectRecord, EntryHeader
from stateward.v1.effect_pb2 import EFFECT_STATE_DONE, EFFECT_STATE_FAILED, RecordedEffect
from stateward.v1.state_pb2 import Value
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store import replay
from stateward_sidecar.store.cache import Cache
from stateward_sidecar.store.thread import Draft, Identity, Thread, rows

OVER = (EFFECT_STATE_DONE, EFFECT_STATE_FAILED)


def effect_key(identity: Identity, anchor: str, key: str) -> bytes:
    """The row of an effect."""
    return anchor_prefix(identity, anchor) + identity.hash_id(b"effect", anchor, key)


def anchor_prefix(identity: Identity, anchor: str) -> bytes:
    """Begins the rows of an anchor."""
    return identity.keys.effects(identity.hash_id(b"anchor", anchor))


def find_effect(txn: lmdb.Transaction, thread: Draft | Thread, row_key: bytes) -> EffectRow | None:
    """What is known of an effect; None where nobody ever began it. Raises Corrupt or HistoryElsewhere."""
    identity = thread.identity
    record = txn.get(row_key)
    row = _open(identity, row_key, record) if record is not None else None
    # A copy may lack entries in the middle: what it knows of older ones proves nothing.
    if thread.floor_sequence and thread.head.effects and (row is None or row.sequence <= thread.floor_sequence):
        raise replay.history_elsewhere(identity)
    return row


def list_effects(txn: lmdb.Transaction, thread: Thread, prefix: bytes) -> Iterator[EffectRow]:
    """All effects of an anchor, or of the thread, by key. Raises Corrupt or HistoryElsewhere."""
    if thread.floor_sequence and thread.head.effects:
        raise replay.history_elsewhere(thread.identity)
    for key, record in rows(txn, prefix):
        yield _open(thread.identity, key, record)


def put_effect(txn: lmdb.Transaction, identity: Identity, row_key: bytes, row: EffectRow) -> None:
    """Puts the row of an effect."""
    txn.put(row_key, identity.seal_row(row_key, row.SerializeToString(deterministic=True)))


def index_effect(txn: lmdb.Transaction, identity: Identity, header: EntryHeader, record: EffectRecord) -> None:
    """Puts the row that an entry of the journal implies, where there is no newer one."""
    row_key = effect_key(identity, record.anchor, record.key)
    known = txn.get(row_key)
    if known is None or _open(identity, row_key, known).sequence < header.sequence:
        put_effect(txn, identity, row_key, EffectRow(record=record, sequence=header.sequence))


def read_value(txn: lmdb.Transaction, identity: Identity, row: EffectRow, cache: Cache) -> Value | None:
    """The value of an effect that is over; None where it has none. Raises Corrupt."""
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
    if value is not None:
        effect.value.CopyFrom(value)
    if record.HasField("holder"):
        view.holder.CopyFrom(record.holder)
    view.begin_time.FromMicroseconds(record.begin_time_us)
    if record.end_time_us:
        view.end_time.FromMicroseconds(record.end_time_us)
    return view


def _open(identity: Identity, key: bytes, record: bytes | memoryview) -> EffectRow:
    try:
        row = EffectRow.FromString(identity.open_row(key, record))
    except Corrupt as error:
        raise error.locate(identity.name) from None
    except DecodeError:
        raise Corrupt("the row of an effect cannot be read", identity.name) from None
    if effect_key(identity, row.record.anchor, row.record.key) != key:
        raise Corrupt("the row of an effect leads to another one", identity.name)
    return row
