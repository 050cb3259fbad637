"""Reading versions back: from the nearest snapshot on a version's ancestry, through the edits since.

Everything works inside a transaction that the caller opened for one synchronous step.
"""

from __future__ import annotations

import lmdb
from google.protobuf.message import DecodeError

from stateward.storage.v1.journal_pb2 import EntryMetadata
from stateward.v1.diff_pb2 import Diff
from stateward_sidecar.codec import parts
from stateward_sidecar.codec.compress import Dictionary
from stateward_sidecar.codec.edits import apply_edits
from stateward_sidecar.codec.entry import Entry, unpack
from stateward_sidecar.codec.snapshot import from_snapshot
from stateward_sidecar.codec.state import EMPTY, StateTree
from stateward_sidecar.errors import Corrupt, EditConflict, HistoryElsewhere, VersionNotFound, VersionPruned
from stateward_sidecar.storage import layout
from stateward_sidecar.store.cache import Cache
from stateward_sidecar.store.identity import Identity
from stateward_sidecar.store.thread import Draft, Thread, rows

Versions = Thread | Draft
Held = dict[int, Dictionary]


def sequence_of(txn: lmdb.Transaction, thread: Versions, version: int) -> int:
    """Place of a version in the journal. Raises VersionNotFound, VersionPruned or Corrupt."""
    check_version(thread, version)
    return place_of(txn, thread, version)


def place_of(txn: lmdb.Transaction, thread: Versions, version: int) -> int:
    """The same for a version that may be pruned. Raises Corrupt."""
    keys = thread.identity.keys
    cursor = txn.cursor()
    key = keys.version_offset(version)
    # The last row at or before this version says by how much its sequence is ahead.
    if not (cursor.set_range(key) and bytes(cursor.key()) == key):
        found = cursor.prev() if cursor.key() else cursor.last()
        if not found or not bytes(cursor.key()).startswith(keys.all_of(b"V")):
            raise Corrupt("the index of versions is damaged", thread.identity.name, version)
    return version + layout.signed_of(cursor.value())


def check_version(thread: Versions, version: int) -> None:
    """Raises unless the version was given out and is retained."""
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
    """The error for what only the archive has. ``for_retry``: only what a retry may ask for is needed."""
    return HistoryElsewhere(
        f"older history of thread {identity.name!r} is in the archive only", namespace=identity.namespace,
        thread=identity.name, for_retry="yes" if for_retry else "",
    )  # fmt: skip


def read_entry(txn: lmdb.Transaction, identity: Identity, sequence: int) -> Entry:
    """One journal entry. Raises Corrupt where it is missing: callers know that it must be there."""
    record = txn.get(identity.keys.entry(sequence))
    if record is None:
        raise Corrupt(f"journal entry {sequence} is missing", identity.name)
    try:
        return unpack(record, sequence)
    except Corrupt as error:
        raise error.locate(identity.name) from None


def open_metadata(identity: Identity, entry: Entry) -> EntryMetadata:
    """What an entry says; also proves its header. Raises Corrupt."""
    try:
        return entry.open_metadata(identity.cipher, identity.uid)
    except Corrupt as error:
        raise error.locate(identity.name, entry.header.version) from None


def read_indexed(txn: lmdb.Transaction, identity: Identity, row: bytes | memoryview) -> Entry:
    """The entry that a row of checkpoint ids or request ids names. Raises Corrupt."""
    try:
        return read_entry(txn, identity, layout.leading_number(row))
    except Corrupt as error:
        raise error.locate(identity.name) from None


def read_version(txn: lmdb.Transaction, thread: Versions, version: int) -> Entry:
    """The entry that made a version."""
    try:
        entry = read_entry(txn, thread.identity, sequence_of(txn, thread, version))
    except Corrupt as error:
        raise error.locate(thread.identity.name, version) from None
    if entry.header.version != version:
        raise Corrupt(
            f"journal entry {entry.header.sequence} holds version {entry.header.version}", thread.identity.name, version
        )
    # The header is authenticated only where a part is opened: a changed parent must not lead round in a circle.
    if not 0 <= entry.header.parent_version < version:
        raise Corrupt(f"an entry names the parent {entry.header.parent_version}", thread.identity.name, version)
    return entry


def read_snapshot(txn: lmdb.Transaction, identity: Identity, version: int) -> tuple[bytes, bytes]:
    """Content of a snapshot and the digest of its version."""
    pieces = (value for _, value in rows(txn, identity.keys.snapshot_pieces(version)))
    return parts.open_pieces(identity.cipher, parts.SNAPSHOT_MAGIC, pieces, identity.uid, layout.u64(version))


