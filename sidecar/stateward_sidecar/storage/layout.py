"""The only file that knows key bytes. One tree holds everything; the first byte names the table.

    M name                                   the store's own records: format, counters
    N name_hash(16)                          → thread number, uid
    T number(4) tag ...                      rows of one thread, side by side:
        A                                      head (rewritten with every entry)
        B branch_hash(16)                      branch head
        C id_hash(16)                          checkpoint id → sequence
        E anchor_hash(16) key_hash(16)         effect
        G tag_hash(16)                         tag
        I sequence(8)                          signal that waits for the agent
        J sequence(8)                          journal entries from this one on (store/thread/blocks.py)
        K key_hash(16)                         record
        O object_hash(16)                      object of a workspace → sequence of the entry that has it, place in it
        P parts_id(8) index(4)                 pieces of large edits
        Q blob_hash(16)                        blob
        R request_hash(8)                      request id → sequence, second
        S version(8) index(4)                  pieces of a snapshot
        U key_hash(16)                         deleted record → sequence, while older history may still come
        V version(8)                           sequence - version, for versions at which it changes
        X                                      pruned versions
        Y second(8) key_hash(16)               records by time of expiry
        Z                                      what this daemon knows about the thread in the archive
    B number(4)                              threads with objects of trees
    U namespace(8) ~second(8) ~number(4)     threads by time of change, newest first
    S namespace(8) status_hash(8) ~second(8) ~number(4)   threads by status, then by time of change
    G namespace(8) label_hash(16) number(4)  threads by label
    E second(8) number(4)                    threads by time of expiry
    K number(4)                              threads with a retention rule
    F number(4)                              orphans
    H number(4) version(8)                   snapshots whose pieces are being written
    O number(4)                              outbox: threads with entries that are not archived yet, or with
                                             cleared data that the archive may still have
    P number(4)                              pruned versions whose rows are not removed yet
    Q number(4)                              threads with blobs
    R second(8) number(4)                    threads by the time when the next of their records may expire
    L namespace(8) label_hash(16) time_us(8) number(4) sequence(8)   checkpoints by label
    W cursor(8)                              every entry of the store in the order of commit → number, sequence
    D cursor(8)                              deletions

Numbers are big-endian, so that keys sort by number. A thread's number is local to this store and is never reused. The
thread's identity is its uid. All ciphertext is bound to the uid, so rows can move to another number without being
sealed again.
"""

from __future__ import annotations

import struct
from typing import Any

from stateward_sidecar.errors import Corrupt

_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_NAME = struct.Struct(">BI16s")
_REQUEST = struct.Struct(">QI")
_FEED = struct.Struct(">IQ")
_OBJECT = struct.Struct(">QI")
_UPDATED = struct.Struct(">QI")
_LABEL = struct.Struct(">QIQ")
_FUTURE = (1 << 63) - 1
NUMBER_MAX = (1 << 32) - 1
SEQUENCE_MAX = (1 << 63) - 1
_PAST = 1 << 63
ROW_FORMAT = 1

FORMAT_KEY = b"Mformat"
NEXT_THREAD_KEY = b"Mthread"
ARCHIVE_KEY = b"Marchive"
BOOTS_KEY = b"Mboots"
PLACE_KEY = b"Mplace"
# Value of a row that only exists: a value always begins with the format.
PRESENT = bytes((ROW_FORMAT,))


def u64(number: int) -> bytes:
    """Eight bytes that sort like the number."""
    return _U64.pack(number)


def i64(number: int) -> bytes:
    """Eight bytes for a number that may be negative."""
    return number.to_bytes(8, "big", signed=True)


def signed_of(data: bytes | memoryview) -> int:
    """The reverse of ``i64``."""
    return int.from_bytes(data, "big", signed=True)


def number_of(data: bytes | memoryview) -> int:
    """The reverse of ``u64``."""
    return int(_unpack(_U64, data)[0])


def leading_number(data: bytes | memoryview) -> int:
    """The sequence in the row of a checkpoint id or a request id. Raises Corrupt if the row has another length."""
    if len(data) not in (_U64.size, _REQUEST.size):
        raise Corrupt(f"an index row has {len(data)} bytes")
    return int(_U64.unpack_from(data)[0])


def _unpack(form: struct.Struct, data: bytes | memoryview) -> tuple[Any, ...]:
    if len(data) != form.size:
        raise Corrupt(f"an index row has {len(data)} bytes instead of {form.size}")
    return form.unpack(data)


