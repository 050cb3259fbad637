"""Finds threads by name, by number, or inside a batch. Keeps recently used threads in memory.

Names of orphans: `<thread>@@<epoch>`, with `.2`, `.3`, … if this disk has an orphan of that name already.

No thread is ever made under such a name, on any machine. So an orphan never hides a thread of another machine, and the
archive need not be asked about its name. An orphan's name may be longer than the name of a thread, by its ending.

A lock for each name: one call at a time.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import lmdb

from stateward.storage.v1.head_pb2 import ThreadHead
from stateward_sidecar.codec.seal import KEY_BYTES
from stateward_sidecar.errors import (
    Corrupt,
    InvalidField,
    KeyUnavailable,
    Locked,
    QueueFull,
    ThreadNotFound,
    Unclaimed,
)
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import (
    UID_BYTES,
    Identity,
    Thread,
    ThreadDraft,
    head_uid,
    load_archive_row,
    load_head,
    load_seen,
    load_thread,
    open_identity,
    write_archive_row,
)

_ORPHAN = re.compile(r"(.+)@@[0-9]{1,19}(?:\.[0-9]{1,19})?", re.DOTALL)


def orphan_name(thread: str, epoch: int, is_taken: Callable[[str], bool]) -> str:
    """Returns the name of a new orphan of a thread, whose own entries were written in an epoch."""
    name, attempt = f"{thread}@@{epoch}", 1
    while is_taken(name):
        attempt += 1
        name = f"{thread}@@{epoch}.{attempt}"
    return name


def is_orphans(name: str) -> bool:
    """Returns whether only an orphan may have this name."""
    return "@@" in name and _ORPHAN.fullmatch(name) is not None


def bare_name(name: str) -> str:
    """Returns a name without the ending of an orphan's name."""
    found = _ORPHAN.fullmatch(name) if "@@" in name else None
    return found[1] if found is not None else name


def check_new(name: str, field: str = "thread") -> None:
    """Checks that a thread may be made under a name. Raises InvalidField."""
    if is_orphans(name):
        raise reserved(name, field)


def reserved(name: str, field: str = "thread") -> InvalidField:
    """Returns the error for a request that would make a thread under the name of an orphan."""
    return InvalidField(
        field, f"{name!r} ends in @@ and a number: only orphans have such names, so no thread can be made with it"
    )


THREADS_MAX = 4096


