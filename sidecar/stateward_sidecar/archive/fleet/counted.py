"""Reads for commands. Works like ``Fetcher``, and counts the bytes, so that commands can report progress."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from stateward.storage.v1.archive_pb2 import ArchiveHead, ArchiveIndex, ObjectRef
from stateward_sidecar.archive.objects.fetch import Fetcher, Seen
from stateward_sidecar.archive.objects.packs import open_index
from stateward_sidecar.archive.wire.places import Place
from stateward_sidecar.archive.wire.wire import Wire
from stateward_sidecar.storage.keystore import NamespaceKeys


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

    def look(self, namespace: NamespaceKeys, place: Place, *, with_key: bool) -> Seen | None:
        seen = super().look(namespace, place, with_key=with_key)
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