def name_key(name_hash: bytes) -> bytes:
    """The row that leads from a thread's name to its number."""
    return b"N" + name_hash


def name_hash(key: bytes | memoryview) -> bytes:
    """The hash in the key of a name row."""
    return bytes(key[1:])


def pack_name(thread: int, uid: bytes) -> bytes:
    """Value of a name row."""
    return _NAME.pack(ROW_FORMAT, thread, uid)


def unpack_name(value: bytes | memoryview) -> tuple[int, bytes]:
    """Thread number and uid of a name row."""
    form, thread, uid = _unpack(_NAME, value)
    if form != ROW_FORMAT:
        raise Corrupt(f"a name row has format {form}; this version reads {ROW_FORMAT}")
    return thread, uid


def thread_prefix(thread: int, tag: bytes = b"") -> bytes:
    """Prefix of all rows of a thread, or of those with one tag."""
    return b"T" + _U32.pack(thread) + tag


def thread_of(key: bytes | memoryview) -> int:
    """Thread number of a key of table T."""
    return int(_U32.unpack_from(key, 1)[0])


THREAD_PREFIX_BYTES = 5
ENTRY_KEY_BYTES = THREAD_PREFIX_BYTES + 1 + _U64.size


class ThreadKeys:
    """The keys of one thread's rows. ``row`` below stands for a key without the thread's number: tag and rest."""

    __slots__ = ("head", "number", "prefix")

    def __init__(self, number: int) -> None:
        self.number = number
        self.prefix = thread_prefix(number)
        self.head = self.prefix + b"A"

    def branch(self, branch_hash: bytes) -> bytes:
        return self.prefix + b"B" + branch_hash

    def checkpoint_id(self, id_hash: bytes) -> bytes:
        return self.prefix + b"C" + id_hash

    def effects(self, anchor_hash: bytes) -> bytes:
        """Prefix of the effects of an anchor."""
        return self.prefix + b"E" + anchor_hash

    def signal(self, sequence: int) -> bytes:
        return self.prefix + b"I" + _U64.pack(sequence)

    def tag(self, tag_hash: bytes) -> bytes:
        return self.prefix + b"G" + tag_hash

    def entry(self, sequence: int) -> bytes:
        return self.prefix + b"J" + _U64.pack(sequence)

    def sequence_of(self, key: bytes | memoryview) -> int | None:
        """The sequence in the key of one of this thread's rows of entries; None if it is the key of another row."""
        if len(key) == ENTRY_KEY_BYTES and bytes(key[:-8]) == self.prefix + b"J":
            return int(_U64.unpack_from(key, ENTRY_KEY_BYTES - 8)[0])
        return None

    def edits_piece(self, parts_id: int, index: int) -> bytes:
        return self.prefix + b"P" + _U64.pack(parts_id) + _U32.pack(index)

    def edits_pieces(self, parts_id: int) -> bytes:
        return self.prefix + b"P" + _U64.pack(parts_id)

    def blob(self, blob_hash: bytes) -> bytes:
        return self.prefix + b"Q" + blob_hash

    def object(self, object_hash: bytes) -> bytes:
        return self.prefix + b"O" + object_hash

    def request(self, request_hash: bytes) -> bytes:
        return self.prefix + b"R" + request_hash

    def snapshot_piece(self, version: int, index: int) -> bytes:
        return self.prefix + b"S" + _U64.pack(version) + _U32.pack(index)

    def snapshot_pieces(self, version: int) -> bytes:
        return self.prefix + b"S" + _U64.pack(version)

    def version_offset(self, version: int) -> bytes:
        return self.prefix + b"V" + _U64.pack(version)

    def pruned(self) -> bytes:
        return self.prefix + b"X"

    def archive(self) -> bytes:
        return self.prefix + b"Z"

    def outline(self) -> bytes:
        return self.prefix + b"H"

    def all_of(self, tag: bytes) -> bytes:
        """Prefix of all rows with one tag."""
        return self.prefix + tag

    def record(self, key_hash: bytes) -> bytes:
        return self.prefix + b"K" + key_hash

    def gone_record(self, key_hash: bytes) -> bytes:
        return self.prefix + b"U" + key_hash

    def record_expiry(self, second: int, key_hash: bytes) -> bytes:
        return self.prefix + b"Y" + _U64.pack(second) + key_hash

    def row(self, key: bytes) -> bytes:
        """The part of a key that ciphertext is bound to: all but the number that is local to this store."""
        return key[THREAD_PREFIX_BYTES:]


