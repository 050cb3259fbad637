"""A thread in memory: its committed parts (``Thread``), and the changes of the current batch (``Draft``).

Readers see only the ``Thread``. The writer changes a ``Draft``. The draft becomes the thread when its batch is
committed, and is dropped if the commit fails. The rows behind both can be rebuilt from the journal. The head carries a
sum over the branch, tag, prune and signal rows, so a rollback of one row is noticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import xor
from typing import TypeVar, cast

import lmdb
from google.protobuf.message import DecodeError, Message

from stateward.storage.v1.archive_pb2 import ArchiveRow
from stateward.storage.v1.head_pb2 import BranchHead, SignalRow, ThreadHead
from stateward.storage.v1.journal_pb2 import CheckpointBody, PrunedVersions
from stateward.v1.thread_pb2 import (
    THREAD_ACCESS_ORPHAN,
    THREAD_ACCESS_REMOTE,
    THREAD_ACCESS_UNSPECIFIED,
    Tag,
    ThreadAccess,
)
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.codec.seal import Cipher, length_prefixed, new_nonce, open_record, record_prefix, seal_record
from stateward_sidecar.codec.state import StateTree
from stateward_sidecar.errors import Corrupt, KeyUnavailable, NotOwner
from stateward_sidecar.storage.keystore import KeyStore
from stateward_sidecar.storage.layout import ThreadKeys, after, snapshot_version
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.ranges import Pruned
from stateward_sidecar.store.thread.recordorder import OrderChange

ROW_MAGIC, OUTLINE_MAGIC = b"SR", b"SO"
_ROW_PREFIX = record_prefix(ROW_MAGIC)
_SUMMED = length_prefixed(b"row")
# A thread may have thousands of branches, but few of them are written at a time.
PLACES_MAX = 64
# Tags of rows of which a thread has thousands: effects and records.
ONE_OF_MANY = (b"E", b"K")


class Identity:
    """The constants of a thread: its number on this disk, its uid, its name and its keys."""

    __slots__ = (
        "_branch_keys", "_outline", "_places", "_sealed", "cipher", "is_held", "keys", "last_request", "name",
        "namespace", "namespace_keys", "number", "uid", "uid_text",
    )  # fmt: skip

    def __init__(
        self, number: int, uid: bytes, namespace: str, name: str, namespace_keys: NamespaceKeys, data_key: bytes,
        *, is_held: bool = False,
    ) -> None:  # fmt: skip
        self.number = number
        self.uid = uid
        self.namespace = namespace
        self.name = name
        self.namespace_keys = namespace_keys
        self.cipher = Cipher(data_key)
        self.keys = ThreadKeys(number)
        self.uid_text = uid.hex()
        self.is_held = is_held
        """Whether clients hold a part of the key, so that no list shows the thread."""
        self._outline: Cipher | None = None
        self._branch_keys: dict[str, bytes] = {}
        # For rows that every save rewrites: the associated data of the ciphertext, and the prefix of the row's sum.
        self._places: dict[bytes, tuple[bytes, bytes]] = {}
        self._sealed = length_prefixed(_ROW_PREFIX, uid)
        self.last_request: tuple[bytes | None, bytes] = None, b""
        """The hash of the last request id whose row was asked for, and the key of the row."""

    def hash_id(self, kind: bytes, *names: str) -> bytes:
        """Returns the 16 bytes that stand for a name (of a branch, tag, checkpoint id and so on) in a key."""
        return self.cipher.digest(length_prefixed(kind, *map(str.encode, names)))

    def branch_key(self, name: str) -> bytes:
        """Returns the row key of a branch."""
        key = self._branch_keys.get(name)
        if key is None:
            key = self._branch_keys[name] = self.keys.branch(self.hash_id(b"branch", name))
        return key

    def seal_row(self, key: bytes, plaintext: bytes) -> bytes:
        """Seals a row, and binds it to the thread and the row key."""
        nonce = new_nonce()
        return _ROW_PREFIX + nonce + self.cipher.encrypt(nonce, plaintext, self._place(key)[0])

    def open_row(self, key: bytes, record: bytes | memoryview) -> bytes:
        """The reverse of ``seal_row``. Raises Corrupt."""
        return open_record(self.cipher, ROW_MAGIC, record, self.uid, self.keys.row(key))

    def seal_outline(self, plaintext: bytes) -> bytes:
        """Seals what may be known of a held thread without its session key."""
        if self._outline is None:
            self._outline = Cipher(self.namespace_keys.names.outline_key(self.uid))
        return seal_record(self._outline, OUTLINE_MAGIC, plaintext, self.uid)

    def row_sum(self, key: bytes, plaintext: bytes) -> int:
        """Returns the part of a row in the head's sum (combined by XOR)."""
        return int.from_bytes(self.cipher.digest(self._place(key)[1] + length_prefixed(plaintext)), "big")

    def _place(self, key: bytes) -> tuple[bytes, bytes]:
        place = self._places.get(key)
        if place is None:
            row = self.keys.row(key)
            joined = length_prefixed(row)
            place = self._sealed + joined, _SUMMED + joined
            if len(self._places) < PLACES_MAX and row[:1] not in ONE_OF_MANY:
                self._places[key] = place
        return place


