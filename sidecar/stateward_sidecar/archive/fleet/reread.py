"""Reads a thread's objects and checks every hash, every seal, every digest and every blob.

Works like ``Fetcher``, and counts the bytes, so that commands can report progress. Entries are opened with the
dictionaries in the thread's own snapshot objects. This proves that a sidecar with an empty disk could read them. Pruned
entries are opened if everything that they need still exists.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from stateward.storage.v1.archive_pb2 import (
    OBJECT_KIND_SNAPSHOT,
    ArchiveHead,
    ArchiveIndex,
    ObjectRef,
    PackedRow,
    ThreadImage,
)
from stateward.storage.v1.head_pb2 import BlobRow
from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward_sidecar.archive.objects.fetch import Fetcher, Seen
from stateward_sidecar.archive.objects.packs import Flaw, flaw_of, is_pack, open_index, open_pack, snapshot_rows
from stateward_sidecar.archive.requests.metered import Wire
from stateward_sidecar.archive.requests.places import Place
from stateward_sidecar.bucket.base import ObjectNotFound
from stateward_sidecar.codec.blob import open_all
from stateward_sidecar.codec.compress import Dictionary
from stateward_sidecar.codec.entry import Entry, entry_digest, unpack
from stateward_sidecar.codec.parts import EDITS_MAGIC, SNAPSHOT_MAGIC, open_pieces
from stateward_sidecar.codec.seal import Cipher, content_hash
from stateward_sidecar.codec.snapshot import from_snapshot
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.store.kinds.table import is_cut
from stateward_sidecar.store.thread.ranges import Pruned
from stateward_sidecar.store.travel.fetched import is_entry, is_snapshot


class CountedFetcher(Fetcher):
    """Counts the bytes that it reads. Safe to share between threads."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self._lock = threading.Lock()
        self.read_bytes = 0

    def object(self, place: Place, ref: ObjectRef) -> bytes:
        """Returns the bytes of an object, after checking length and hash. Raises Corrupt, ArchiveUnavailable."""
        return self._object(place, ref)

    def range(self, key: str, offset: int, length: int) -> bytes:
        """Returns a part of an object, unchecked. Raises ObjectNotFound, ArchiveUnavailable."""
        data = self._wire.get_range(key, offset, length)
        self.count(len(data))
        return data

    def chain(self, place: Place, head: ArchiveHead) -> Iterator[tuple[ObjectRef, ArchiveIndex]]:
        """Yields reference and content of HEAD's indexes, newest first. Raises Corrupt, ArchiveUnavailable."""
        at = head.index if head.HasField("index") else None
        while at is not None:
            index = open_index(at, self._object(place, at))
            yield at, index
            at = index.previous if index.HasField("previous") else None

    def look(
        self, namespace: NamespaceKeys, place: Place, *, with_key: bool, session_key: bytes = b""
    ) -> Seen | None:
        seen = super().look(namespace, place, with_key=with_key, session_key=session_key)
        if seen is not None:
            self.count(seen.head.ByteSize())
        return seen

    def _object(self, place: Place, ref: ObjectRef) -> bytes:
        data = super()._object(place, ref)
        self.count(len(data))
        return data

    def count(self, size_bytes: int) -> None:
        """Counts bytes that were read in another way."""
        with self._lock:
            self.read_bytes += size_bytes


# Entries use one dictionary after another; each may have some megabytes.
DICTIONARIES_KEPT = 2


