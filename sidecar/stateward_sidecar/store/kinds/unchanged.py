"""Whether a thread is as it was shown to somebody who decides about it.

A person who deletes a thread, or answers its question, decides on what was shown. Entries that the daemon made by
itself since then are no reason to ask again.
"""

from __future__ import annotations

import lmdb

from stateward.v1.signal_service_pb2 import SendSignalRequest
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.errors import VersionMismatch
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.finding import digest_at
from stateward_sidecar.store.kinds.table import kind_of
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.thread import Thread, ThreadDraft

# More of the daemon's own entries than this count as a change.
OWN_ENTRIES_MAX = 256


def check_unchanged(
    txn: lmdb.Transaction, draft: ThreadDraft | Thread, request: DeleteThreadRequest | SendSignalRequest
) -> None:
    """Raises VersionMismatch if the journal has another newest entry than the one that was shown. Entries that the
    daemon made by itself since then do not count."""
    head, name = draft.head, draft.head.thread
    expected, digest = request.expected_sequence, request.expected_sequence_digest
    if not expected or (expected == head.tip_sequence and digest in (b"", bytes(head.tip_digest))):
        return
    is_recent = 0 < head.tip_sequence - expected <= OWN_ENTRIES_MAX
    if is_recent and digest in (b"", digest_at(txn, draft.identity, expected)) and is_own(txn, draft, expected):
        return
    wanted = f"entry {expected}" + (" with another digest" if expected == head.tip_sequence else "")
    raise VersionMismatch(
        f"the journal of thread {name!r} ends with entry {head.tip_sequence}, but {wanted} was expected", thread=name,
        current_version=head.main_version, current_digest=head.main_digest.hex(),
    )


def is_own(txn: lmdb.Transaction, draft: ThreadDraft | Thread, after: int) -> bool:
    """Whether the daemon made all entries after one by itself, and these are few."""
    identity = draft.identity
    if draft.head.tip_sequence - after > OWN_ENTRIES_MAX:
        return False
    for sequence in range(after + 1, draft.head.tip_sequence + 1):
        record = blocks.get_entry(txn, identity.keys, sequence)
        if record is None:
            return False
        entry = unpack(record, sequence)
        if not kind_of(entry.header).is_own(replay.open_metadata(identity, entry)):
            return False
    return True
