"""Reads records: by key, in order, and the prefixes that keys share."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from math import inf

import lmdb

from stateward.storage.v1.head_pb2 import RecordRow
from stateward.v1.record_pb2 import StoredRecord
from stateward.v1.record_service_pb2 import (
    RECORD_ORDER_NEWEST,
    DeleteRecordsRequest,
    GetRecordsRequest,
    GetRecordsResponse,
    ListRecordPrefixesRequest,
    ListRecordPrefixesResponse,
    ListRecordsRequest,
    ListRecordsResponse,
)
from stateward.v1.state_pb2 import Value
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.items.recordputs import ToDelete, is_refresh_due
from stateward_sidecar.store.items.recordviews import RecordView, RecordViews, matches
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.kinds.record import (
    find_record,
    has_records,
    is_checked,
    is_expired,
    open_batch,
    record_key,
    value_sequence,
    view_record,
)
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.paging import bare, page_bytes
from stateward_sidecar.store.thread.recordorder import Item, RecordOrder
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.thread.threads import Threads, not_found
from stateward_sidecar.store.thread.unreadable import UnreadableParts

PAGE_SIZE = 100
# A page ends after this many records that did not match.
MISSED_MAX = 5000
# The event loop reads no more records than these, and no more bytes: opening one takes about 50 µs.
HOT_RECORDS_MAX, HOT_BYTES_MAX = 16, 64 << 10
# Rows of more records are compared with the head's sum on a worker, before a write needs them.
CHECKED_BY_WRITER_MAX = 500
# How many keys DeleteRecords deletes in one call.
DELETED_MAX = 1000
REVISION_MAX = 2**63 - 1
# How many opened entries a read keeps: several records may share one.
OPENED_MAX = 64
_POSITION = struct.Struct(">IQ")


@dataclass(slots=True)
class Page:
    """An answer, and the keys of the records in it whose TTL a refresh would begin anew."""

    answer: GetRecordsResponse | ListRecordsResponse
    due: list[str] = field(default_factory=list)
    size_bytes: int = 0
    uid: str = ""  # of the thread that was read

    def add(self, view: StoredRecord, row: RecordRow, now_us: int) -> None:
        """Adds a record."""
        self.answer.records.append(view)
        self.size_bytes += view.ByteSize()
        if is_refresh_due(row.facts, now_us):
            self.due.append(row.facts.key)

    def take_times(self, expiry: dict[str, int]) -> None:
        """Shows the times of expiry after a refresh."""
        for record in self.answer.records:
            if record.key in expiry:
                record.expire_time.FromMicroseconds(expiry[record.key])


class _Values:
    """Reads values in one transaction."""

    def __init__(self, txn: lmdb.Transaction, thread: Thread) -> None:
        self._txn = txn
        self._identity = thread.identity
        self._opened: dict[int, dict[str, Value]] = {}

    def view(self, row: RecordRow, *, without_value: bool) -> StoredRecord:
        """Returns a record as it is shown. Raises Corrupt."""
        if without_value:
            return view_record(row.facts)
        value = self._entry(value_sequence(row)).get(row.facts.key)
        if value is None:
            raise Corrupt("the entry of a record has no value for it", self._identity.name)
        return view_record(row.facts, value)

    def _entry(self, sequence: int) -> dict[str, Value]:
        found = self._opened.get(sequence)
        if found is None:
            entry = replay.read_entry(self._txn, self._identity, sequence)
            batch = open_batch(self._identity, entry)
            found = {change.facts.key: change.value for change in batch.changes if change.HasField("value")}
            self._opened[sequence] = found
            while len(self._opened) > OPENED_MAX:
                del self._opened[next(iter(self._opened))]
        return found


class RecordList:
    """The reading verbs. A thread that does not exist has no records."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads
        self._views = RecordViews(context, threads)

    # -- by key ---------------------------------------------------------------------------------------------------

    def get_hot(self, request: GetRecordsRequest) -> Page | None:
        """Returns the answer if the event loop can make it: few small records of a thread in memory. Else None.

        Raises the errors of ``get``.
        """
        thread = self._threads.cached(request.namespace, request.thread)
        if thread is None or not is_checked(thread) or len(request.keys) > HOT_RECORDS_MAX:
            return None
        with self._context.engine.read() as txn:
            return self._get(txn, self._threads.seen(txn, thread), request, HOT_BYTES_MAX)

    def get(self, request: GetRecordsRequest) -> Page:
        """Returns records by their keys, all as they were at one moment. Raises Corrupt or HistoryElsewhere."""
        with self._views.view(request.namespace, request.thread, needs_order=False) as view:
            page = self._get(view.txn, view.thread, request) if view is not None else Page(GetRecordsResponse())
        assert page is not None
        return page

    def _get(
        self, txn: lmdb.Transaction, thread: Thread, request: GetRecordsRequest, most_bytes: float = inf
    ) -> Page | None:
        """Returns None if the values have more than ``most_bytes``."""
        answer, now_us = GetRecordsResponse(), self._context.clock.now_us()
        page = Page(answer, uid=thread.identity.uid_text)
        if not has_records(thread.head):
            return page
        values = _Values(txn, thread)
        for at, key in enumerate(request.keys):
            if page.size_bytes >= page_bytes():
                answer.rest.extend(request.keys[at:])
                break
            row = find_record(txn, thread, record_key(thread.identity, key))
            if row is None or is_expired(row.facts, now_us):
                continue
            most_bytes -= row.facts.value_bytes
            if most_bytes < 0:
                return None
            page.add(values.view(row, without_value=request.without_values), row, now_us)
        return page

    # -- in order -------------------------------------------------------------------------------------------------

    def read(self, request: ListRecordsRequest) -> Page:
        """Returns a page of records in order, all as they were at one moment.

        Raises InvalidField for the token, Corrupt or HistoryElsewhere.
        """
        answer, now_us = ListRecordsResponse(), self._context.clock.now_us()
        page = Page(answer)
        binding = bare(request, "page_size", "refresh_ttl")
        position = self._context.tokens.unpack(binding, request.page_token) if request.page_token else b""
        skip, after = request.skip, None
        if position:
            skip, revision = _POSITION.unpack_from(position)
            after = revision, position[_POSITION.size :].decode()
        most, missed = request.page_size or PAGE_SIZE, 0
        unreadable = UnreadableParts(answer.unreadable_parts, are_skipped=request.skip_unreadable)
        with self._view(request) as (view, damage):
            unreadable.add_nameless(damage)
            if view is None:
                return page
            page.uid = view.thread.identity.uid_text
            values, last = _Values(view.txn, view.thread), after
            needed = skip + most + 1 if not request.filters else None
            for item in _in_order(view.order, request, after, needed):
                if len(answer.records) >= most or page.size_bytes >= page_bytes() or missed >= MISSED_MAX:
                    assert last is not None
                    position = _POSITION.pack(skip, last[0]) + last[1].encode()
                    answer.next_page_token = self._context.tokens.pack(binding, position)
                    break
                last = item.revision, item.key
                if is_expired(item, now_us):
                    missed += 1
                    continue
                if skip and not request.filters:
                    skip -= 1
                    continue
                with unreadable.skipping(key=item.key):
                    missed += 1  # unless it is added
                    row = view.row(item)
                    if not matches(row.facts.attributes, request.filters):
                        continue
                    if skip:
                        skip -= 1
                        continue
                    page.add(values.view(row, without_value=request.without_values), row, now_us)
                    missed -= 1
        return page

    def _view(
        self, request: ListRecordsRequest | ListRecordPrefixesRequest
    ) -> AbstractContextManager[tuple[RecordView | None, list[Corrupt]]]:
        """What a list shows, and the damage by which it may lack something."""
        if request.skip_unreadable:
            return self._views.salvaged(request.namespace, request.thread)
        return self._whole(request.namespace, request.thread)

    @contextmanager
    def _whole(self, namespace: str, name: str) -> Iterator[tuple[RecordView | None, list[Corrupt]]]:
        with self._views.view(namespace, name) as view:
            yield view, []

    def prefixes(self, request: ListRecordPrefixesRequest) -> ListRecordPrefixesResponse:
        """Returns a page of the prefixes that keys share. Raises InvalidField, Corrupt or HistoryElsewhere."""
        answer, now_us = ListRecordPrefixesResponse(), self._context.clock.now_us()
        binding, after = bare(request, "page_size"), ""
        if request.page_token:
            after = self._context.tokens.unpack(binding, request.page_token).decode()
        with self._view(request) as (view, damage):
            UnreadableParts(answer.unreadable_parts, are_skipped=True).add_nameless(damage)
            if view is None:
                return answer
            order = view.order
        counts = dict[str, int]()
        for item in order.walk(request.prefix):
            if not is_expired(item, now_us):
                prefix = _prefix_of(item.key, request.prefix, request.delimiter, request.max_depth)
                counts[prefix] = counts.get(prefix, 0) + 1
        most = request.page_size or PAGE_SIZE
        behind = (prefix for prefix in counts if not request.page_token or prefix > after)
        shown = nsmallest(most + 1, behind)
        for prefix in shown[:most]:
            answer.prefixes.add(prefix=prefix, records=counts[prefix])
        if len(shown) > most:
            answer.next_page_token = self._context.tokens.pack(binding, shown[most - 1].encode())
        return answer

    def to_delete(self, request: DeleteRecordsRequest) -> ToDelete:
        """Returns what a DeleteRecords deletes.

        Records that have expired are among them. Raises ThreadNotFound, Corrupt or HistoryElsewhere.
        """
        with self._views.view(request.namespace, request.thread) as view:
            if view is None:
                raise not_found(request.namespace, request.thread)
            order, uid = view.order, view.thread.identity.uid_text
        most = request.max_revision or REVISION_MAX
        selected = (item for item in order.walk(request.prefix) if item.revision <= most)
        items = list(islice(selected, DELETED_MAX + 1))
        return ToDelete({item.key: item.revision for item in items[:DELETED_MAX]}, len(items) > DELETED_MAX, uid)

    def needs_check(self, namespace: str, name: str) -> bool:
        """Returns whether a write should wait for ``check``, so that it does not hold the writer for long."""
        thread = self._threads.cached(namespace, name)
        return thread is None or not (is_checked(thread) or thread.head.records <= CHECKED_BY_WRITER_MAX)

    def check(self, namespace: str, name: str) -> None:
        """Makes the order of a thread with many records, and so compares its rows with the head's sum."""
        with self._context.engine.read() as txn:
            thread = self._threads.find(txn, namespace, name)
        if thread is not None and thread.head.records > CHECKED_BY_WRITER_MAX and not is_checked(thread):
            with self._views.view(namespace, name):
                pass


