"""Makes the state of a version: reads the nearest snapshot in its ancestry, and replays the edits since.

All functions work in a transaction that the caller opened for one synchronous step.
"""

from __future__ import annotations

from collections.abc import Iterator

import lmdb
from google.protobuf.message import DecodeError

from stateward.storage.v1.journal_pb2 import EntryHeader, EntryMetadata
from stateward.v1.diff_pb2 import Diff
from stateward_sidecar.codec import parts
from stateward_sidecar.codec.compress import Dictionary
from stateward_sidecar.codec.edits import apply_edits
from stateward_sidecar.codec.entry import Entry, unpack
from stateward_sidecar.codec.snapshot import from_snapshot
from stateward_sidecar.codec.state import EMPTY, StateTree
from stateward_sidecar.errors import Corrupt, EditConflict, HistoryElsewhere, VersionNotFound, VersionPruned
from stateward_sidecar.storage import layout
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.cache import Cache
from stateward_sidecar.store.thread.thread import Identity, Thread, ThreadDraft, rows

Versions = Thread | ThreadDraft
Held = dict[int, Dictionary]


class MissingSnapshot(Corrupt):
    """This disk lacks a snapshot that a version needs: what came before was pruned, or the version is whole, or it is
    compressed with the snapshot. A copy may lack one: its owner pruned further, and the snapshot was gone when the copy
    was fetched."""


def sequence_of(txn: lmdb.Transaction, thread: Versions, version: int) -> int:
    """Returns the sequence of a retained version. Raises as ``check_version`` does, or Corrupt."""
    check_version(thread, version)
    return place_of(txn, thread, version)


def place_of(txn: lmdb.Transaction, thread: Versions, version: int) -> int:
    """Returns the sequence of a version; if the version was pruned, a guess that is never too late. Raises Corrupt."""
    keys = thread.identity.keys
    cursor = txn.cursor()
    key = keys.version_offset(version)
    # The last row at or before this version holds the difference between its sequence and its version.
    if not (cursor.set_range(key) and bytes(cursor.key()) == key):
        found = cursor.prev() if cursor.key() else cursor.last()
        if not found or not bytes(cursor.key()).startswith(keys.all_of(b"V")):
            if version in thread.pruned:  # a copy was made when nothing before its first version was left
                return version
            raise Corrupt("the index of versions is damaged", thread.identity.name, version)
    sequence = version + layout.signed_of(cursor.value())
    if not 0 < sequence < 1 << 63:
        raise Corrupt("the index of versions is damaged", thread.identity.name, version)
    return sequence


def places_near(txn: lmdb.Transaction, thread: Versions, version: int) -> tuple[int, int, int] | None:
    """Returns the version of the row by which a version is found, that of the next row, and the difference. None if
    there is no row before it or after it."""
    keys, cursor = thread.identity.keys, txn.cursor()
    prefix, key = keys.all_of(b"V"), keys.version_offset(version + 1)

    def is_row() -> bool:
        return bytes(cursor.key()).startswith(prefix)

    if not cursor.set_range(key) or not is_row():
        return None
    following = layout.tail_number(cursor.key())
    if not cursor.prev() or not is_row():
        return None
    first, offset = layout.tail_number(cursor.key()), layout.signed_of(cursor.value())
    return (first, following, offset) if cursor.prev() and is_row() else None


def check_version(thread: Versions, version: int) -> None:
    """Raises VersionNotFound, VersionPruned or HistoryElsewhere unless the version is retained and on this disk."""
    name = thread.identity.name
    if version > thread.head.last_version or version < 1:
        raise VersionNotFound(
            f"thread {name!r} has no version {version}; its newest is {thread.head.last_version}",
            thread=name, version=version,
        )  # fmt: skip
    if version in thread.pruned:
        raise VersionPruned(f"version {version} of thread {name!r} was pruned", thread=name, version=version)
    if version <= thread.floor_version:
        raise history_elsewhere(thread.identity)


def history_elsewhere(identity: Identity, *, for_retry: bool = False) -> HistoryElsewhere:
    """Returns the error for entries that only the archive has. ``for_retry``: only the retry window is needed."""
    return HistoryElsewhere(
        f"older history of thread {identity.name!r} is in the archive only", namespace=identity.namespace,
        thread=identity.name, for_retry="yes" if for_retry else "",
    )  # fmt: skip


def gone_with_thread(orphan: ThreadDraft | Thread, what: str) -> VersionPruned:
    """Returns the error for what the thread from which an orphan comes has cleared or pruned since."""
    assert orphan.archive is not None
    name = orphan.identity.name
    return VersionPruned(
        f"the {what} of orphan {name!r} went with thread {orphan.archive.orphan_of!r}", thread=name,
        version=orphan.floor_version,
    )  # fmt: skip


def read_entry(txn: lmdb.Transaction, identity: Identity, sequence: int) -> Entry:
    """Returns a journal entry that must exist. Raises Corrupt if it is missing."""
    try:
        record = blocks.get_entry(txn, identity.keys, sequence)
        if record is None:
            raise Corrupt(f"journal entry {sequence} is missing")
        return unpack(record, sequence)
    except Corrupt as error:
        raise error.locate(identity.name) from None


