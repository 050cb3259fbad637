"""Lists: threads by time of change or by label, versions of a thread or of all threads.

A call looks at a bounded number of rows. A filter that matches nothing gets an empty page and a token to continue.
Time, status and labels of a thread are in the keys of indexes. All other conditions need the sealed head,
and opening a head costs as much as reading some hundred keys. So a page ends early after 100 heads that do not match.

Threads by label: the search for the threads that have some labels.

A row of the index leads from a label to a thread. It has no time, so it moves only if the labels of the thread change,
and a save costs nothing. The time by which lists are ordered is in the sealed head. If few threads have the rarest
label, a list reads their heads and sorts them. If many have it, a list goes through the threads by time, and asks the
index about each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge

import lmdb
from google.protobuf.message import Message

from stateward.storage.v1.head_pb2 import ThreadHead
from stateward.v1.checkpoint_pb2 import WORK_STATUS_RUNNING, Checkpoint, WorkStatus
from stateward.v1.checkpoint_service_pb2 import ListCheckpointsRequest, ListCheckpointsResponse
from stateward.v1.thread_pb2 import UnreadableThread
from stateward.v1.thread_service_pb2 import (
    CountThreadsRequest,
    CountThreadsResponse,
    ListThreadsRequest,
    ListThreadsResponse,
    StatusCount,
)
from stateward_sidecar.codec.entry import Entry
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.store.items.recordviews import matches
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.finding import resolve
from stateward_sidecar.store.journal.views import add_archive, view_entry, view_head
from stateward_sidecar.store.read.contents import STATES_MAX, Contents
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.paging import bare, page_bytes
from stateward_sidecar.store.thread.thread import MAIN, Thread, rows
from stateward_sidecar.store.thread.threads import Threads
from stateward_sidecar.store.thread.times import SECOND_US
from stateward_sidecar.store.thread.unreadable import Unreadable, UnreadableParts
from stateward_sidecar.store.versions.branches import Walk, belongs
from stateward_sidecar.telemetry import log_damage

MayRead = Callable[[str], bool]
"""Says whether the thread of a name may be read."""
# Reading this many heads takes 30 ms at most.
FEW = 500


class Labelled:
    """The threads of a namespace that have some labels, as one transaction sees them. Without labels it is all."""

    def __init__(self, txn: lmdb.Transaction, keys: NamespaceKeys, labels: Mapping[str, str]) -> None:
        self._txn = txn
        self._prefixes = [
            layout.labelled_prefix(keys.tag, keys.names.thread_label(*pair)) for pair in labels.items()
        ]

    def has(self, number: int) -> bool:
        """Returns whether a thread may have all of the labels."""
        return all(self._txn.get(layout.labelled_key(prefix, number)) is not None for prefix in self._prefixes)

    def few(self) -> list[int] | None:
        """Returns the threads that have all of the labels; None if more than ``FEW`` have the rarest one."""
        if not self._prefixes:
            return None
        fewest = min((_first(self._txn, prefix) for prefix in self._prefixes), key=len)
        return [number for number in fewest if self.has(number)] if len(fewest) <= FEW else None


def by_time(threads: Iterable[Thread], start: bytes) -> Iterator[bytes]:
    """Yields the tails of the list keys of some threads, the most recently changed first, from ``start`` on."""
    tails = (layout.updated_tail(each.head.update_time_us // SECOND_US, each.number) for each in threads)
    yield from sorted(tail for tail in tails if tail >= start)


def _first(txn: lmdb.Transaction, prefix: bytes) -> list[int]:
    """Returns the first threads that have a label, one more than ``FEW`` at most."""
    found: list[int] = []
    for key, _ in rows(txn, prefix):
        found.append(layout.labelled_thread(key))
        if len(found) > FEW:
            break
    return found


ALL_THREADS = "-"
PAGE_SIZE = 100
# Metadata, labels and questions of a thousand versions or threads would be hundreds of megabytes.
ROWS_MAX = 5000
# Reading a version that a filter leaves out takes 25 µs.
VERSIONS_MAX = 1000
# Opening this many heads takes 5 to 10 ms, as long as a full page.
IN_VAIN_MAX = 100
_THREADS = struct.Struct(">QQI")
_VERSION = struct.Struct(">Q")


class Lister:
    """The listing verbs."""

    def __init__(self, context: Context, threads: Threads, contents: Contents) -> None:
        self._context = context
        self._threads = threads
        self._contents = contents

    def threads(
        self, request: ListThreadsRequest, may_read: MayRead | None = None, taken_bytes: int = 0
    ) -> ListThreadsResponse:
        """Returns a page of the threads of a namespace, the most recently changed first. ``may_read``: leaves the
        others out; None = every thread may be read. ``taken_bytes``: what the page has already."""
        context = self._context
        answer, page = ListThreadsResponse(), _Page(request.page_size, taken_bytes)
        binding = bare(request, "page_size")
        # A thread that changed after the first page was made is not shown on later pages.
        cut_off, second, number = context.clock.now_us() // SECOND_US, 0, 0
        if request.page_token:
            cut_off, second, number = _THREADS.unpack(context.tokens.unpack(binding, request.page_token))
        keys = context.keystore.namespace(request.namespace)
        if keys is None:
            return answer
        start = b""
        if request.page_token:
            start = layout.updated_tail(second, number) + b"\0"
        wanted = _Wanted(request, may_read)
        if wanted.before_us is not None and not start:
            start = layout.updated_tail(wanted.before_us // SECOND_US, layout.NUMBER_MAX)
        in_vain = 0
        with context.engine.read() as txn:
            labelled, unreadable = Labelled(txn, keys, request.labels), Unreadable(self._context, txn, keys.id)
            few = labelled.few()
            heads = self._few_heads(few, unreadable)
            if request.page_token:  # the first page has named those that have the labels
                unreadable = Unreadable(self._context, txn, keys.id)
            tails = _tails(txn, keys, request.statuses, start) if few is None else by_time(heads.values(), start)
            for looked_at, tail in enumerate(tails, 1):
                second, number = layout.unpack_updated(tail)
                if wanted.after_us is not None and second < wanted.after_us // SECOND_US:
                    break
                is_asked = second <= cut_off or not request.page_token
                if is_asked and labelled.has(number):
                    thread = heads.get(number) or unreadable.open(self._threads.head, number, is_indexed=True)
                    if thread is not None and wanted.fits(thread):
                        view = view_head(thread.identity, thread.head)
                        answer.threads.append(add_archive(view, thread.archive, thread.archived_sequence))
                        page.add(view)
                    else:
                        in_vain += number not in heads
                if page.is_full(looked_at) or in_vain >= IN_VAIN_MAX:
                    answer.next_page_token = context.tokens.pack(binding, _THREADS.pack(cut_off, second, number))
                    break
            answer.unreadable.extend(wanted.listed(unreadable))
        return answer

    def _few_heads(self, few: Sequence[int] | None, unreadable: Unreadable) -> dict[int, Thread]:
        heads = {number: unreadable.open(self._threads.head, number, is_indexed=True) for number in few or ()}
        return {number: thread for number, thread in heads.items() if thread is not None}

    def count_threads(self, request: CountThreadsRequest, may_read: MayRead | None = None) -> CountThreadsResponse:
        """Counts the threads of a namespace by status. Opens only heads that changed in the second of a time limit, but
        every head if not each thread may be read."""
        answer = CountThreadsResponse()
        keys = self._context.keystore.namespace(request.namespace)
        if keys is None:
            return answer
        wanted = _Wanted(request, may_read)
        with self._context.engine.read() as txn:
            unreadable = Unreadable(self._context, txn, keys.id)
            for status in WorkStatus.values()[1:]:
                prefix = layout.status_prefix(keys.tag, keys.names.status(status))
                if count := self._count(txn, prefix, wanted, unreadable):
                    answer.counts.append(StatusCount(status=status, count=count))  # type: ignore[arg-type]
            answer.unreadable.extend(wanted.listed(unreadable))
        return answer

    def _count(self, txn: lmdb.Transaction, prefix: bytes, wanted: _Wanted, unreadable: Unreadable) -> int:
        count, start, end, edges = 0, prefix, layout.after(prefix), []
        if wanted.before_us is not None:
            edges.append(wanted.before_us // SECOND_US)
            start = prefix + layout.updated_tail(edges[-1], layout.NUMBER_MAX)
        if wanted.after_us is not None:
            edges.append(wanted.after_us // SECOND_US)
            end = layout.after(prefix + layout.updated_tail(edges[-1], 0))
        cursor = txn.cursor()
        if not cursor.set_range(start):
            return 0
        keyless = self._context.keyless
        if not edges and not keyless and wanted.may_read is None:
            return _count_until(cursor, end)
        for key in cursor.iternext(keys=True, values=False):
            if bytes(key) >= end:
                break
            second, number = layout.unpack_updated(key)
            is_edge = second in edges or wanted.may_read is not None
            thread = None
            if is_edge or number in keyless:
                thread = unreadable.open(self._threads.head, number, is_indexed=True)
            count += not is_edge or (thread is not None and wanted.fits(thread))
        return count

    def checkpoints(
        self, request: ListCheckpointsRequest, may_read: MayRead | None = None, taken_bytes: int = 0
    ) -> ListCheckpointsResponse:
        """Returns a page of versions, newest first. ``may_read``: of all threads, leaves out those that may not be
        read. ``taken_bytes``: what the page has already."""
        if request.thread == ALL_THREADS:
            return self._of_namespace(request, may_read, taken_bytes)
        return self._of_thread(request)

    def _of_thread(self, request: ListCheckpointsRequest) -> ListCheckpointsResponse:
        context, binding = self._context, bare(request, "page_size")
        size = request.page_size or PAGE_SIZE
        answer, page = ListCheckpointsResponse(), _Page(min(size, STATES_MAX) if request.include_states else size)
        with context.engine.read() as txn:
            thread = self._threads.get(txn, request.namespace, request.thread)
            below = thread.head.last_version + 1
            if request.page_token:
                (below,) = _VERSION.unpack(context.tokens.unpack(binding, request.page_token))
            elif request.HasField("before"):
                below = resolve(txn, thread, request.before, request.branch or MAIN, "before")
            branch = thread.branches.get(request.branch)
            if request.branch and branch is None:
                return answer
            walk, looked_at = Walk(thread, branch, below), 0
            unreadable = UnreadableParts(answer.unreadable_parts, are_skipped=request.skip_unreadable)
            while walk.version:
                looked_at += 1
                parent, name = 0, ""  # of a damaged version: then the walk looks at every version below
                with unreadable.skipping(version=walk.version):
                    view = view_entry(thread, replay.read_version(txn, thread, walk.version))
                    parent, name = view.parent_version, view.branch
                    if _fits(view, request):
                        answer.checkpoints.append(view)
                        page.add(view)
                walk.step(parent, name)
                if walk.version and page.is_full(looked_at, VERSIONS_MAX):
                    answer.next_page_token = context.tokens.pack(binding, _VERSION.pack(walk.version + 1))
                    break
            if answer.checkpoints and (request.include_states or request.include_effects):
                answer.contents.extend(self._contents.make(txn, thread, request, answer.checkpoints))
                if left_out := answer.checkpoints[len(answer.contents) :]:
                    answer.next_page_token = context.tokens.pack(binding, _VERSION.pack(left_out[0].version + 1))
                    del answer.checkpoints[len(answer.contents) :]
        return answer

    def _of_namespace(
        self, request: ListCheckpointsRequest, may_read: MayRead | None, taken_bytes: int
    ) -> ListCheckpointsResponse:
        context, binding = self._context, bare(request, "page_size")
        answer, page = ListCheckpointsResponse(), _Page(request.page_size, taken_bytes)
        before = context.tokens.unpack(binding, request.page_token) if request.page_token else None
        keys = context.keystore.namespace(request.namespace)
        if keys is None:
            return answer
        with context.engine.read() as txn:
            if request.labels:
                label = keys.names.label(*min(request.labels.items()))
                prefix = layout.label_prefix(keys.tag, label)
                places = ((key, *layout.unpack_label(key)) for key, _ in rows_before(txn, prefix, before))
            else:
                places = ((key, *_feed_place(value)) for key, value in rows_before(txn, b"W", before))
            unreadable = Unreadable(self._context, txn, keys.id)
            for looked_at, (key, number, sequence) in enumerate(places, 1):
                view = self._view(txn, request, number, sequence, unreadable, may_read)
                if view is not None and _fits(view, request):
                    answer.checkpoints.append(view)
                    page.add(view)
                if page.is_full(looked_at, VERSIONS_MAX):
                    answer.next_page_token = context.tokens.pack(binding, key)
                    break
            answer.unreadable.extend(_told(unreadable, may_read))
        return answer

    def _view(
        self, txn: lmdb.Transaction, request: ListCheckpointsRequest, number: int, sequence: int,
        unreadable: Unreadable, may_read: MayRead | None,
    ) -> Checkpoint | None:  # fmt: skip
        thread = unreadable.open(self._threads.by_number, number)
        if thread is None or thread.identity.namespace != request.namespace:
            return None
        if may_read is not None and not may_read(thread.name):
            return None
        try:
            entry = find_entry(txn, thread, sequence)
            if entry is None or not entry.header.version or entry.header.version in thread.pruned:
                return None
            if request.branch and not belongs(thread.branches.get(request.branch), entry.header.version):
                return None
            return view_entry(thread, entry)
        except Corrupt as error:
            unreadable.note_part(thread, error)
            return None


def _told(unreadable: Unreadable, may_read: MayRead | None) -> list[UnreadableThread]:
    """Returns the damaged threads that a reader may be told of: of those whose name is not known, nobody can say."""
    found = unreadable.listed()
    return found if may_read is None else [each for each in found if each.thread and may_read(each.thread)]


def _feed_place(row: bytes) -> tuple[int, int]:
    """Returns the thread number and sequence of a feed row; zeros if the row is damaged, which Verify reports."""
    try:
        return layout.unpack_feed(row)
    except Corrupt as error:
        log_damage("row left out of a list", error)
        return 0, 0


def find_entry(txn: lmdb.Transaction, thread: Thread, sequence: int) -> Entry | None:
    """Returns an entry that an index row names; None if the entry was removed meanwhile."""
    entry = next(replay.read_entries(txn, thread.identity, sequence), None)
    return entry if entry is not None and entry.header.sequence == sequence else None


class _Page:
    """The fill of a page. A page ends by count, by bytes, or by the number of rows that were looked at."""

    def __init__(self, page_size: int, taken_bytes: int = 0) -> None:
        self._left = page_size or PAGE_SIZE
        self._size_bytes = taken_bytes

    def add(self, view: Message) -> None:
        """Counts one more item."""
        self._left -= 1
        self._size_bytes += view.ByteSize()

    def is_full(self, looked_at: int, rows_max: int = ROWS_MAX) -> bool:
        """Returns whether the page must end."""
        return self._left <= 0 or self._size_bytes >= page_bytes() or looked_at >= rows_max


class _Wanted:
    """The conditions of a request, unpacked once, because a page may compare them with many heads."""

    def __init__(self, request: ListThreadsRequest | CountThreadsRequest, may_read: MayRead | None) -> None:
        self.may_read = may_read
        self.after_us = request.updated_after.ToMicroseconds() if request.HasField("updated_after") else None
        self.before_us = request.updated_before.ToMicroseconds() if request.HasField("updated_before") else None
        self._statuses, self._labels, self._name_prefix = set[int](), dict[str, str](), ""
        self._min_step: int | None = None
        self._max_step: int | None = None
        self._has_versions: bool | None = None
        self._has_records: bool | None = None
        if isinstance(request, ListThreadsRequest):
            self._statuses, self._labels = set(request.statuses), dict(request.labels)
            self._name_prefix = request.name_prefix
            self._min_step = request.min_step if request.HasField("min_step") else None
            self._max_step = request.max_step if request.HasField("max_step") else None
            self._has_versions = request.has_versions if request.HasField("has_versions") else None
            self._has_records = request.has_records if request.HasField("has_records") else None

    def fits(self, thread: Thread) -> bool:
        """Returns whether a thread meets all conditions, and may be read."""
        return (self.may_read is None or self.may_read(thread.name)) and self._fits(thread.head)

    def listed(self, unreadable: Unreadable) -> list[UnreadableThread]:
        """Returns the damaged threads that may be told."""
        return _told(unreadable, self.may_read)

    def _fits(self, head: ThreadHead) -> bool:
        if self._statuses and (head.status or WORK_STATUS_RUNNING) not in self._statuses:
            return False
        if self._min_step is not None and not (head.HasField("step") and head.step >= self._min_step):
            return False
        if self._max_step is not None and not (head.HasField("step") and head.step <= self._max_step):
            return False
        if self._has_versions is not None and (head.last_version > 0) != self._has_versions:
            return False
        if self._has_records is not None and (head.records > 0) != self._has_records:
            return False
        if self.after_us is not None and head.update_time_us < self.after_us:
            return False
        if self.before_us is not None and head.update_time_us >= self.before_us:
            return False
        labels = head.options.labels
        return all(labels.get(key) == value for key, value in self._labels.items()) and head.thread.startswith(
            self._name_prefix
        )


def _fits(view: Checkpoint, request: ListCheckpointsRequest) -> bool:
    return (
        (not request.branch or view.branch == request.branch)
        and (not request.statuses or view.status in request.statuses)
        and all(view.labels.get(key) == value for key, value in request.labels.items())
        and matches(view.attributes, request.filters)
    )


def _tails(txn: lmdb.Transaction, keys: NamespaceKeys, statuses: Iterable[int], start: bytes) -> Iterator[bytes]:
    """Yields the tails of the list keys of a namespace (of these statuses, if any), newest first, from ``start`` on."""
    prefixes = [layout.status_prefix(keys.tag, keys.names.status(status)) for status in set(statuses)]
    return merge(*(_tails_from(txn, prefix, start) for prefix in prefixes or [layout.updated_prefix(keys.tag)]))


def _tails_from(txn: lmdb.Transaction, prefix: bytes, start: bytes) -> Iterator[bytes]:
    cursor, end = txn.cursor(), len(prefix)
    if cursor.set_range(prefix + start):
        for key in cursor.iternext(keys=True, values=False):
            if key[:end] != prefix:
                return
            yield bytes(key[end:])


def _count_until(cursor: lmdb.Cursor, end: bytes) -> int:
    """Counts the keys from the cursor's place on that are below ``end``."""
    count = 0
    for count, key in enumerate(cursor.iternext(keys=True, values=False)):
        if bytes(key) >= end:
            return count
    return count + 1


def rows_before(txn: lmdb.Transaction, prefix: bytes, before: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    """Yields the rows with a prefix in descending order, from below a key on."""
    cursor = txn.cursor()
    found = cursor.prev() if cursor.set_range(before or layout.after(prefix)) else cursor.last()
    while found:
        key, value = cursor.item()
        if key[: len(prefix)] != prefix:
            return
        yield bytes(key), bytes(value)
        found = cursor.prev()
