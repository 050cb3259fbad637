"""After the key of a namespace was changed: what the old one wraps or seals on this disk is wrapped and sealed with the
new one, and then the old one is destroyed here.

    threads     their slots in the key store, a part of the file at a time, between other writes
    deletions   their rows `D`
    held ones   only while a client sends the session key: until then the old key stays
    archive     what is in the bucket is no matter of this disk. The old key stays until the archive has dropped it

Every step may be repeated, and may end anywhere: the next start, or the next look at the namespace's object in the
archive, continues.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import lmdb

from stateward_sidecar import security
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.keystore import FIRST_SLOT
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.storage.queue import Write
from stateward_sidecar.store.journal.journal import open_deletion, seal_deletion
from stateward_sidecar.store.thread.blocks import rows_from
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.telemetry import guarded

SLOTS_AT_ONCE = 256
ROWS_AT_ONCE = 256


class Rewrapper:
    """Runs in the background."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._done: dict[bytes, tuple[int, frozenset[int]]] = {}
        self._admitted: set[bytes] = set()

    def begin(self, keys: NamespaceKeys, kept: frozenset[int]) -> None:
        """Does what is left to do for a namespace. ``kept``: generations that the archive has."""
        state = keys.generation, kept
        if len(keys.generations) > 1 and self._done.get(keys.id) != state:
            self._done[keys.id] = state
            with suppress(RuntimeError):  # the daemon is stopping; the next start continues
                self._context.background.submit(self._run, keys, kept)

    def begin_all(self) -> None:
        """The same for all namespaces of a store without an archive."""
        keystore = self._context.keystore
        for identity in keystore.changed_namespaces():
            keys = keystore.namespace_by_id(identity)
            if keys is not None:
                self.begin(keys, frozenset())

    def admit_held(
        self, uid: bytes, keys: NamespaceKeys, session_key: bytes, share: Callable[[bytes], object] | None = None
    ) -> None:
        """A client has sent the session key of a held thread whose key an older generation wraps. ``share`` puts the
        new slot into the archive, first: what fails there is tried again by the next call."""
        if uid not in self._admitted:
            self._admitted.add(uid)
            with suppress(RuntimeError):  # the daemon is stopping; the next call tries again
                self._context.background.submit(self._rewrap_held, uid, keys, session_key, share)

    def _rewrap_held(
        self, uid: bytes, keys: NamespaceKeys, session_key: bytes, share: Callable[[bytes], object] | None
    ) -> None:
        keystore = self._context.keystore

        def run() -> None:
            data_key = keystore.unwrap_held(uid, keys, session_key)
            if data_key is None:
                return
            slot = keystore.wrap_thread(uid, keys, data_key, session_key)
            if share is not None:
                share(slot)
            self._write(partial(keystore.replace_held, uid, slot))
            self.begin(keys, self._done.pop(keys.id, (0, frozenset[int]()))[1])

        guarded("change of a held thread's key", run)
        self._admitted.discard(uid)

    def _run(self, keys: NamespaceKeys, kept: frozenset[int]) -> None:
        if not guarded("change of a namespace's key", self._change, keys, kept):
            self._done.pop(keys.id, None)  # the next look at the archive, or the next start, tries again

    def _change(self, keys: NamespaceKeys, kept: frozenset[int]) -> None:
        keystore = self._context.keystore
        at: int | None = FIRST_SLOT
        while at is not None:
            at = self._write(partial(keystore.rewrap_threads, keys, at, SLOTS_AT_ONCE))
        cursor: int | None = 0
        while cursor is not None:
            cursor = self._submit(partial(_reseal, keys, cursor))
        gone = self._write(partial(keystore.forget_generations, keys.id, kept))
        if gone:
            security.note(
                security.CHANGED, "an old key of a namespace was destroyed on this disk", namespace_id=keys.id.hex(),
                generations=sorted(gone),
            )  # fmt: skip

    def _write(self, change: Callable[[], Any]) -> Any:
        """Changes the key store, durably."""

        def run(txn: lmdb.Transaction) -> Any:
            del txn
            found = change()
            self._context.keystore.sync()
            return found

        return self._submit(run)

    def _submit(self, change: Callable[[lmdb.Transaction], Any]) -> Any:
        write = Write(run=lambda txn, _: change(txn), frees_space=True, background=True)
        return self._context.writer.submit(write, wait=True).wait()


def _reseal(keys: NamespaceKeys, first: int, txn: lmdb.Transaction) -> int | None:
    """Seals some deletions anew. Returns where the next ones begin; None at the end."""
    following = None
    changed: list[tuple[bytes, bytes]] = []
    for number, (key, row) in enumerate(rows_from(txn, layout.deletion_key(first), b"D")):
        at = layout.tail_number(key)
        if number == ROWS_AT_ONCE:
            following = at
            break
        try:
            record, time_us = open_deletion(keys, at, bytes(row)), layout.deletion_time_us(row)
        except Corrupt:
            continue  # Verify tells it
        if record is not None:
            changed.append((bytes(key), layout.pack_deletion(time_us, keys.id, seal_deletion(keys, at, record))))
    for key, value in changed:
        txn.put(key, value)
    return following