class Threads:
    """All threads of the store, loaded on demand."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._threads: OrderedDict[int, Thread] = OrderedDict()
        self._numbers: dict[tuple[str, str], int] = {}
        self._held: dict[bytes, set[int]] = {}
        """Numbers of held threads that were in memory, by uid: the cache may have something of them."""
        self._lock = threading.Lock()
        # Called after a commit with namespace, name, and the thread as readers see it from now on; None = deleted.
        self.on_change: Callable[[str, str, Thread | None], None] = lambda *_: None

    def cached(self, namespace: str, name: str) -> Thread | None:
        """Returns the thread if it is in memory, else None."""
        number = self._numbers.get((namespace, name))
        if number is None:
            return None
        with self._lock:
            thread = self._threads.get(number)
            if thread is not None:
                self._threads.move_to_end(number)
            return thread

    def peek(self, place: tuple[str, str]) -> Thread | None:
        """Returns the thread of namespace and name if it is in memory, without a sign that it is used."""
        number = self._numbers.get(place)
        return self._threads.get(number) if number is not None else None

    def find(self, txn: lmdb.Transaction, namespace: str, name: str) -> Thread | None:
        """Returns the thread of a name; None if there is none. Raises Corrupt or KeyUnavailable."""
        thread = self.cached(namespace, name)
        if thread is not None:
            return thread
        try:
            namespace_keys = self._context.keystore.namespace(namespace)
        except KeyUnavailable as error:
            error.metadata["thread"] = name
            raise
        if namespace_keys is None:
            return None
        row = txn.get(layout.name_key(namespace_keys.names.thread(name)))
        if row is None:
            return None
        try:
            number, uid = layout.unpack_name(row)
        except Corrupt:
            raise Corrupt("cannot read the thread's name row", name) from None
        thread = self._load(txn, namespace_keys, number, uid, name)
        if thread is not None and thread.name != name:
            raise Corrupt(f"the thread's name row leads to thread {thread.name!r}", name)
        return thread

    def get(self, txn: lmdb.Transaction, namespace: str, name: str) -> Thread:
        """Returns the thread of a name. Raises ThreadNotFound, Corrupt or KeyUnavailable."""
        thread = self.find(txn, namespace, name)
        if thread is None:
            raise not_found(namespace, name)
        return thread

    def by_number(self, txn: lmdb.Transaction, number: int) -> Thread | None:
        """Returns the thread of a number; None if it was deleted. Raises Corrupt or KeyUnavailable."""
        thread = self._recent(number)
        if thread is not None:
            return thread
        found = self._locate(txn, number)
        if found is None:
            return None
        namespace_keys, uid = found
        return self._load(txn, namespace_keys, number, uid, None)

    def head(self, txn: lmdb.Transaction, number: int) -> Thread | None:
        """Returns a thread of which only the head is certain; None if it was deleted. Raises Corrupt or KeyUnavailable.

        A thread that is not in memory comes without branches, tags and snapshots, and is not kept in memory. Lists use
        this, because they would push every hot thread out of memory.
        """
        thread = self._threads.get(number)
        return thread if thread is not None else self.stored_head(txn, number)

    def stored_head(self, txn: lmdb.Transaction, number: int) -> Thread | None:
        """Does the same as ``head``, and never returns the thread in memory: for writes in the middle of a batch."""
        found = self._locate(txn, number)
        if found is None:
            return None
        namespace_keys, uid = found
        try:
            identity = open_identity(self._context.keystore, namespace_keys, number, uid)
        except KeyUnavailable:
            if self._is_gone(number):
                return None
            raise
        thread = Thread(identity, load_head(txn, identity))
        thread.take_row(load_archive_row(txn, identity))
        return thread

    def seen(self, txn: lmdb.Transaction, thread: Thread) -> Thread:
        """Returns a thread as a transaction shows it, whatever was committed since: head, pruned, and archive row.

        Reads that compare rows with one of these use it, because a thread in memory may be newer than the rows. Raises
        Corrupt, also if the thread was made or deleted in between.
        """
        writer, number = self._context.writer, txn.id()
        is_shown = writer.shown == number
        shown = Thread(
            thread.identity, thread.head, pruned=thread.pruned, archive=thread.archive,
            effects_checked=thread.effects_checked, records_checked=thread.records_checked,
        )  # fmt: skip
        if is_shown and writer.shown == number:
            return shown
        load_seen(txn, shown)
        return shown

    def _locate(self, txn: lmdb.Transaction, number: int) -> tuple[NamespaceKeys, bytes] | None:
        record = txn.get(layout.ThreadKeys(number).head)
        if record is None:
            return None
        uid, keystore = head_uid(record), self._context.keystore
        if keystore.is_erased(uid):
            return None
        try:
            identity = keystore.namespace_of(uid)
            namespace_keys = keystore.namespace_by_id(identity) if identity is not None else None
            if namespace_keys is None:
                raise KeyUnavailable("the thread's data key is missing from the key store", uid=uid.hex())
        except KeyUnavailable:
            if self._is_gone(number):
                return None
            raise
        return namespace_keys, uid

    def _is_gone(self, number: int) -> bool:
        """Returns whether a thread was deleted since the reader's transaction began.

        The key goes after the rows. An older transaction still shows the rows of a thread that has no key any more.
        """
        with self._context.engine.read() as txn:
            return txn.get(layout.ThreadKeys(number).head) is None

    def _load(
        self, txn: lmdb.Transaction, namespace_keys: NamespaceKeys, number: int, uid: bytes, name: str | None
    ) -> Thread | None:
        if self._context.keystore.is_erased(uid):
            return None  # deleted: only some rows are left
        try:
            thread = load_thread(txn, self._context.keystore, namespace_keys, number, uid)
        except (Corrupt, KeyUnavailable) as error:
            if isinstance(error, KeyUnavailable) and self._is_gone(number):
                return None
            error.metadata.setdefault("uid", uid.hex())
            if name is not None:
                error.metadata.setdefault("thread", name)
                if name not in error.message:
                    error.message = f"thread {name!r}: {error.message}"
            raise
        if name is None and not _is_named(txn, thread):  # else it would be confused with the thread that has the name
            raise Corrupt("the thread's name row is missing or does not lead to it", thread.name)
        if self._context.archive is not None:
            self._context.archive.refresh(thread)
        with self._lock:
            # If the transaction is older than the last commit, the thread may have been changed or deleted since.
            # Then only this reader gets the loaded thread, and it is not kept.
            if txn.id() < self._context.engine.last_commit():
                return self._threads.get(number, thread)
            return self._keep_locked(thread)

    def exists(self, thread: Thread) -> bool:
        """Returns False if the thread was deleted, perhaps a moment ago."""
        if thread.is_deleted:
            return False
        with self._context.engine.read() as txn:
            return txn.get(layout.ThreadKeys(thread.number).head) is not None

    def in_memory(self, number: int) -> Thread | None:
        """Returns the thread if it is in memory, else None."""
        return self._threads.get(number)

    def _recent(self, number: int) -> Thread | None:
        with self._lock:
            thread = self._threads.get(number)
            if thread is not None:
                self._threads.move_to_end(number)
            return thread

    def _keep_locked(self, thread: Thread) -> Thread:
        if not self._may_keep(thread):
            return thread
        if thread.identity.is_held:
            self._held.setdefault(thread.identity.uid, set()).add(thread.number)
        # Two readers may load a thread at once. The first object stays, so that all readers share it.
        thread = self._threads.setdefault(thread.number, thread)
        self._numbers[thread.identity.namespace, thread.name] = thread.number
        while len(self._threads) > THREADS_MAX:
            _, old = self._threads.popitem(last=False)
            self._numbers.pop((old.identity.namespace, old.name), None)
        return thread

    def note_deleted(self, thread: Thread) -> None:
        """Takes a thread that was deleted out of what its namespace takes."""
        if self._context.usage.is_on:
            self._context.usage.note(thread.number, thread.identity.namespace, -thread.head.stored_bytes, -1)

    def forget_held(self, uids: Iterable[bytes]) -> None:
        """Drops threads that were locked from memory, and what the cache has of them."""
        gone = set(uids)
        with self._lock:
            for thread in [thread for thread in self._threads.values() if thread.identity.uid in gone]:
                self._threads.pop(thread.number, None)
                self._numbers.pop((thread.identity.namespace, thread.name), None)
            numbers = [number for uid in gone for number in self._held.get(uid, ())]
        for number in numbers:
            self._context.cache.drop_thread(number)

    def _may_keep(self, thread: Thread) -> bool:
        """Returns whether a thread may be in memory: work that was begun may end after its thread was locked."""
        return not thread.identity.is_held or self._context.keystore.held.is_open(thread.identity.uid)

    def forget(self, thread: Thread) -> None:
        """Drops a thread from memory, because it was deleted or must be read again."""
        with self._lock:
            self._threads.pop(thread.number, None)
            key = (thread.identity.namespace, thread.name)
            if self._numbers.get(key) == thread.number:
                del self._numbers[key]
        self._context.cache.drop_thread(thread.number)
        self.on_change(*key, None)

    # -- in the writer ------------------------------------------------------------------------------------------

    def draft(self, txn: lmdb.Transaction, batch: Batch, namespace: str, name: str) -> ThreadDraft | None:
        """Returns the draft of a thread as this batch sees it; None if there is no such thread."""
        key = (namespace, name)
        if key in batch.drafts:
            draft = batch.drafts[key]
            assert draft is None or isinstance(draft, ThreadDraft)
            return draft
        thread = self.cached(namespace, name) or self.find(txn, namespace, name)
        return ThreadDraft(thread) if thread is not None else None

    def keep_draft(self, batch: Batch, draft: ThreadDraft) -> None:
        """Puts a draft into the batch. Later writes of the batch see it, and readers see it after the commit."""
        key = (draft.identity.namespace, draft.identity.name)
        if batch.drafts.get(key) is not draft:
            batch.drafts[key] = draft
            batch.after_commit.append(partial(self._publish, draft))

    def _publish(self, draft: ThreadDraft) -> None:
        thread = draft.thread
        if self._context.usage.is_on:
            before, now = thread.head, draft.head
            self._context.usage.note(
                thread.number, thread.identity.namespace, now.stored_bytes - before.stored_bytes,
                0 if before.tip_sequence else 1,
            )  # fmt: skip
        draft.publish()
        if not thread.is_deleted:
            with self._lock:
                # The thread that the writer committed replaces any object that a reader loaded before.
                if self._threads.get(thread.number) is not thread and self._may_keep(thread):
                    self._threads[thread.number] = thread
                    self._keep_locked(thread)
        self.on_change(draft.identity.namespace, draft.identity.name, thread)

    def create(
        self, txn: lmdb.Transaction, batch: Batch, namespace: str, name: str, *, is_held: bool = False
    ) -> ThreadDraft:
        """Makes a thread without entries: its key (durable before the commit), its number and its name row.
        ``is_held``: with the session key that the call has offered."""
        keystore = self._context.keystore
        self._context.usage.check_thread(namespace, batch.drafts)
        draft = self.begin(batch, namespace, name, is_held=is_held)
        identity = draft.identity
        # Removing the mark is not synced: after a crash, the next start finds a name for the key and removes the mark.
        batch.after_commit.append(lambda: keystore.mark_leaving(identity.uid, is_leaving=False))
        draft.head.update_time_us = draft.head.create_time_us
        name_hash = identity.namespace_keys.names.thread(name)
        try:
            txn.put(layout.NEXT_THREAD_KEY, layout.u64(identity.number + 1))
            txn.put(layout.name_key(name_hash), layout.pack_name(identity.number, identity.uid))
            self.settle_claim(txn, batch, draft)
        except BaseException:  # other writes of the batch may be committed, and the key would stay
            keystore.give_up(identity.uid)
            raise
        return draft

    def begin(self, batch: Batch, namespace: str, name: str, *, is_held: bool = False) -> ThreadDraft:
        """Makes a key and a number for a thread that nobody sees yet.

        Raises InvalidField if only orphans may have the name, and Unclaimed if there is an archive and the name is not
        claimed in it.
        """
        check_new(name)
        context, keystore = self._context, self._context.keystore
        session_key = keystore.held.offered((namespace, name)) if is_held else b""
        if is_held and not session_key:
            raise Locked("a held thread is made with a session key: send it with the call", thread=name)
        uid, data_key, row, held = os.urandom(UID_BYTES), os.urandom(KEY_BYTES), None, b""
        if context.archive is not None:
            claim = context.archive.claims.get((namespace, name))
            if claim is None:
                raise Unclaimed(f"this sidecar has not claimed thread {name!r} in the archive", thread=name)
            uid, data_key, row, held = claim.uid, claim.data_key, claim.row, claim.held
            if bool(held) != is_held:  # in a moment the claim of the other call is over
                raise Locked(f"another client is making thread {name!r}; try again", thread=name)
        namespace_keys = keystore.namespace(namespace) or keystore.create_namespace(namespace)
        if held:
            keystore.open_thread(held, namespace_keys, session_key)  # raises Locked: the claim is of another key
        if keystore.thread_key(uid, namespace_keys) is None:  # an orphan of this thread may have the key already
            keystore.add_thread(uid, namespace_keys, data_key, session_key, held)
            if session_key:
                keystore.held.begin(uid, (namespace, name), data_key, session_key)
            batch.after_abort.append(lambda: keystore.release(uid))
        if keystore.sync not in batch.before_commit:
            batch.before_commit.append(keystore.sync)
        number = context.next_thread
        context.next_thread += 1
        identity = Identity(number, uid, namespace, name, namespace_keys, data_key, is_held=is_held)
        head = ThreadHead(namespace=namespace, thread=name, create_time_us=context.clock.now_us(), row_sum=b"\0" * 16)
        thread = Thread(identity, head)
        thread.take_row(row)
        return ThreadDraft(thread)

    def settle_claim(self, txn: lmdb.Transaction, batch: Batch, draft: ThreadDraft) -> None:
        """Writes the archive row of a thread that was claimed. The claim is used up after the commit."""
        hooks, identity = self._context.archive, draft.identity
        if hooks is not None and draft.archive is not None:
            write_archive_row(txn, draft, draft.archive)

            def spend() -> None:
                hooks.claims.pop((identity.namespace, identity.name), None)

            batch.after_commit.append(spend)


def _is_named(txn: lmdb.Transaction, thread: Thread) -> bool:
    key = layout.name_key(thread.identity.namespace_keys.names.thread(thread.name))
    return txn.get(key) == layout.pack_name(thread.number, thread.identity.uid)


def not_found(namespace: str, name: str) -> ThreadNotFound:
    """Returns the error for a name without a thread."""
    return ThreadNotFound(f"there is no thread {name!r} in namespace {namespace!r}", namespace=namespace, thread=name)


class NameLock:
    """Locks by key. An unlocked key takes no memory."""

    def __init__(self) -> None:
        self._taken: set[Hashable] = set()
        self._changed = threading.Condition()

    @contextmanager
    def of(self, key: Hashable, wait_s: float | None = None) -> Iterator[None]:
        """Holds the lock of a key during the block. Must not be nested.

        Raises QueueFull if the lock is not free after ``wait_s`` seconds. Without ``wait_s`` it waits for ever.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: key not in self._taken, wait_s):
                raise QueueFull("another call works on the same thread; try again")
            self._taken.add(key)
        try:
            yield
        finally:
            self.free(key)

    def take(self, key: Hashable) -> bool:
        """Takes the lock of a key without waiting; returns whether it was free. Any thread may ``free`` it."""
        with self._changed:
            is_free = key not in self._taken
            self._taken.add(key)
            return is_free

    def free(self, key: Hashable) -> None:
        """Releases the lock of a key."""
        with self._changed:
            self._taken.discard(key)
            self._changed.notify_all()