class Rereader:
    """Opens the objects of one thread, oldest first."""

    def __init__(
        self, fetcher: CountedFetcher, place: Place, head: ArchiveHead, image: ThreadImage, data_key: bytes,
        refs: Sequence[ObjectRef], told: set[int],
    ) -> None:  # fmt: skip
        """``told``: versions of snapshots that are known to be bad, and were reported."""
        self._fetcher = fetcher
        self._place = place
        self._head = head
        self._cipher = Cipher(data_key)
        self._pruned = Pruned.from_message(image.pruned)
        self._snapshots = {ref.first_version: ref for ref in refs if ref.kind == OBJECT_KIND_SNAPSHOT}
        self._dictionaries: dict[int, Dictionary | None] = {}  # None = it cannot be read, and that was reported
        self._told = told
        self._last: EntryHeader | None = None

    def check(self, ref: ObjectRef) -> Iterator[Flaw]:
        """Reads one object and yields its flaws. Raises ArchiveUnavailable."""
        if not is_pack(ref) and ref.first_version in self._told:
            return
        try:
            found = open_pack(ref, self._fetcher.object(self._place, ref))
            if not is_pack(ref):
                from_snapshot(self._open_snapshot(ref.first_version, found)[0])
        except Corrupt as error:
            yield self._flaw(error, ref)
            return
        if is_pack(ref):
            yield from self.check_entries(found)

    def _flaw(self, error: Corrupt, ref: ObjectRef) -> Flaw:
        if not is_pack(ref):
            self._told.add(ref.first_version)
        key = self._place.object(ref)
        message = error.message if key in error.message else f"{key}: {error.message}"
        return Flaw(message, ref.first_version, ref.first_sequence)

    def check_entries(self, found: Sequence[PackedRow]) -> Iterator[Flaw]:
        """Opens the entries of a pack or of HEAD, and yields their flaws."""
        pieces: dict[int, list[PackedRow]] = {}
        for row in found:
            if row.WhichOneof("place") == "parts_id":
                pieces.setdefault(row.parts_id, []).append(row)
        for row in found:
            if not is_entry(row):
                continue
            version = 0
            try:
                entry = unpack(row.record, row.sequence)
                version = entry.header.version
                flaw = self._check_entry(entry, pieces.get(entry.header.parts_id, []))
            except Corrupt as error:
                flaw = flaw_of(error, version, row.sequence)
            if flaw is not None:
                yield flaw

    def _check_entry(self, entry: Entry, pieces: Sequence[PackedRow]) -> Flaw | None:
        """Checks an entry. Raises Corrupt, or returns a flaw of the dictionary that the entry needs."""
        header, uid = entry.header, self._head.uid
        before, self._last = self._last, header
        metadata = entry.open_metadata_bytes(self._cipher, uid)
        is_next = before is not None and header.sequence == before.sequence + 1
        if before is not None and is_next and header.previous_digest != before.digest:
            raise Corrupt(f"entry {header.sequence} does not continue the one before it")
        if is_cut(self._pruned, header) and (entry.is_husk or not self._can_open(entry, pieces)):
            return None
        dictionary = None
        if header.dictionary_version:
            dictionary, flaw = self._dictionary(header.dictionary_version)
            if dictionary is None:
                return flaw
        if header.parts_id:
            rows = [row.record for row in sorted(pieces, key=lambda row: row.index)]
            edits, _ = open_pieces(
                self._cipher, EDITS_MAGIC, iter(rows), uid, layout.u64(header.parts_id), dictionary=dictionary
            )
        else:
            edits = entry.open_edits(self._cipher, uid, dictionary)
        if entry_digest(self._cipher, header, metadata, content_hash(edits)) != header.digest:
            raise Corrupt(f"entry {header.sequence} has another digest than its header says")
        return None

    def _can_open(self, entry: Entry, pieces: Sequence[PackedRow]) -> bool:
        """Whether the archive still names everything that a pruned entry needs."""
        wanted = entry.header.dictionary_version
        has_dictionary = not wanted or wanted in self._snapshots or wanted == self._head.snapshot_version
        return has_dictionary and (not entry.header.parts_id or bool(pieces))

    def _dictionary(self, version: int) -> tuple[Dictionary | None, Flaw | None]:
        """Returns a dictionary; or None, and the flaw if it was not reported yet."""
        if version in self._dictionaries:
            return self._dictionaries[version], None
        while len(self._dictionaries) >= DICTIONARIES_KEPT:
            del self._dictionaries[next(iter(self._dictionaries))]
        ref, flaw = self._snapshots.get(version), None
        dictionary: Dictionary | None = None
        try:
            if version == self._head.snapshot_version:
                found = snapshot_rows(version, self._head.snapshot_pieces)
            elif ref is not None:
                found = open_pack(ref, self._fetcher.object(self._place, ref))
            else:
                raise Corrupt(
                    f"no object has the snapshot of version {version}, which is the dictionary of other entries"
                )
            content, digest = self._open_snapshot(version, found)
            dictionary = Dictionary(version, digest, content)
        except Corrupt as error:
            if version not in self._told:
                flaw = self._flaw(error, ref) if ref is not None else flaw_of(error, version)
                self._told.add(version)
        self._dictionaries[version] = dictionary
        return dictionary, flaw

    def _open_snapshot(self, version: int, found: Sequence[PackedRow]) -> tuple[bytes, bytes]:
        rows = [row for row in found if is_snapshot(row) and row.snapshot_version == version]
        pieces = (row.record for row in sorted(rows, key=lambda row: row.index))
        return open_pieces(self._cipher, SNAPSHOT_MAGIC, pieces, self._head.uid, layout.u64(version))


def find_missing_blobs(
    fetcher: CountedFetcher, place: Place, image: ThreadImage, sizes: Mapping[str, int]
) -> Iterator[tuple[BlobRow, Flaw]]:
    """Yields the blobs of the image that are missing in the archive or have the wrong size.

    ``sizes``: size of each listed object, by name. Raises ArchiveUnavailable.
    """
    for row in image.blobs:
        key = place.blob(row.record.blob_id)
        size = sizes.get(key)
        if size is None:
            try:
                fetcher.range(key, 0, 1)  # the blob may be newer than the listing
            except ObjectNotFound:
                yield row, Flaw(f"the blob {key} is missing in the archive", sequence=row.sequence)
        elif size != row.record.stored_bytes:
            message = f"the blob {key} has {size} bytes in the archive, but {row.record.stored_bytes} were uploaded"
            yield row, Flaw(message, sequence=row.sequence)


def reread_blob(
    fetcher: CountedFetcher, place: Place, row: BlobRow
) -> Iterator[Flaw | None]:
    """Opens a blob segment by segment. Yields None after each segment, and ends with a flaw if the blob is missing or
    damaged. Raises ArchiveUnavailable."""
    key = place.blob(row.record.blob_id)
    try:
        for _ in open_all(partial(fetcher.range, key), row.record):
            yield None
    except ObjectNotFound:
        yield Flaw(f"the blob {key} is missing in the archive", sequence=row.sequence)
    except Corrupt as error:
        yield Flaw(f"{key}: {error.message}", sequence=row.sequence)