MAIN = "main"
UID_BYTES = 16
Row = BranchHead | Tag | PrunedVersions | SignalRow
R = TypeVar("R", bound=Message)


@dataclass(slots=True, eq=False)
class Thread:
    """The committed state of a thread."""

    identity: Identity
    number: int = field(init=False)
    head: ThreadHead
    branches: dict[str, BranchHead] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)
    pruned: Pruned = field(default_factory=Pruned)
    snapshots: frozenset[int] = frozenset()
    signals: dict[int, SignalRow] = field(default_factory=dict)  # by sequence; the dict is never changed in place
    row_sums: dict[bytes, int] = field(default_factory=dict)
    saves: int = 0  # since it was loaded
    plain_saves: int = 0  # saves since the last load of a dictionary that went without one, as it was not in memory
    is_deleted: bool = False
    snapshot_pending: bool = False
    is_crowded: bool = False  # many entries wait for the snapshot that is being made: saves should wait, too
    # What this disk knows of the thread in the archive; None = the thread was never claimed there.
    archive: ArchiveRow | None = None
    archived_sequence: int = 0  # may be ahead of the row, which is written only now and then
    epoch: int = 0  # owner epoch of the next entry
    in_outbox: bool = False  # True = the outbox row exists; False = unknown
    lost_sequence: int = 0  # a search found that entries up to this one are neither here nor in the archive
    effects_checked: bool = False  # the effect rows were compared with the head's sum since the thread was loaded
    records_checked: bool = False  # the same of the record rows

    def __post_init__(self) -> None:
        """Takes the number from the identity: it never changes, and every save asks for it many times."""
        self.number = self.identity.number

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def access(self) -> ThreadAccess:
        """What this sidecar may do with the thread. If a newer version wrote its HEAD, it belongs to others."""
        if self.archive is None:
            return THREAD_ACCESS_UNSPECIFIED
        return THREAD_ACCESS_REMOTE if self.archive.newer_format else self.archive.access

    @property
    def is_outdated(self) -> bool:
        """Returns True if a newer version wrote the last HEAD that was read."""
        return self.archive is not None and self.archive.newer_format > 0

    @property
    def floor_sequence(self) -> int:
        """Entries up to this one may be in the archive only."""
        return self.archive.floor_sequence if self.archive is not None else 0

    @property
    def floor_version(self) -> int:
        """Versions up to this one may be in the archive only."""
        return self.archive.floor_version if self.archive is not None else 0

    def take_row(self, row: ArchiveRow | None) -> None:
        """Takes over the content of the archive row, after the row was read or committed."""
        self.archive = row
        if row is not None:
            if row.rolled_back:  # the bucket was set back: it has less than was archived before
                self.archived_sequence = row.rolled_back_to
            else:
                self.archived_sequence = max(self.archived_sequence, row.head.tip_sequence)
            self.epoch = max(self.epoch, row.head.epoch)


