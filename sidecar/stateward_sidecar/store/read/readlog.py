"""Reads a log: a page of entries from an index on, at one version.

A page is joined from frames of the state: elements of ``Log.entries`` and of ``ReadLogResponse.entries`` have the
same tag. If the state is in memory, the cost depends on the page and not on the length of the log:
older entries are in segments, of which only those that the page shows are read.

``rewritten_version`` tells a reader that folds the entries to start again. A deleted log is reported as rewritten by
the version that is shown: the state records the real version only when a log of that name is made again, and the reader
must start again before. The same holds if the branch was moved to a version that was not made from its head, because
the log may have lost entries and grown again by the same number.

After a takeover another version may have the number of the page before. So a reader names the version that it knows
with its digest, and learns whether the history still has it.
"""

from __future__ import annotations

from dataclasses import dataclass

import lmdb

from stateward.v1.checkpoint_service_pb2 import ReadLogRequest, ReadLogResponse
from stateward_sidecar.codec.entries import EMPTY_ENTRIES
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.codec.pages import take_fitting
from stateward_sidecar.codec.state import LogState, StateTree
from stateward_sidecar.errors import StateTooLarge
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.admitting import other_creation
from stateward_sidecar.store.journal.finding import digest_at, digest_before, digest_of_version, resolve_or_head
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.paging import PAGE_BYTES, page_bytes
from stateward_sidecar.store.thread.thread import MAIN, Thread
from stateward_sidecar.store.thread.threads import Threads

ENTRIES = 1000
# A message has 64 MiB at most, and an entry comes with the fields around it.
ENTRY_BYTES_MAX = 60 << 20


@dataclass(frozen=True, slots=True)
class LogPage:
    """A page: the frames of its entries, and the other fields of the answer."""

    frames: list[bytes]
    answer: ReadLogResponse

    @property
    def size_bytes(self) -> int:
        """Of the entries."""
        return sum(map(len, self.frames))

    def wire(self) -> bytes:
        """The answer, serialized."""
        return b"".join((*self.frames, self.answer.SerializeToString()))


class LogReader:
    """Reads pages of logs."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads

    def head(self, request: ReadLogRequest) -> int:
        """Returns the newest version of the branch; 0 if it is not in memory."""
        thread = self._threads.cached(request.namespace, request.thread)
        branch = thread.branches.get(request.branch or MAIN) if thread is not None else None
        return branch.version if branch is not None else 0

    def shows(self, request: ReadLogRequest, answer: ReadLogResponse) -> bool:
        """Returns whether the newest version of the branch is in memory and is the one that an answer shows."""
        if self.head(request) != answer.version:
            return False
        thread = self._threads.cached(request.namespace, request.thread)
        branch = thread.branches.get(request.branch or MAIN) if thread is not None else None
        return thread is not None and branch is not None and branch.digest == answer.version_digest

    def is_hot(self, request: ReadLogRequest) -> bool:
        """Returns whether the event loop can make the page: the state is in memory and the page is small."""
        thread = self._threads.cached(request.namespace, request.thread)
        if thread is None or request.HasField("version") or request.max_bytes > PAGE_BYTES:
            return False
        tree = self._context.cache.state(thread.number, self.head(request))
        if tree is None:
            return False
        log = tree.logs.get(request.log)
        count = log.entries.runs.count if log is not None else 0
        return log is None or not count or request.from_index >= log.first_index + count

    def page_bytes(self, request: ReadLogRequest) -> int:
        """Returns the largest possible size of the page, in bytes: the requested limit, or less for a short log."""
        asked_bytes = request.max_bytes or PAGE_BYTES
        thread = self._threads.cached(request.namespace, request.thread)
        if thread is None or request.HasField("version"):
            return asked_bytes
        tree = self._context.cache.state(thread.number, self.head(request))
        if tree is None:
            return asked_bytes
        log = tree.logs.get(request.log)
        return min(asked_bytes, log.entries.size_bytes) if log is not None else 0

    def read(self, request: ReadLogRequest) -> LogPage:
        """Returns the page for a checked request. Raises StateTooLarge if the first entry is larger than a message, and
        UidMismatch if the thread is not the one that the reader knows."""
        with self._context.engine.read() as txn:
            thread = self._threads.get(txn, request.namespace, request.thread)
            _check_creation(thread, request)
            ref = request.version if request.HasField("version") else None
            version = resolve_or_head(txn, thread, ref, request.branch or MAIN, "version")
            branch = thread.branches.get(request.branch or MAIN)
            is_head = branch is not None and branch.version == version
            digest = branch.digest if branch is not None and is_head else digest_of_version(txn, thread, version)
            is_missing = _misses(txn, thread, request, version, digest)
            tree = replay.state_at(txn, thread, version, self._context.cache)
        log = _find_log(tree, request.log, version)
        moved = branch.moved_version if branch is not None else 0
        if moved > version:  # at the head, after it went back: which versions were moves before this one is not known
            moved = 0 if ref is not None else version
        index = max(request.from_index, log.first_index)
        at = index - log.first_index
        room_bytes = min(page_bytes(request.max_bytes), ENTRY_BYTES_MAX)
        count = len(log.entries)
        shown = log.entries.frames(min(at, count), min(at + (request.page_size or ENTRIES), count))
        frames, _ = take_fitting(shown, room_bytes)
        if frames and len(frames[0]) > ENTRY_BYTES_MAX:
            text = (
                f"entry {index} of log {request.log!r} has {len(frames[0])} bytes, too many for this call; read it "
                "with a hydrate that has a projection"
            )
            raise StateTooLarge(len(frames[0]), ENTRY_BYTES_MAX, text)
        answer = ReadLogResponse(
            first_index=index, next_index=index + len(frames), end_index=log.next_index,
            rewritten_version=max(log.rewritten_version, moved), version=version, uid=thread.identity.uid_text,
            version_digest=digest, known_missing=is_missing,
        )  # fmt: skip
        return LogPage(frames, answer)


def _check_creation(thread: Thread, request: ReadLogRequest) -> None:
    if request.expected_uid not in ("", thread.identity.uid_text):
        raise other_creation(thread.identity, request.expected_uid, "begin to read it anew")


def _misses(txn: lmdb.Transaction, thread: Thread, request: ReadLogRequest, version: int, digest: bytes) -> bool:
    """Returns whether the history does not have the known version. ``version``, ``digest``: of the page. Raises
    HistoryElsewhere or Corrupt."""
    known = request.known_version
    if not known or known > thread.head.last_version:
        return bool(known)
    if known == version:
        return bool(digest != request.known_digest)
    if known <= thread.floor_version:
        raise replay.history_elsewhere(thread.identity)
    sequence = replay.place_of(txn, thread, known)
    if known in thread.pruned and not _is_at(txn, thread, sequence, known):
        return False  # nothing says any more where it was
    here = digest_at(txn, thread.identity, sequence) or digest_before(txn, thread.identity, sequence + 1)
    return here not in (b"", request.known_digest)


def _is_at(txn: lmdb.Transaction, thread: Thread, sequence: int, version: int) -> bool:
    record = blocks.get_entry(txn, thread.identity.keys, sequence)
    return record is not None and unpack(record, sequence).header.version == version


def _find_log(tree: StateTree, name: str, version: int) -> LogState:
    found = tree.logs.get(name)
    if found is None and name in tree.retired:
        return LogState(tree.retired[name], EMPTY_ENTRIES, version)
    return found if found is not None else LogState(0, EMPTY_ENTRIES)