def read_dictionary(
    txn: lmdb.Transaction, identity: Identity, version: int, cache: Cache, held: Held | None = None
) -> Dictionary:
    """The digested snapshot of a version. ``held`` keeps it through one replay, whatever the cache does."""
    found = held.get(version) if held is not None else None
    found = found or cache.dictionary(identity.number, version)
    if found is None:
        content, digest = read_snapshot(txn, identity, version)
        found = Dictionary(version, digest, content)
        cache.put_dictionary(identity.number, found)
    if held is not None:
        held.clear()  # a chain goes from one dictionary to the next
        held[version] = found
    return found


def read_edits(
    txn: lmdb.Transaction, identity: Identity, entry: Entry, cache: Cache, held: Held | None = None
) -> bytes:
    """What a version changed: a serialized Diff. Raises Corrupt."""
    header = entry.header
    dictionary = None
    try:
        if header.parts_id or not header.edit_bytes:
            # No edits of its own that would vouch for the header: its metadata does.
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
    """The state at a version; 0 is the empty state. Raises VersionNotFound, VersionPruned or Corrupt."""
    return state_and_base(txn, thread, version, cache)[0]


def state_and_base(txn: lmdb.Transaction, thread: Versions, version: int, cache: Cache) -> tuple[StateTree, int]:
    """The state at a version, and the snapshot it was read from (0 where it came from the cache or from nothing)."""
    identity = thread.identity
    if version:
        check_version(thread, version)
    chain: list[Entry] = []
    at, base = version, 0
    while True:
        tree = _known_state(thread, at, cache)
        if tree is not None:
            break
        if at in thread.snapshots:
            try:
                content, digest = read_snapshot(txn, identity, at)
                tree = from_snapshot(content)
                check_line(txn, thread, at, digest)
            except (Corrupt, DecodeError) as error:
                raise _unreadable(error, identity.name, at) from None
            base = at
            break
        entry = _chain_entry(txn, thread, at)
        chain.append(entry)
        at = entry.header.parent_version
    held: Held = {}
    try:
        for entry in reversed(chain):
            tree = _replay(txn, identity, entry, tree, cache, held)
            at = entry.header.version
    finally:
        # Before damage too: who asks again must not cost as much again.
        if at and (chain or base):
            cache.put_state(identity.number, at, tree)
    return tree, base


def check_line(txn: lmdb.Transaction, thread: Versions, version: int, digest: bytes) -> None:
    """Raises Corrupt for a snapshot of another line, whose version has the same number, as far as the entry is here."""
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
    """The nearest snapshot on a version's ancestry (0 = none), and the weight of the versions since."""
    weight = 0
    while version and version not in thread.snapshots:
        entry = _chain_entry(txn, thread, version)
        weight += entry_weight(entry.header.edit_stored_bytes)
        version = entry.header.parent_version
    return version, weight


def entry_weight(edit_stored_bytes: int) -> int:
    """What a version adds to the cost of a replay: its bytes, and 256 for being one more record."""
    return edit_stored_bytes + 256


def is_ancestor(txn: lmdb.Transaction, thread: Versions, ancestor: int, version: int) -> bool:
    """True when ``version`` was made from ``ancestor``, directly or through others."""
    while version > ancestor:
        version = _chain_entry(txn, thread, version).header.parent_version
    return version == ancestor


def snapshot_stored_bytes(txn: lmdb.Transaction, identity: Identity, version: int) -> int:
    """Bytes a snapshot takes at rest."""
    return sum(len(value) for _, value in rows(txn, identity.keys.snapshot_pieces(version)))


def _known_state(thread: Versions, version: int, cache: Cache) -> StateTree | None:
    if version == 0:
        return EMPTY
    if isinstance(thread, Draft) and version in thread.states:
        return thread.states[version]
    return cache.state(thread.identity.number, version)


def _chain_entry(txn: lmdb.Transaction, thread: Versions, version: int) -> Entry:
    try:
        return read_version(txn, thread, version)
    except (VersionPruned, VersionNotFound):
        raise Corrupt(
            f"version {version}, from which later ones were made, is gone without a snapshot", thread.identity.name
        ) from None


def _unreadable(error: Exception, name: str, version: int) -> Corrupt:
    if isinstance(error, Corrupt):
        return error.locate(name, version)
    return Corrupt("a snapshot cannot be read", name, version)