class ThreadDraft:
    """A thread with the changes of the batch so far."""

    __slots__ = (
        "archive", "bodies", "branches", "head", "identity", "pruned", "record_changes", "row_sums", "signals",
        "snapshots", "states", "tags", "thread",
    )  # fmt: skip

    def __init__(self, thread: Thread) -> None:
        self.thread = thread
        self.identity = thread.identity
        self.head = thread.head
        self.branches: dict[str, BranchHead | None] = {}  # None = deleted
        self.tags: dict[str, int | None] = {}
        self.signals: dict[int, SignalRow | None] = {}
        self.pruned = thread.pruned
        self.snapshots = thread.snapshots
        self.row_sums: dict[bytes, int] = {}
        self.record_changes: list[OrderChange] = []
        self.states: dict[int, StateTree] = {}
        self.bodies: dict[int, CheckpointBody] = {}
        self.archive = thread.archive

    @property
    def floor_version(self) -> int:
        """Versions up to this one may be in the archive only."""
        return self.archive.floor_version if self.archive is not None else 0

    @property
    def floor_sequence(self) -> int:
        """Entries up to this one may be in the archive only."""
        return self.archive.floor_sequence if self.archive is not None else 0

    def check_writable(self) -> None:
        """Raises NotOwner if this disk has only a copy or an orphan."""
        row = self.archive
        if row is not None and (row.access in (THREAD_ACCESS_REMOTE, THREAD_ACCESS_ORPHAN) or row.newer_format):
            raise not_owner(self.identity.name, row)

    def branch(self, name: str) -> BranchHead | None:
        """Returns the head of a branch; None if there is no such branch."""
        return self.branches[name] if name in self.branches else self.thread.branches.get(name)

    def all_branches(self) -> dict[str, BranchHead]:
        """Returns the heads of all branches."""
        merged: dict[str, BranchHead | None] = {**self.thread.branches, **self.branches}
        return {name: branch for name, branch in merged.items() if branch is not None}

    def tag(self, name: str) -> int | None:
        """Returns the version that a tag names; None if there is no such tag."""
        return self.tags[name] if name in self.tags else self.thread.tags.get(name)

    def all_tags(self) -> dict[str, int]:
        """Returns all tags with their versions."""
        merged: dict[str, int | None] = {**self.thread.tags, **self.tags}
        return {name: version for name, version in merged.items() if version is not None}

    def all_signals(self) -> dict[int, SignalRow]:
        """Returns all pending signals, by sequence."""
        if not self.signals:
            return self.thread.signals
        merged: dict[int, SignalRow | None] = {**self.thread.signals, **self.signals}
        return {sequence: row for sequence, row in merged.items() if row is not None}

    def next_head(self) -> ThreadHead:
        """Returns a copy of the head that may be changed. The caller writes it and sets it as the draft's head."""
        head = ThreadHead()
        head.CopyFrom(self.head)
        return head

    def row_change(self, key: bytes, plaintext: bytes | None) -> tuple[int, int]:
        """Returns the row's new part of the head's sum, and the value to XOR into that sum."""
        old = self.row_sums.get(key, self.thread.row_sums.get(key, 0))
        new = self.identity.row_sum(key, plaintext) if plaintext is not None else 0
        return new, old ^ new

    def publish(self) -> None:
        """Copies the draft's changes into the committed thread. Call it only after the commit."""
        thread = self.thread
        # Readers on other threads may hold the dicts. So no dict shrinks in place: it is replaced.
        if self.signals:  # before the heads: whoever sees a version must not see the signals that it acknowledged
            thread.signals = self.all_signals()
        if self.branches:
            if None in self.branches.values():
                thread.branches = self.all_branches()
            elif len(thread.branches) < 64:
                thread.branches = cast("dict[str, BranchHead]", {**thread.branches, **self.branches})
            else:
                # With thousands of branches, a copy for each save would cost more than the save. Adding keys in place
                # is safe: readers that look up a key are not affected, and readers that iterate make a list first.
                thread.branches.update(cast("dict[str, BranchHead]", self.branches))
        if self.tags:
            thread.tags = self.all_tags()
        thread.row_sums.update(self.row_sums)
        thread.pruned = self.pruned
        thread.snapshots = self.snapshots
        thread.head = self.head
        if thread.archive is not self.archive:
            thread.take_row(self.archive)


