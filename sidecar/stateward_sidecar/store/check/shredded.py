"""Names the threads that were deleted, and says whether a key of each is still on this disk."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from stateward.v1.admin_service_pb2 import DeletedKey, ScanProgress, VerifyFinding, VerifyRequest, VerifyResponse
from stateward_sidecar.errors import Corrupt, KeyUnavailable, reason_number
from stateward_sidecar.storage import layout
from stateward_sidecar.store.journal.journal import open_deletion
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import Context

# Rows that one transaction reads.
STEP_ROWS = 1_000


def list_deleted_keys(context: Context, request: VerifyRequest) -> Iterator[VerifyResponse]:
    """Yields the deletions of which this disk has a record, oldest first: all, or those of a namespace."""
    keystore, progress, start = context.keystore, ScanProgress(), b"D"
    wanted = keystore.namespace_id(request.namespace) if request.namespace else b""
    while start:
        answers, end = list[VerifyResponse](), b""
        with context.engine.read() as txn:
            for number, (key, row) in enumerate(islice(blocks.rows_from(txn, start, b"D"), STEP_ROWS), 1):
                end = bytes(key) + b"\0" if number == STEP_ROWS else b""
                progress.items += 1
                answer = VerifyResponse(progress=progress)
                try:
                    if not _describe(context, layout.tail_number(key), bytes(row), wanted, answer.deleted_key):
                        continue
                except (Corrupt, KeyUnavailable) as error:
                    answer.ClearField("deleted_key")
                    answer.finding.CopyFrom(VerifyFinding(reason=reason_number(error.reason), message=error.message))
                answers.append(answer)
        yield from answers
        start = end
    yield VerifyResponse(progress=progress)


def _describe(context: Context, cursor: int, row: bytes, wanted: bytes, into: DeletedKey) -> bool:
    """Fills in a deletion. Returns False if it was in another namespace. Raises Corrupt, KeyUnavailable."""
    owner, _ = layout.unpack_deletion(row)
    if wanted not in (b"", owner):
        return False
    keys = context.keystore.namespace_by_id(owner)
    record = open_deletion(keys, cursor, row) if keys is not None else None
    if record is None:
        raise Corrupt("a deletion belongs to no namespace")
    into.uid, into.namespace, into.thread = record.uid.hex(), record.namespace, record.thread
    into.delete_time.FromMicroseconds(record.time_us)
    into.exists = context.keystore.has_key(record.uid)
    return True
