"""Checks that the archive has the blobs of a thread, and that they can be opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from stateward.storage.v1.archive_pb2 import ThreadImage
from stateward.storage.v1.head_pb2 import BlobRow
from stateward_sidecar.archive.fleet.counted import CountedFetcher
from stateward_sidecar.archive.objects.structure import Flaw
from stateward_sidecar.archive.wire.places import Place
from stateward_sidecar.bucket.errors import ObjectNotFound
from stateward_sidecar.codec.blob import BlobCipher, open_all
from stateward_sidecar.codec.seal import Cipher
from stateward_sidecar.errors import Corrupt


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
    fetcher: CountedFetcher, place: Place, cipher: Cipher, uid: bytes, row: BlobRow
) -> Iterator[Flaw | None]:
    """Opens a blob segment by segment. Yields None after each segment, and ends with a flaw if the blob is missing or
    damaged. Raises ArchiveUnavailable."""
    key = place.blob(row.record.blob_id)
    try:
        for _ in open_all(partial(fetcher.range, key), BlobCipher(cipher, uid, row.record.blob_id), row.record):
            yield None
    except ObjectNotFound:
        yield Flaw(f"the blob {key} is missing in the archive", sequence=row.sequence)
    except Corrupt as error:
        yield Flaw(f"{key}: {error.message}", sequence=row.sequence)