def write_branch(txn: lmdb.Transaction, draft: ThreadDraft, head: ThreadHead, branch: BranchHead) -> tuple[bytes, int]:
    """Writes the head of a branch. That of main is a part of ``head``, because most saves change both.

    Returns the key and value for ``Draft.row_sums``.
    """
    key = draft.identity.branch_key(branch.name)
    if branch.name != MAIN:
        return write_row(txn, draft, head, key, branch)
    head.main.CopyFrom(branch)
    return key, 0


def write_row(txn: lmdb.Transaction, draft: ThreadDraft, head: ThreadHead, key: bytes, row: Row) -> tuple[bytes, int]:
    """Writes a row, and updates the sum in ``head``. Returns the key and value for ``Draft.row_sums``."""
    plaintext = row.SerializeToString(deterministic=True)
    part, change = draft.row_change(key, plaintext)
    head.row_sum = add_to_sum(head.row_sum, change)
    txn.put(key, draft.identity.seal_row(key, plaintext))
    return key, part


def delete_row(txn: lmdb.Transaction, draft: ThreadDraft, head: ThreadHead, key: bytes) -> tuple[bytes, int]:
    """Deletes a row, and updates the sum in ``head``. Returns the key and value for ``Draft.row_sums``."""
    part, change = draft.row_change(key, None)
    head.row_sum = add_to_sum(head.row_sum, change)
    txn.delete(key)
    return key, part


def write_head(txn: lmdb.Transaction, identity: Identity, head: ThreadHead) -> None:
    """Writes the head row. It begins with the uid in clear, so that the data key can be found by the number alone."""
    key = identity.keys.head
    txn.put(key, identity.uid + identity.seal_row(key, head.SerializeToString(deterministic=True)))
    if identity.is_held:
        outline = ThreadHead(
            create_time_us=head.create_time_us, update_time_us=head.update_time_us, stored_bytes=head.stored_bytes,
            epoch=head.epoch, namespace=head.namespace,
        )  # fmt: skip
        txn.put(identity.keys.outline(), identity.seal_outline(outline.SerializeToString()))


def load_outline(txn: lmdb.Transaction, namespace: NamespaceKeys, number: int, uid: bytes) -> ThreadHead | None:
    """Returns what may be known of a held thread without its session key: namespace, times, size and epoch; None if
    nothing is. Raises Corrupt."""
    row = txn.get(ThreadKeys(number).outline())
    if row is None:
        return None
    cipher = Cipher(namespace.names.outline_key(uid))
    try:
        return ThreadHead.FromString(open_record(cipher, OUTLINE_MAGIC, row, uid))
    except DecodeError:
        raise Corrupt("what is known of a held thread cannot be read") from None


def head_uid(record: bytes | memoryview) -> bytes:
    """Returns the uid at the beginning of a head row."""
    return bytes(record[:UID_BYTES])