def read_entries(txn: lmdb.Transaction, identity: Identity, first: int) -> Iterator[Entry]:
    """Yields the journal entries from a sequence on. Raises Corrupt."""
    try:
        for sequence, record in blocks.entries(txn, identity.keys, first):
            yield unpack(record, sequence)
    except Corrupt as error:
        raise error.locate(identity.name) from None


def has_entry(txn: lmdb.Transaction, identity: Identity, sequence: int) -> bool:
    """Returns whether a journal entry is on this disk. Raises Corrupt."""
    try:
        return blocks.has_entry(txn, identity.keys, sequence)
    except Corrupt as error:
        raise error.locate(identity.name) from None


def open_metadata(identity: Identity, entry: Entry) -> EntryMetadata:
    """Opens the metadata of an entry, which also authenticates its header. Raises Corrupt."""
    try:
        return entry.open_metadata(identity.cipher, identity.uid)
    except Corrupt as error:
        raise error.locate(identity.name, entry.header.version) from None


def read_indexed(txn: lmdb.Transaction, identity: Identity, row: bytes | memoryview) -> Entry:
    """Returns the entry that the index row of a checkpoint id or request id names. Raises Corrupt."""
    try:
        return read_entry(txn, identity, layout.leading_number(row))
    except Corrupt as error:
        raise error.locate(identity.name) from None


def read_version(txn: lmdb.Transaction, thread: Versions, version: int) -> Entry:
    """Returns the entry that made a version. Raises as ``sequence_of`` does."""
    try:
        entry = read_entry(txn, thread.identity, sequence_of(txn, thread, version))
    except Corrupt as error:
        raise error.locate(thread.identity.name, version) from None
    if entry.header.version != version:
        raise Corrupt(
            f"journal entry {entry.header.sequence} holds version {entry.header.version}", thread.identity.name, version
        )
    # The header is authenticated only when a part of the entry is opened. A forged parent must not cause a loop.
    if not 0 <= entry.header.parent_version < version:
        raise Corrupt(f"an entry names the parent {entry.header.parent_version}", thread.identity.name, version)
    return entry


def read_snapshot(txn: lmdb.Transaction, identity: Identity, version: int) -> tuple[bytes, bytes]:
    """Returns the content of a snapshot, and the digest of its version. Raises Corrupt."""
    pieces = [value for _, value in rows(txn, identity.keys.snapshot_pieces(version))]
    if not pieces:
        raise MissingSnapshot("the snapshot is missing", identity.name, version)
    return parts.open_pieces(identity.cipher, parts.SNAPSHOT_MAGIC, iter(pieces), identity.uid, layout.u64(version))


def read_dictionary(
    txn: lmdb.Transaction, identity: Identity, version: int, cache: Cache, held: Held | None = None
) -> Dictionary:
    """Returns the digested snapshot of a version. ``held`` keeps it during one replay, even if the cache drops it."""
    found = held.get(version) if held is not None else None
    found = found or cache.dictionary(identity.number, version)
    if found is None:
        content, digest = read_snapshot(txn, identity, version)
        found = Dictionary(version, digest, content)
        cache.put_dictionary(identity.number, found)
    if held is not None:
        held.clear()  # one is enough: a replay does not return to an earlier dictionary
        held[version] = found
    return found


def read_edits(
    txn: lmdb.Transaction, identity: Identity, entry: Entry, cache: Cache, held: Held | None = None
) -> bytes:
    """Returns the edits of a version, a serialized Diff. Raises Corrupt."""
    header = entry.header
    dictionary = None
    try:
        if header.parts_id or not header.edit_bytes:
            # The entry has no edits of its own that authenticate the header, so open its metadata.
            entry.open_metadata_bytes(identity.cipher, identity.uid)
        if header.dictionary_version:
            dictionary = read_dictionary(txn, identity, header.dictionary_version, cache, held)
        if header.parts_id:
            pieces = (value for _, value in rows(txn, identity.keys.edits_pieces(header.parts_id)))
            content, _ = parts.open_pieces(
                identity.cipher, parts.EDITS_MAGIC, pieces, identity.uid, layout.u64(header.parts_id),
                dictionary=dictionary,
            )  # fmt: skip
            return content
        return entry.open_edits(identity.cipher, identity.uid, dictionary)
    except Corrupt as error:
        raise error.locate(identity.name, header.version) from None


def parse_edits(edits: bytes, name: str, version: int) -> Diff:
    """Parses stored edits. Raises Corrupt."""
    try:
        return Diff.FromString(edits)
    except DecodeError:
        raise Corrupt("stored edits cannot be read", name, version) from None


def state_at(txn: lmdb.Transaction, thread: Versions, version: int, cache: Cache) -> StateTree:
    """Returns the state at a version; 0 is the empty state.

    Raises VersionNotFound, VersionPruned, HistoryElsewhere or Corrupt.
    """
    return state_and_base(txn, thread, version, cache)[0]


