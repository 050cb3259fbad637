"""Proves a journal to somebody who kept a digest: reads the entries behind it, and computes their digests again.

As Verify does, but for one thread, and without its states. It reads the rows on disk, never what is in memory.
"""

from __future__ import annotations

from stateward.v1.thread_service_pb2 import ReadDigestsResponse
from stateward_sidecar.codec.entry import Entry, entry_digest
from stateward_sidecar.codec.seal import content_hash
from stateward_sidecar.errors import Corrupt, HistoryElsewhere
from stateward_sidecar.store.check.verify import is_content_gone
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Thread, load_numbered

ENTRIES_MAX, EDIT_BYTES_MAX = 500, 8 << 20
"""Of one answer."""


class Prover:
    """Reads the digests of journals."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def prove(self, line: Thread, after_sequence: int, after_digest: bytes) -> ReadDigestsResponse:
        """Returns the digests behind an entry that the line has. Raises Corrupt."""
        with self._context.engine.read() as txn:
            thread = load_numbered(txn, self._context.keystore, line.number, line.identity.uid)
            tip, name = thread.head.tip_sequence, thread.name
            answer = ReadDigestsResponse(uid=thread.identity.uid_text, newest_sequence=tip)
            before, size_bytes = (after_sequence, after_digest), 0
            held: replay.Held = {}
            for entry in replay.read_entries(txn, thread.identity, after_sequence + 1):
                header = entry.header
                if header.sequence > tip or len(answer.entries) >= ENTRIES_MAX or size_bytes > EDIT_BYTES_MAX:
                    break
                try:
                    metadata = entry.open_metadata_bytes(thread.identity.cipher, thread.identity.uid)
                    if header.sequence == before[0] + 1 and header.previous_digest != before[1]:
                        raise Corrupt("the entry does not follow the one before it")
                    is_gone = is_content_gone(txn, thread, entry)
                    if not is_gone:
                        try:
                            edits = replay.read_edits(txn, thread.identity, entry, self._context.cache, held)
                        except HistoryElsewhere:
                            is_gone = True
                        else:
                            size_bytes += len(edits)
                            self._compare(thread, entry, metadata, edits)
                except Corrupt as error:
                    raise error.locate(name, header.version) from None
                answer.entries.add(
                    sequence=header.sequence, version=header.version, previous_digest=header.previous_digest,
                    digest=header.digest, without_content=is_gone,
                )  # fmt: skip
                before = header.sequence, header.digest
            if not answer.entries and before[0] < tip:
                raise Corrupt("the newest journal entry is missing", name)
            if answer.entries and before[0] == tip and before[1] != thread.head.tip_digest:
                raise Corrupt("the newest journal entry is not the one that the thread's head names", name)
        return answer

    @staticmethod
    def _compare(thread: Thread, entry: Entry, metadata: bytes, edits: bytes) -> None:
        if entry_digest(thread.identity.cipher, entry.header, metadata, content_hash(edits)) != entry.header.digest:
            raise Corrupt("the entry's digest does not match its content")
