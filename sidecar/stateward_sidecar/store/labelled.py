"""Threads by label: the search for the threads that have some labels, and the index of stores made without one.

A row of the index leads from a label to a thread. It has no time, so it moves only if the labels of the thread change,
and a save costs nothing. The time by which lists are ordered is in the sealed head. If few threads have the rarest
label, a list reads their heads and sorts them. If many have it, a list goes through the threads by time, and asks the
index about each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import lmdb

from stateward_sidecar.errors import Corrupt, KeyUnavailable
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.keystore import NamespaceKeys
from stateward_sidecar.storage.queue import Batch, Write
from stateward_sidecar.store.context import Context
from stateward_sidecar.store.journal import labelled_keys
from stateward_sidecar.store.thread import Thread, rows
from stateward_sidecar.store.threads import Threads
from stateward_sidecar.store.times import SECOND_US
from stateward_sidecar.telemetry import log, log_damage

# Reading this many heads takes 30 ms at most.
FEW = 500
THREADS_A_STEP = 100


class Labelled:
    """The threads of a namespace that have some labels, as one transaction sees them.

    Without the index, and without labels, every thread may be one of them.
    """

    def __init__(self, txn: lmdb.Transaction, keys: NamespaceKeys, labels: Mapping[str, str]) -> None:
        self._txn, self._prefixes = txn, list[bytes]()
        if labels and is_indexed(txn):
            names = keys.names
            self._prefixes += [layout.labelled_prefix(keys.tag, names.thread_label(*pair)) for pair in labels.items()]

    def has(self, number: int) -> bool:
        """Returns whether a thread may have all of the labels."""
        return all(self._txn.get(layout.labelled_key(prefix, number)) is not None for prefix in self._prefixes)

    def few(self) -> list[int] | None:
        """Returns the threads that have all of the labels; None if more than ``FEW`` have the rarest one."""
        if not self._prefixes:
            return None
        fewest = min((_first(self._txn, prefix) for prefix in self._prefixes), key=len)
        return [number for number in fewest if self.has(number)] if len(fewest) <= FEW else None


def is_indexed(txn: lmdb.Transaction) -> bool:
    """Returns whether the index has all threads of the store."""
    return txn.get(layout.LABELLED_KEY) is not None


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


class LabelIndexer:
    """Makes the index of a store that was made without one, while calls are served."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads

    def run(self) -> None:
        """Indexes all threads of a store without the index. May be repeated.

        Every write keeps the rows of its thread, from the first start on. Lists use the index once it is complete. It
        stays incomplete if a thread cannot be opened whose key may come back: then the next start tries again.
        """
        with self._context.engine.read() as txn:
            if is_indexed(txn):
                return
            numbers = list(_numbers(txn))
        unknown = 0
        for at in range(0, len(numbers), THREADS_A_STEP):
            unknown += self._write(partial(self._index, numbers[at : at + THREADS_A_STEP]))
        if unknown:
            log.error("the index of labels is not complete: keys of threads are missing", threads=unknown)
            return
        self._write(lambda txn, _: txn.put(layout.LABELLED_KEY, layout.PRESENT))
        log.info("the index of labels is complete", threads=len(numbers))

    def _index(self, numbers: Sequence[int], txn: lmdb.Transaction, batch: Batch) -> int:
        """Puts the rows of some threads. Returns how many of them cannot be opened."""
        del batch
        unknown = 0
        for number in numbers:
            try:
                thread = self._threads.stored_head(txn, number)
            except KeyUnavailable:
                unknown += 1
            except Corrupt as error:
                log_damage("a thread is left out of the index of labels", error, number=number)
            else:
                for key in labelled_keys(thread.identity, thread.head.options) if thread is not None else ():
                    txn.put(key, layout.PRESENT)
        return unknown

    def _write(self, run: Callable[[lmdb.Transaction, Batch], Any]) -> Any:
        return self._context.writer.submit(Write(run=run, background=True), wait=True).wait()


def _numbers(txn: lmdb.Transaction) -> Iterator[int]:
    """Yields the numbers of all threads."""
    cursor = txn.cursor()
    found = cursor.set_range(b"T")
    while found and bytes(cursor.key()[:1]) == b"T":
        number = layout.thread_of(cursor.key())
        yield number
        found = cursor.set_range(layout.after(layout.thread_prefix(number)))
