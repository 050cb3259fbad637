"""Counts what the threads of each namespace take, for their limits (``store/thread/usage.py``).

The count goes along the numbers of the threads, a few at a time. While it reads them, no commit can be published: a
thread that is deleted meanwhile could not be read any more, as its key goes. From then on, commits add their changes of
these threads. So each thread is in the sums once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import lmdb
from google.protobuf.message import DecodeError

from stateward.storage.v1.head_pb2 import ThreadHead
from stateward_sidecar.errors import StatewardError
from stateward_sidecar.storage import layout
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import UID_BYTES, head_uid, load_outline, open_identity
from stateward_sidecar.store.thread.usage import ALL_NUMBERS

# How many numbers of threads are read at a time, which takes about 3 ms, and the rest after it.
NUMBERS, REST_S = 128, 0.0005


def count_all(context: Context, is_over: Callable[[], bool] = lambda: False) -> bool:
    """Counts all threads. Returns False if ``is_over`` says that the daemon stops."""
    usage, publishing = context.usage, context.writer.publishing
    count, at = usage.count, 0
    while at < ALL_NUMBERS:
        if is_over():
            return False
        with publishing, context.engine.read() as txn:
            first = _next(txn, at)
            at = min(first + NUMBERS, ALL_NUMBERS)
            if not usage.count_to(count, at):
                return False
            _count(context, txn, first, at, count)
        time.sleep(REST_S)  # commits that wait come first
    return True


def _count(context: Context, txn: lmdb.Transaction, first: int, end: int, count: int) -> None:
    """Counts the threads from one number to another."""
    while first < end:
        record = txn.get(layout.ThreadKeys(first).head)
        if record is not None:
            namespace, size_bytes = _read(context, txn, first, record)
            if namespace:
                context.usage.add_counted(count, namespace, size_bytes)
        first = _next(txn, first + 1)


def _next(txn: lmdb.Transaction, at: int) -> int:
    """Returns the first number, from one on, that has rows; ``ALL_NUMBERS`` = there is none."""
    if at >= ALL_NUMBERS:
        return ALL_NUMBERS
    cursor = txn.cursor()
    found = cursor.set_range(layout.thread_prefix(at)) and bytes(cursor.key()[:1]) == b"T"
    return layout.thread_of(cursor.key()) if found else ALL_NUMBERS


def _read(
    context: Context, txn: lmdb.Transaction, number: int, record: bytes | memoryview
) -> tuple[str, int]:  # fmt: skip
    """Returns namespace and size of a thread. A head that cannot be read counts for nothing, until it can."""
    uid, keystore = head_uid(record), context.keystore
    try:
        owner = keystore.namespace_of(uid)
        namespace = keystore.namespace_by_id(owner) if owner is not None else None
        if namespace is None:
            return "", 0
        if uid in keystore.held_uids:  # it may be locked
            head = load_outline(txn, namespace, number, uid) or ThreadHead()
        else:
            identity = open_identity(keystore, namespace, number, uid)
            head = ThreadHead.FromString(identity.open_row(identity.keys.head, record[UID_BYTES:]))
    except (StatewardError, DecodeError):
        return "", 0
    return head.namespace, head.stored_bytes