def state_and_base(
    txn: lmdb.Transaction, thread: Versions, version: int, cache: Cache, near: dict[int, StateTree] | None = None
) -> tuple[StateTree, int]:
    """Returns the state at a version, and the version of the snapshot that was read for it (0 = none was read).

    ``near``: states of other versions, by version. The result is then put there, and not into the cache.
    """
    identity = thread.identity
    if version:
        check_version(thread, version)
    chain: list[Entry] = []
    at, base = version, 0
    while True:
        tree = _known_state(thread, at, cache, near)
        if tree is not None:
            break
        if at in thread.snapshots:
            try:
                content, digest = read_snapshot(txn, identity, at)
                tree = from_snapshot(content, cache.source(identity))
                check_line(txn, thread, at, digest)
            except (Corrupt, DecodeError) as error:
                raise _unreadable(error, identity.name, at) from None
            base = at
            break
        entry = _edited(txn, thread, at)
        chain.append(entry)
        at = entry.header.parent_version
    if cache.measures is not None and (chain or base):
        cache.measures.chains.add(len(chain))
    held: Held = {}
    try:
        for entry in reversed(chain):
            tree = _replay(txn, identity, entry, tree, cache, held)
            at = entry.header.version
    finally:
        # Cache the state even if the next entry is damaged, so that a repetition of the read costs little.
        if near is not None:
            near[at] = tree
        elif at and (chain or base):
            cache.put_state(identity.number, at, tree)
    return tree, base


def check_line(txn: lmdb.Transaction, thread: Versions, version: int, digest: bytes) -> None:
    """Raises Corrupt if a snapshot belongs to a version of another line with the same number.

    Checks nothing if the version's entry is pruned, or below the floor.
    """
    if version in thread.pruned or version <= thread.floor_version:
        return
    entry = read_version(txn, thread, version)
    entry.open_metadata_bytes(thread.identity.cipher, thread.identity.uid)  # proves the digest in its header
    if entry.header.digest != digest:
        raise Corrupt("a snapshot belongs to another history", thread.identity.name, version)


def _replay(
    txn: lmdb.Transaction, identity: Identity, entry: Entry, tree: StateTree, cache: Cache, held: Held
) -> StateTree:
    version = entry.header.version
    diff = parse_edits(read_edits(txn, identity, entry, cache, held), identity.name, version)
    try:
        return apply_edits(tree, diff, version)
    except EditConflict as error:
        raise Corrupt(f"stored edits do not fit their parent: {error.message}", identity.name, version) from None


def nearest_snapshot(txn: lmdb.Transaction, thread: Versions, version: int) -> tuple[int, int]:
    """Returns the nearest snapshot in a version's ancestry (0 = none), and the weight of the versions since."""
    weight = 0
    while version and version not in thread.snapshots:
        entry = _edited(txn, thread, version)
        weight += entry_weight(entry.header.edit_stored_bytes)
        version = entry.header.parent_version
    return version, weight


def entry_weight(edit_stored_bytes: int) -> int:
    """Returns what a version adds to the cost of a replay: its sealed bytes, and 256 for each record."""
    return edit_stored_bytes + 256


def is_ancestor(txn: lmdb.Transaction, thread: Versions, ancestor: int, version: int) -> bool:
    """Returns whether ``version`` was made from ``ancestor``, directly or through other versions."""
    while version > ancestor:
        version = _chain_entry(txn, thread, version).header.parent_version
    return version == ancestor


def snapshot_stored_bytes(txn: lmdb.Transaction, identity: Identity, version: int) -> int:
    """Returns the size of a snapshot at rest, in bytes."""
    return sum(len(value) for _, value in rows(txn, identity.keys.snapshot_pieces(version)))


def _known_state(
    thread: Versions, version: int, cache: Cache, near: dict[int, StateTree] | None = None
) -> StateTree | None:
    if version == 0:
        return EMPTY
    if near is not None and version in near:
        return near[version]
    if isinstance(thread, ThreadDraft) and version in thread.states:
        return thread.states[version]
    return cache.state(thread.identity.number, version)


def is_cut(thread: Versions, header: EntryHeader) -> bool:
    """Returns whether a version can be read with its own snapshot only: it is whole, or its parent was pruned."""
    return header.whole or header.parent_version in thread.pruned


def _edited(txn: lmdb.Transaction, thread: Versions, version: int) -> Entry:
    """Returns the entry of a version that has no snapshot, and so must have edits. Raises MissingSnapshot."""
    entry = _chain_entry(txn, thread, version)
    if entry.header.whole:
        raise MissingSnapshot(
            f"version {version} is a copied state, and its snapshot is missing", thread.identity.name, version
        )
    return entry


def _chain_entry(txn: lmdb.Transaction, thread: Versions, version: int) -> Entry:
    try:
        return read_version(txn, thread, version)
    except (VersionPruned, VersionNotFound):
        raise MissingSnapshot(
            f"version {version} is missing without a snapshot, and later versions need it", thread.identity.name
        ) from None


def _unreadable(error: Exception, name: str, version: int) -> Corrupt:
    if isinstance(error, Corrupt):
        return error.locate(name, version)
    return Corrupt("a snapshot cannot be read", name, version)
