"""Threads by label: the search for the threads that have some labels.

A row of the index leads from a label to a thread. It has no time, so it moves only if the labels of the thread change,
and a save costs nothing. The time by which lists are ordered is in the sealed head. If few threads have the rarest
label, a list reads their heads and sorts them. If many have it, a list goes through the threads by time, and asks the
index about each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import lmdb

from stateward_sidecar.storage import layout
from stateward_sidecar.storage.keystore import NamespaceKeys
from stateward_sidecar.store.thread.thread import Thread, rows
from stateward_sidecar.store.thread.times import SECOND_US

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
