"""The receipt of a write: what a client keeps of the journal's entry."""

from __future__ import annotations

import lmdb

from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED
from stateward.v1.thread_pb2 import ThreadInfo
from stateward.v1.write_pb2 import Receipt
from stateward_sidecar.store.journal.lines import digest_of
from stateward_sidecar.store.journal.views import reached
from stateward_sidecar.store.thread.thread import ThreadDraft


def receipt_of(txn: lmdb.Transaction, draft: ThreadDraft, sequence: int, *, replayed: bool = False) -> Receipt:
    """Returns the receipt of an entry. ``replayed``: a call before this one wrote it."""
    thread = draft.thread
    return Receipt(
        uid=draft.identity.uid_text, sequence=sequence, digest=digest_of(txn, draft, sequence),
        durability=reached(thread, sequence), archived_sequence=thread.archived_sequence, replayed=replayed,
    )  # fmt: skip


def newest_receipt(txn: lmdb.Transaction, draft: ThreadDraft) -> Receipt:
    """Returns the receipt of the newest entry, which a write has just made, or which it left the newest."""
    return receipt_of(txn, draft, draft.head.tip_sequence)


def receipt_of_thread(thread: ThreadInfo, *, replayed: bool) -> Receipt:
    """Returns the receipt of a thread that was made as a whole."""
    is_archived = 0 < thread.sequence <= thread.archived_sequence
    return Receipt(
        uid=thread.uid, sequence=thread.sequence, digest=thread.sequence_digest,
        durability=DURABILITY_ARCHIVED if is_archived else DURABILITY_COMMITTED,
        archived_sequence=thread.archived_sequence, replayed=replayed,
    )  # fmt: skip
