"""What a HEAD names is enough to read all that its rows say.

This is looked at for each HEAD that lands, because its machine may be lost right after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stateward.storage.v1.archive_pb2 import OBJECT_KIND_SNAPSHOT, ArchiveHead, ObjectRef
from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward_sidecar.archive.objects.image import open_image, part_refs
from stateward_sidecar.archive.objects.packs import is_pack, open_index, open_pack, snapshots_of
from stateward_sidecar.archive.requests.places import Place
from stateward_sidecar.codec.entry import sequence_of, unpack
from stateward_sidecar.codec.seal import Cipher
from stateward_sidecar.store.kinds.table import is_cut
from stateward_sidecar.store.thread.ranges import Pruned
from stateward_sidecar.store.travel.fetched import is_entry

Entries = list[tuple[EntryHeader, bool]]  # and whether it was cut down to a husk


class Naming:
    """Remembers what is in objects, which never change."""

    def __init__(self) -> None:
        self._packs: dict[str, Entries] = {}

    def check(self, objects: Mapping[str, bytes], place: Place, head: ArchiveHead, key: bytes) -> None:
        """Fails unless all entries that count are whole, and all retained versions are there, and their snapshots."""
        refs = [*self._indexed(objects, place, head), *head.objects]
        tail = [unpack(record, sequence_of(record)) for record in head.tail]
        entries: Entries = [(entry.header, entry.is_husk) for entry in tail]
        for ref in filter(is_pack, refs):
            entries += self._entries(objects, place.object(ref), ref)
        image = open_image(Cipher(key), head, [objects[place.object(ref)] for ref in part_refs(head)])
        pruned = Pruned.from_message(image.pruned)
        counting = [(header, is_husk) for header, is_husk in entries if not is_cut(pruned, header)]
        whole = {header.sequence for header, is_husk in counting if not is_husk}
        cleared = sorted({header.sequence for header, _ in counting} - whole)
        assert not cleared, f"HEAD says that entries are whole which were cleared: {cleared}"
        missing = set(pruned.missing(head.last_version)) - {header.version for header, _ in counting}
        assert not missing, f"HEAD says that there are versions that no object has: {sorted(missing)}"
        snapshots = {ref.first_version for ref in refs if ref.kind == OBJECT_KIND_SNAPSHOT} | {head.snapshot_version}
        needed = snapshots_of(header for header, _ in counting) - snapshots
        assert not needed, f"HEAD leads to entries without the snapshots that they need: {sorted(needed)}"

    def _entries(self, objects: Mapping[str, bytes], name: str, ref: ObjectRef) -> Entries:
        if name not in self._packs:
            found = [unpack(row.record, row.sequence) for row in open_pack(ref, objects[name]) if is_entry(row)]
            self._packs[name] = [(entry.header, entry.is_husk) for entry in found]
        return self._packs[name]

    @staticmethod
    def _indexed(objects: Mapping[str, bytes], place: Place, head: ArchiveHead) -> Iterator[ObjectRef]:
        at = head.index if head.HasField("index") else None
        while at is not None:
            index = open_index(at, objects[place.object(at)])
            yield from index.objects
            at = index.previous if index.HasField("previous") else None