def record_hash(key: bytes | memoryview) -> bytes:
    """The hash at the end of a record's key, or of the keys of its other rows (K, U, Y rows)."""
    return bytes(key[-RECORD_HASH_BYTES:])


RECORD_HASH_BYTES = 16


def record_expiry_second(key: bytes | memoryview) -> int:
    """Second of a Y row's key."""
    return int(_U64.unpack_from(key, THREAD_PREFIX_BYTES + 1)[0])


def tail_number(key: bytes | memoryview) -> int:
    """The u64 at the end of a key (J, V, W, D rows)."""
    return int(_U64.unpack_from(key, len(key) - 8)[0])


def snapshot_version(key: bytes | memoryview) -> int:
    """Version of a snapshot row's key."""
    return int(_U64.unpack_from(key, THREAD_PREFIX_BYTES + 1)[0])


def pack_request(sequence: int, second: int) -> bytes:
    """Value of a request id row."""
    return _REQUEST.pack(sequence, second)


def older_request_key(request_key: bytes, sequence: int) -> bytes:
    """The row of an entry if the row of its request id leads to a later entry with the same id."""
    return request_key + _U64.pack(sequence)


def unpack_request(value: bytes | memoryview) -> tuple[int, int]:
    """Sequence and second of a request id row."""
    sequence, second = _unpack(_REQUEST, value)
    return sequence, second


def pack_object(sequence: int, place: int) -> bytes:
    """Value of the row of a workspace's object."""
    return _OBJECT.pack(sequence, place)


def unpack_object(value: bytes | memoryview) -> tuple[int, int]:
    """Sequence of the entry, and place of the object in it."""
    sequence, place = _unpack(_OBJECT, value)
    return sequence, place


def listed_keys(namespace: bytes, status_hash: bytes, second: int, thread: int) -> tuple[bytes, bytes]:
    """Places of a thread in the list of its namespace, and in the list of its status, newest first."""
    tail = _UPDATED.pack(_FUTURE - second, NUMBER_MAX - thread)
    return b"U" + namespace + tail, b"S" + namespace + status_hash + tail


def updated_prefix(namespace: bytes) -> bytes:
    """Prefix of the list of a namespace's threads."""
    return b"U" + namespace


def status_prefix(namespace: bytes, status_hash: bytes) -> bytes:
    """Prefix of the list of a namespace's threads with one status."""
    return b"S" + namespace + status_hash


def updated_tail(second: int, thread: int) -> bytes:
    """The end of such keys. It merges the lists of several statuses into one order."""
    return _UPDATED.pack(_FUTURE - second, NUMBER_MAX - thread)


UPDATED_TAIL_BYTES = _UPDATED.size


def unpack_updated(key: bytes | memoryview) -> tuple[int, int]:
    """Second and thread number of such a key."""
    second, thread = _UPDATED.unpack_from(key, len(key) - _UPDATED.size)
    return _FUTURE - second, NUMBER_MAX - thread


def labelled_prefix(namespace: bytes, label_hash: bytes) -> bytes:
    """Prefix of all threads with a label."""
    return b"G" + namespace + label_hash


def labelled_key(prefix: bytes, thread: int) -> bytes:
    """A thread with a label."""
    return prefix + _U32.pack(thread)


def labelled_thread(key: bytes | memoryview) -> int:
    """Thread number of such a key."""
    return int(_U32.unpack_from(key, len(key) - _U32.size)[0])


def expiry_key(second: int, thread: int) -> bytes:
    """Place of a thread in the list of those that expire."""
    return b"E" + _U64.pack(second) + _U32.pack(thread)


def unpack_expiry(key: bytes | memoryview) -> tuple[int, int]:
    """Second and thread number of such a key."""
    return int(_U64.unpack_from(key, 1)[0]), int(_U32.unpack_from(key, 9)[0])


def records_expiry_key(second: int, thread: int) -> bytes:
    """Place of a thread in the list of those whose records expire. ``unpack_expiry`` is the reverse."""
    return b"R" + _U64.pack(second) + _U32.pack(thread)


def marked_thread(key: bytes | memoryview) -> int:
    """Thread number of a key that is only a table and a thread (K, O, P, Q rows)."""
    return int(_U32.unpack_from(key, 1)[0])


def retention_key(thread: int) -> bytes:
    """Marks a thread with a retention rule."""
    return b"K" + _U32.pack(thread)