def _in_order(
    order: RecordOrder, request: ListRecordsRequest, after: tuple[int, str] | None, needed: int | None
) -> Iterator[Item]:
    """Yields the records of a list behind a place. ``needed``: how many are looked at, at most, if that is known."""
    if request.order != RECORD_ORDER_NEWEST:
        return order.walk(request.prefix, after[1] if after is not None else None)
    found = list(order.walk(request.prefix))
    if after is not None:
        found = [item for item in found if _by_age(item) > (-after[0], after[1])]
    if needed is not None and needed < len(found) // 2:
        return _newest(found, needed)
    return iter(sorted(found, key=_by_age))


def _newest(found: list[Item], needed: int) -> Iterator[Item]:
    """Yields all records, the newest first. Those beyond ``needed`` are sorted only if somebody asks for them."""
    yield from nsmallest(needed, found, key=_by_age)
    yield from sorted(found, key=_by_age)[needed:]


def _by_age(item: Item) -> tuple[int, str]:
    return -item.revision, item.key


def _prefix_of(key: str, prefix: str, delimiter: str, max_depth: int) -> str:
    """Returns the key up to its last delimiter, or up to the delimiter number ``max_depth`` behind the prefix."""
    end = at = len(prefix)
    depth = 0
    while (found := key.find(delimiter, at)) >= 0 and not 0 < max_depth <= depth:
        end = at = found + len(delimiter)
        depth += 1
    return key[:end]