def load_thread(
    txn: lmdb.Transaction, keystore: KeyStore, namespace_keys: NamespaceKeys, number: int, uid: bytes
) -> Thread:
    """Reads a thread's rows. Raises Corrupt or KeyUnavailable."""
    identity = open_identity(keystore, namespace_keys, number, uid)
    head = load_head(txn, identity)
    thread = Thread(identity, head)
    keys = identity.keys
    if head.HasField("main"):
        thread.branches[MAIN] = BranchHead.FromString(head.main.SerializeToString())
    for branch in _summed_rows(txn, thread, keys.all_of(b"B"), BranchHead):
        thread.branches[branch.name] = branch
    for tag in _summed_rows(txn, thread, keys.all_of(b"G"), Tag):
        thread.tags[tag.name] = tag.version
    for signal in _summed_rows(txn, thread, keys.all_of(b"I"), SignalRow):
        thread.signals[signal.sequence] = signal
    for pruned in _summed_rows(txn, thread, keys.pruned(), PrunedVersions):
        thread.pruned = Pruned.from_message(pruned)
    if reduce(xor, thread.row_sums.values(), 0) != int.from_bytes(head.row_sum, "big"):
        raise Corrupt(
            "a branch, tag, signal or prune row is missing, foreign or older than the thread's head", identity.name
        )
    thread.snapshots = frozenset(snapshot_versions(txn, keys))
    thread.take_row(load_archive_row(txn, identity))
    return thread


def _summed_rows(txn: lmdb.Transaction, thread: Thread, prefix: bytes, kind: type[R]) -> Iterator[R]:
    """Yields rows that the head has the sum of, and notes the part of each in the sum. Raises Corrupt."""
    for key, record in rows(txn, prefix):
        row = open_as(kind, thread.identity, key, record)
        thread.row_sums[key] = thread.identity.row_sum(key, row.SerializeToString(deterministic=True))
        yield row


def load_seen(txn: lmdb.Transaction, thread: Thread) -> None:
    """Reads head, pruned and archive row again, and leaves the rest as it is. Raises Corrupt."""
    identity = thread.identity
    try:
        thread.head = load_head(txn, identity)
    except Corrupt as error:
        raise error.locate(identity.name) from None
    record = txn.get(identity.keys.pruned())
    thread.pruned = Pruned()
    if record is not None:
        thread.pruned = Pruned.from_message(open_as(PrunedVersions, identity, identity.keys.pruned(), record))
    thread.archive = load_archive_row(txn, identity)


def load_numbered(txn: lmdb.Transaction, keystore: KeyStore, number: int, uid: bytes) -> Thread:
    """Reads a thread whose number and uid are known, but not its namespace. Raises Corrupt or KeyUnavailable."""
    owner = keystore.namespace_of(uid)
    keys = keystore.namespace_by_id(owner) if owner is not None else None
    if keys is None:
        raise KeyUnavailable("the thread's data key is missing from the key store", uid=uid.hex())
    return load_thread(txn, keystore, keys, number, uid)


def load_archive_row(txn: lmdb.Transaction, identity: Identity) -> ArchiveRow | None:
    """Returns what this disk knows of a thread in the archive; None if it has no such row. Raises Corrupt."""
    key = identity.keys.archive()
    record = txn.get(key)
    if record is None:
        return None
    return open_as(ArchiveRow, identity, key, record)


def write_archive_row(txn: lmdb.Transaction, draft: ThreadDraft, row: ArchiveRow) -> None:
    """Writes the archive row. The committed thread gets it after the commit."""
    key = draft.identity.keys.archive()
    txn.put(key, draft.identity.seal_row(key, row.SerializeToString(deterministic=True)))
    draft.archive = row