def objects_key(thread: int) -> bytes:
    """Marks a thread with objects of trees."""
    return b"B" + _U32.pack(thread)


def blobs_key(thread: int) -> bytes:
    """Marks a thread with blobs."""
    return b"Q" + _U32.pack(thread)


def uncleared_key(thread: int) -> bytes:
    """The row of a thread's pruned versions whose rows are not removed yet."""
    return b"P" + _U32.pack(thread)


UNCLEARED_KEY_BYTES = 5


def orphan_key(uid: bytes, thread: int) -> bytes:
    """Marks an orphan, beside the other orphans of its thread. ``tail_thread`` is the reverse."""
    return orphan_prefix(uid) + _U32.pack(thread)


def orphan_prefix(uid: bytes) -> bytes:
    """The orphans of a thread."""
    return b"F" + uid


def tail_thread(key: bytes | memoryview) -> int:
    """Thread number at the end of a key."""
    return int(_U32.unpack_from(key, len(key) - 4)[0])


def half_key(thread: int, version: int) -> bytes:
    """Marks a snapshot whose pieces are written in several transactions and are not complete."""
    return half_prefix(thread) + _U64.pack(version)


def half_prefix(thread: int) -> bytes:
    """Prefix of those marks of a thread."""
    return b"H" + _U32.pack(thread)


HALF_KEY_BYTES = 13


def half_of(key: bytes | memoryview) -> tuple[int, int]:
    """Thread number and version of such a key."""
    return int(_U32.unpack_from(key, 1)[0]), int(_U64.unpack_from(key, 5)[0])


def outbox_key(thread: int) -> bytes:
    """Marks a thread with entries that are not archived."""
    return b"O" + _U32.pack(thread)


def label_prefix(namespace: bytes, label_hash: bytes) -> bytes:
    """Prefix of all checkpoints with a label."""
    return b"L" + namespace + label_hash


def label_key(namespace: bytes, label_hash: bytes, time_us: int, thread: int, sequence: int) -> bytes:
    """A checkpoint with a label."""
    return label_prefix(namespace, label_hash) + _LABEL.pack(time_us, thread, sequence)


def unpack_label(key: bytes | memoryview) -> tuple[int, int]:
    """Thread number and sequence of such a key."""
    _, thread, sequence = _LABEL.unpack_from(key, len(key) - _LABEL.size)
    return thread, sequence


def feed_key(cursor: int) -> bytes:
    """Place of an entry in the order of all commits of the store."""
    return b"W" + _U64.pack(cursor)


def feed_place(key: bytes | memoryview) -> int:
    """The place in such a key; 0 = it is the key of another row."""
    return int(_U64.unpack_from(key, 1)[0]) if bytes(key[:1]) == b"W" else 0


def pack_feed(thread: int, sequence: int, *, is_past: bool = False) -> bytes:
    """Value of such a row. Thread 0 stands for a deletion, whose row in table D has the same cursor. ``is_past``: later
    entries of the thread have earlier places, so the row is no event."""
    return _FEED.pack(thread, sequence | _PAST if is_past else sequence)


def unpack_feed(value: bytes | memoryview) -> tuple[int, int]:
    """Thread number and sequence of such a row."""
    thread, sequence = _unpack(_FEED, value)
    return thread, sequence & ~_PAST


def is_past_feed(value: bytes | memoryview) -> bool:
    """Whether such a row is no event."""
    return bool(_unpack(_FEED, value)[1] & _PAST)


def deletion_key(cursor: int) -> bytes:
    """A deletion."""
    return b"D" + _U64.pack(cursor)


def pack_deletion(time_us: int, namespace_id: bytes, sealed: bytes) -> bytes:
    """Value of a deletion row: when, in which namespace, and what."""
    return _U64.pack(time_us) + namespace_id + sealed


def deletion_time_us(value: bytes | memoryview) -> int:
    """When the thread was deleted, microseconds since 1970. Raises Corrupt."""
    if len(value) < 24:
        raise Corrupt(f"the row of a deletion has {len(value)} bytes")
    return int(_U64.unpack_from(value)[0])


def unpack_deletion(value: bytes | memoryview) -> tuple[bytes, bytes]:
    """Namespace id and the sealed record. Raises Corrupt."""
    deletion_time_us(value)
    return bytes(value[8:24]), bytes(value[24:])


def after(prefix: bytes) -> bytes:
    """The first key that is greater than every key with this prefix, which must not consist of 0xFF alone."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes((trimmed[-1] + 1,))
