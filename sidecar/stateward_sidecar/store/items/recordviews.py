"""The records of a thread as they are at one moment, and the comparison of attributes with the conditions of a list.

A view has a transaction, the thread as the transaction shows it, and the order of the records. Thread and order in
memory change while a transaction is open. An order is chosen by the sum in the head that the transaction shows, so a
record that a commit moves or renames meanwhile is in the view once.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import lmdb

from stateward.storage.v1.head_pb2 import RecordRow
from stateward.v1.checkpoint_pb2 import AttributeFilter, AttributeValue
from stateward_sidecar.errors import Corrupt, QueueFull, StatewardError
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.kinds.record import (
    RECORD_ROWS,
    SUM_BYTES,
    check_here,
    compare_sum,
    has_records,
    is_checked,
    live_row,
    mark_checked,
    record_floor,
)
from stateward_sidecar.store.thread.context import LOOKS, Context
from stateward_sidecar.store.thread.recordorder import Item, RecordOrder, RecordOrders, item_of
from stateward_sidecar.store.thread.thread import Thread, rows
from stateward_sidecar.store.thread.threads import NameLock, Threads

EQUAL = (AttributeFilter.OPERATOR_UNSPECIFIED, AttributeFilter.OPERATOR_EQ, AttributeFilter.OPERATOR_NE)
_COMPARE: dict[int, Callable[[Any, Any], bool]] = {
    AttributeFilter.OPERATOR_GT: operator.gt,
    AttributeFilter.OPERATOR_GTE: operator.ge,
    AttributeFilter.OPERATOR_LT: operator.lt,
    AttributeFilter.OPERATOR_LTE: operator.le,
}


def matches(attributes: Mapping[str, AttributeValue], filters: Iterable[AttributeFilter]) -> bool:
    """Returns whether a record or version with these attributes meets all conditions."""
    return all(_meets(attributes, each) for each in filters)


def _meets(attributes: Mapping[str, AttributeValue], wanted: AttributeFilter) -> bool:
    # A look-up in a map of messages makes a missing item, so ask first.
    kind, value = _typed(attributes[wanted.key]) if wanted.key in attributes else ("", None)
    other_kind, other = _typed(wanted.value)
    is_comparable = kind == other_kind
    if wanted.operator in EQUAL:
        is_equal = is_comparable and value == other
        return is_equal != (wanted.operator == AttributeFilter.OPERATOR_NE)
    return is_comparable and _COMPARE[wanted.operator](value, other)


def _typed(value: AttributeValue) -> tuple[str, Any]:
    """Returns type and content. Whole numbers and fractions are of one type; texts compare as their bytes do."""
    kind = value.WhichOneof("value") or ""
    content = getattr(value, kind) if kind else None
    return ("number" if kind in ("int_value", "double_value") else kind), content


DEAD_ROWS_A_WRITE = 500
# A commit is shown as soon as its callbacks have run.
SHOWN_WITHIN_S, SHOWN_PAUSE_S = 1.0, 0.0002
_NONE = RecordOrder((), b"")


@dataclass(frozen=True, slots=True)
class RecordView:
    """What belongs together. ``order`` is empty if it was not asked for."""

    txn: lmdb.Transaction
    thread: Thread
    order: RecordOrder

    def row(self, item: Item) -> RecordRow:
        """Returns the row of an item of the order. Raises Corrupt."""
        row = live_row(self.txn, self.thread, item.row_key)
        if row is None:
            raise Corrupt("the row of a record is missing", self.thread.name)
        return row


class RecordViews:
    """Makes views, and the orders that they need."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads
        # Those who need the same order wait for the one who makes it.
        self._making = NameLock()

    @contextmanager
    def view(self, namespace: str, name: str, *, needs_order: bool = True) -> Iterator[RecordView | None]:
        """A view during the block; None = there is no such thread. Raises Corrupt or HistoryElsewhere.

        ``needs_order``: False = the rows are only compared with the head's sum, unless that was done before.
        """
        with ExitStack() as stack:
            yield self._look(stack, lambda txn: self._threads.find(txn, namespace, name), needs_order=needs_order)

    @contextmanager
    def salvaged(self, namespace: str, name: str) -> Iterator[tuple[RecordView | None, list[Corrupt]]]:
        """A view of the records that can be read, and the damage by which others may be missing.

        For lists that name the damage. A write must not decide by such a view.
        """
        with ExitStack() as stack:
            try:
                found = self._look(stack, lambda txn: self._threads.find(txn, namespace, name), needs_order=True)
                damage = list[Corrupt]()
            except Corrupt:
                stack.close()
                found, damage = self._salvage(stack, namespace, name)
            yield found, damage

    def _salvage(self, stack: ExitStack, namespace: str, name: str) -> tuple[RecordView | None, list[Corrupt]]:
        txn = stack.enter_context(self._context.engine.read())
        live = self._threads.find(txn, namespace, name)
        if live is None:
            return None, []
        thread = self._threads.seen(txn, live)
        check_here(thread)
        items, damage, total, floor = list[Item](), list[Corrupt](), 0, record_floor(thread)
        for key, record in rows(txn, thread.identity.keys.all_of(b"K")):
            try:
                row = RECORD_ROWS.open(thread.identity, key, record)
            except Corrupt:
                damage.append(Corrupt("a record cannot be opened, and the damage hides its key", thread.name))
                continue
            if row.sequence > floor:
                items.append(item_of(key, row))
                total ^= RECORD_ROWS.part(thread.identity, key, row)
        if not damage:
            try:
                compare_sum(thread, total)
            except Corrupt as error:
                damage.append(error)
        return RecordView(txn, thread, RecordOrder(items, b"")), damage

    @contextmanager
    def numbered(self, number: int) -> Iterator[RecordView | None]:
        """A view without order of the thread with a number, whatever its name leads to by now. Raises as ``view``."""
        with ExitStack() as stack:
            yield self._look(stack, lambda txn: self._threads.by_number(txn, number), needs_order=False)

    def _look(
        self, stack: ExitStack, find: Callable[[lmdb.Transaction], Thread | None], *, needs_order: bool
    ) -> RecordView | None:
        for look in range(1, LOOKS * LOOKS + 1):
            txn = stack.enter_context(self._context.engine.read())
            live = find(txn)
            if live is None:
                return None
            thread = self._threads.seen(txn, live)
            if not has_records(thread.head):
                return RecordView(txn, thread, _NONE)
            check_here(thread)
            if not needs_order and is_checked(thread):
                return RecordView(txn, thread, _NONE)
            orders, order = self._known(txn, thread)
            if order is not None:
                return RecordView(txn, thread, order)
            stack.close()
            # Another look finds the order, if commits came in between. It finds none if the thread was fetched anew.
            made = self._make(stack, live, orders) if orders is None or look % LOOKS == 0 else None
            if made is not None:
                return made
        raise QueueFull("the records change too often to be read; try again")

    def _known(self, txn: lmdb.Transaction, thread: Thread) -> tuple[RecordOrders | None, RecordOrder | None]:
        """Returns the orders in memory, and the one of them that belongs to a thread as it was seen."""
        number, writer, cache = txn.id(), self._context.writer, self._context.cache
        orders = cache.record_orders(thread.number)
        found = orders.find(thread.head.record_sum) if orders is not None else None
        if orders is not None and found is None:
            end = time.monotonic() + SHOWN_WITHIN_S
            while writer.shown < number and time.monotonic() < end:  # memory does not show this commit yet
                time.sleep(SHOWN_PAUSE_S)
            orders = cache.record_orders(thread.number)
            found = orders.find(thread.head.record_sum) if orders is not None else None
        return orders, found

    def _make(self, stack: ExitStack, live: Thread, old: RecordOrders | None) -> RecordView | None:
        """Makes the order of all rows in place of ``old``. Returns None if somebody else did. Raises Corrupt."""
        cache, number, order = self._context.cache, live.number, None
        with self._making.of(number):
            if cache.record_orders(number) is not old:
                return None
            missed = cache.await_record_order(number)
            try:
                txn = stack.enter_context(self._context.engine.read())
                view, dead = self._read(txn, live)
                order = view.order
            finally:
                cache.put_record_order(number, order, missed)
        if live.is_deleted:  # meanwhile, and nothing of it may stay in memory
            cache.drop_thread(number)
        self._drop_dead(live, dead)
        return view

    def _read(self, txn: lmdb.Transaction, live: Thread) -> tuple[RecordView, list[bytes]]:
        """Reads all rows, and compares them with the head. Returns the view and the keys of rows below the floor."""
        thread = self._threads.seen(txn, live)
        check_here(thread)
        items, dead, total, floor = list[Item](), list[bytes](), 0, record_floor(thread)
        for key, row in RECORD_ROWS.rows(txn, thread.identity):
            if row.sequence > floor:
                items.append(item_of(key, row))
                total ^= RECORD_ROWS.part(thread.identity, key, row)
            else:
                dead.append(key)
        mark_checked(thread, total)
        live.records_checked = True
        return RecordView(txn, thread, RecordOrder(items, total.to_bytes(SUM_BYTES, "big"))), dead

    def _drop_dead(self, thread: Thread, dead: list[bytes]) -> None:
        """Removes rows below the floor, which an old copy of the thread had. They count for nothing."""
        identity = thread.identity

        def run(txn: lmdb.Transaction, batch: Batch, some: list[bytes]) -> None:
            draft = self._threads.draft(txn, batch, identity.namespace, identity.name)
            if draft is None or draft.identity.number != identity.number:
                return
            for key in some:
                if live_row(txn, draft, key) is None:  # else it was written again since
                    txn.delete(key)

        for at in range(0, len(dead), DEAD_ROWS_A_WRITE):
            with suppress(StatewardError):  # the queue is full, or the daemon stops; the next start finds them
                some = dead[at : at + DEAD_ROWS_A_WRITE]
                self._context.writer.submit(Write(run=partial(run, some=some), background=True, frees_space=True))