def not_owner(name: str, row: ArchiveRow) -> NotOwner:
    """The error for a write to a copy."""
    if row.access == THREAD_ACCESS_ORPHAN:
        return NotOwner(
            f"thread {name!r} is an orphan: it can be read and forked, and never written", thread=name,
            owner_id=row.head.owner_id, epoch=row.head.epoch,
        )  # fmt: skip
    whose = f"was last written by {row.head.owner_id!r}"
    if row.head.detached:
        whose = "was given up to the archive, which has to be asked before it is written again"
    return NotOwner(
        f"thread {name!r} is a copy: it {whose}", thread=name,
        owner_id=row.head.owner_id, epoch=row.head.epoch,
    )  # fmt: skip


def open_identity(keystore: KeyStore, namespace_keys: NamespaceKeys, number: int, uid: bytes) -> Identity:
    """A thread's keys; its names follow with its head. Raises KeyUnavailable."""
    data_key = keystore.thread_key(uid, namespace_keys)
    if data_key is None:
        raise KeyUnavailable("the thread's data key is missing from the key store", uid=uid.hex())
    return Identity(number, uid, "", "", namespace_keys, data_key, is_held=uid in keystore.held_uids)


def load_head(txn: lmdb.Transaction, identity: Identity) -> ThreadHead:
    """Reads a thread's head, sets the names in ``identity``, and checks where the journal ends. Raises Corrupt."""
    key = identity.keys.head
    record = txn.get(key)
    if record is None:
        raise Corrupt("the thread's head is missing")
    try:
        head = ThreadHead.FromString(identity.open_row(key, record[UID_BYTES:]))
    except DecodeError:
        raise Corrupt("the thread's head cannot be read") from None
    identity.namespace, identity.name = head.namespace, head.thread
    try:
        is_older = blocks.has_entry(txn, identity.keys, head.tip_sequence + 1)
        tip = blocks.get_entry(txn, identity.keys, head.tip_sequence)
    except Corrupt as error:
        raise error.locate(head.thread, head.last_version) from None
    if is_older:
        raise Corrupt("the thread's head is older than its journal", head.thread, head.last_version)
    if tip is None and _is_above_floor(txn, identity, head.tip_sequence):
        raise Corrupt("the newest journal entry is missing", head.thread, head.last_version)
    if tip is not None and unpack(tip, head.tip_sequence).header.digest != head.tip_digest:
        raise Corrupt("the journal does not end where the thread's head says", head.thread, head.last_version)
    return head


def _is_above_floor(txn: lmdb.Transaction, identity: Identity, sequence: int) -> bool:
    """Returns whether the entry must be on this disk; below the floor it may be in the archive only."""
    row = load_archive_row(txn, identity)
    return row is None or sequence > row.floor_sequence


def rows(txn: lmdb.Transaction, prefix: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Returns all rows whose key begins with ``prefix``, in ascending order. A value is valid until the next step."""
    return blocks.rows_from(txn, prefix, prefix)


def snapshot_versions(txn: lmdb.Transaction, keys: ThreadKeys) -> Iterator[int]:
    """Yields the versions with a complete snapshot. The first piece is written last, so it proves completeness."""
    prefix = keys.all_of(b"S")
    cursor = txn.cursor()
    found = cursor.set_range(prefix)
    while found:
        key = cursor.key()
        if key[: len(prefix)] != prefix:
            return
        version = snapshot_version(key)
        if bytes(key) == keys.snapshot_piece(version, 0):
            yield version
        found = cursor.set_range(after(keys.snapshot_pieces(version)))


def open_as(kind: type[R], identity: Identity, key: bytes, record: bytes | memoryview, what: str = "") -> R:
    """Opens and parses a row. Raises Corrupt, which names the thread, and ``what`` the row is about."""
    try:
        return kind.FromString(identity.open_row(key, record))
    except Corrupt as error:
        raise error.locate(identity.name) from None
    except DecodeError:
        raise Corrupt(f"the row of {what or kind.__name__} cannot be read", identity.name) from None


def add_to_sum(total: bytes, change: int) -> bytes:
    """Returns a sum in a head after a change of its rows."""
    return (int.from_bytes(total, "big") ^ change).to_bytes(16, "big")
