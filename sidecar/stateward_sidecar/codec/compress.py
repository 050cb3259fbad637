"""Compresses with zstd, with a snapshot as dictionary if there is one.

A compressor that several threads share crashes the process (seen). So each object here has a lock, or belongs to one
thread. No frame is decompressed beyond the size that its caller has authenticated.
"""

from __future__ import annotations

import threading

import zstandard

from stateward.storage.v1.journal_pb2 import (
    COMPRESSION_UNSPECIFIED,
    COMPRESSION_ZSTD,
    COMPRESSION_ZSTD_DICTIONARY,
    Compression,
)
from stateward_sidecar.errors import Corrupt

LEVEL = 3
# Snapshots are made in the background. This level gives a tenth fewer bytes than level 3 in three times its time
# (recorded runs).
SNAPSHOT_LEVEL = 7
# Segments stay as long as their log: 13 % fewer bytes than level 3, for 5 ms more for each MiB, in the background.
SEGMENT_LEVEL = 9
# Metadata is short: at this level it takes half the time of level 3, and the same bytes.
METADATA_LEVEL = 1
# Digesting costs 2.8 ms per MB and needs as much memory again. The newest part of a state helps most.
DICTIONARY_BYTES_MAX = 8 << 20
# Edits are looked for in a dictionary with care: 12 % fewer bytes than level 3 (recorded runs), in 3 µs more for a
# message of 1 KB. zstd's levels that do so have three times the tables. In a large dictionary, tables of this size
# would miss what is far back. Large edits gain little and would take three times as long: level 3 digests the
# dictionary anew for them, unless that takes longer.
CAREFUL_CONTENT_BYTES_MAX, CAREFUL_EDITS_BYTES_MAX, LARGER_BY = 512 << 10, 64 << 10, 4
_SEARCH_LOG, _MIN_MATCH_BYTES, _TARGET_BYTES = 4, 5, 16
_TABLE_LOG_MIN, _WINDOW_LOG_MIN = 15, 18
# Below this size a frame is larger than its content.
WORTHWHILE_BYTES = 64

_local = threading.local()


class Dictionary:
    """The digested content of a snapshot. Safe to share between threads."""

    __slots__ = ("_compressor", "_data", "_decompressor", "_is_careful", "_lock", "digest", "size_bytes", "version")

    def __init__(self, version: int, digest: bytes, snapshot: bytes) -> None:
        self.version = version
        self.digest = digest
        content = snapshot[-DICTIONARY_BYTES_MAX:]
        self.size_bytes = dictionary_bytes(len(content))
        self._data = zstandard.ZstdCompressionDict(content, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        self._is_careful = len(content) <= CAREFUL_CONTENT_BYTES_MAX
        self._lock = threading.Lock()
        if self._is_careful:
            parameters = _careful(len(content))
            self._data.precompute_compress(compression_params=parameters)
            self._compressor = zstandard.ZstdCompressor(compression_params=parameters, dict_data=self._data)
        else:
            self._data.precompute_compress(level=LEVEL)
            self._compressor = _usual(self._data)
        self._decompressor = zstandard.ZstdDecompressor(dict_data=self._data)

    def compress(self, data: bytes) -> bytes:
        """Returns one frame, which can be read only with this dictionary."""
        if self._is_careful and len(data) > CAREFUL_EDITS_BYTES_MAX and len(self._data) <= LARGER_BY * len(data):
            content = zstandard.ZstdCompressionDict(self._data.as_bytes(), dict_type=zstandard.DICT_TYPE_RAWCONTENT)
            return _usual(content).compress(data)
        with self._lock:
            return self._compressor.compress(data)

    def decompress(self, frame: bytes, size_bytes: int) -> bytes:
        """The reverse of ``compress``; ``size_bytes`` is authenticated and bounds the allocation."""
        with self._lock:
            return _decompress(self._decompressor, frame, size_bytes)


def dictionary_bytes(snapshot_bytes: int) -> int:
    """Returns the approximate memory of a snapshot's dictionary: content, digest, compressor and
    decompressor. Measured: 0.1 MB for 20 kB, 0.3 MB for 100 kB, 1.7 MB for 500 kB to 1 MB, 11 MB for 8 MB."""
    content_bytes = min(snapshot_bytes, DICTIONARY_BYTES_MAX)
    return 100_000 + min(20 * content_bytes, 600_000) + 2 * content_bytes


def _usual(content: zstandard.ZstdCompressionDict) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=LEVEL, dict_data=content, write_content_size=False, write_checksum=False)


def _careful(content_bytes: int) -> zstandard.ZstdCompressionParameters:
    # Each of two tables of places is half as long as the content, and long enough for the edits.
    log = max(max(content_bytes - 1, 1).bit_length() - 1, _TABLE_LOG_MIN)
    return zstandard.ZstdCompressionParameters(
        strategy=zstandard.STRATEGY_LAZY, hash_log=log, chain_log=log, search_log=_SEARCH_LOG,
        min_match=_MIN_MATCH_BYTES, target_length=_TARGET_BYTES,
        window_log=max(content_bytes.bit_length() + 1, _WINDOW_LOG_MIN),
        write_content_size=False, write_checksum=False,
    )  # fmt: skip


def compress(data: bytes, dictionary: Dictionary | None = None, level: int = LEVEL) -> tuple[Compression, bytes]:
    """Returns the kind of compression and the result, or the data itself if it is no larger than the result.

    ``level`` does not apply to a dictionary, which has its own.
    """
    if len(data) < WORTHWHILE_BYTES and dictionary is None:
        return COMPRESSION_UNSPECIFIED, data
    if dictionary is not None:
        kind, frame = COMPRESSION_ZSTD_DICTIONARY, dictionary.compress(data)
    else:
        kind, frame = COMPRESSION_ZSTD, _compressor(level).compress(data)
    return (kind, frame) if len(frame) < len(data) else (COMPRESSION_UNSPECIFIED, data)


def decompress(kind: Compression, frame: bytes, size_bytes: int, dictionary: Dictionary | None = None) -> bytes:
    """The reverse of ``compress``. ``size_bytes`` must be authenticated: it bounds the allocation."""
    if kind == COMPRESSION_UNSPECIFIED:
        if len(frame) != size_bytes:
            raise Corrupt(f"a part has {len(frame)} bytes where {size_bytes} were stored")
        return frame
    if kind == COMPRESSION_ZSTD:
        return _decompress(_decompressor(), frame, size_bytes)
    if kind == COMPRESSION_ZSTD_DICTIONARY and dictionary is not None:
        return dictionary.decompress(frame, size_bytes)
    raise Corrupt(f"compression {kind} cannot be read by this version")


def _decompress(decompressor: zstandard.ZstdDecompressor, frame: bytes, size_bytes: int) -> bytes:
    # The size in a frame would override the bound. The daemon's own frames have none.
    try:
        if zstandard.frame_content_size(frame) > size_bytes:
            raise Corrupt("a frame is larger than its authenticated size")
        data = decompressor.decompress(frame, max_output_size=max(size_bytes, 1))
    except zstandard.ZstdError as error:
        raise Corrupt(f"a frame does not decompress: {error}") from None
    if len(data) != size_bytes:
        raise Corrupt(f"a frame holds {len(data)} bytes where {size_bytes} were stored")
    return data


def _compressor(level: int) -> zstandard.ZstdCompressor:
    compressors: dict[int, zstandard.ZstdCompressor] = _local.__dict__.setdefault("compressors", {})
    if level not in compressors:
        compressors[level] = zstandard.ZstdCompressor(level=level, write_content_size=False, write_checksum=False)
    return compressors[level]


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_local, "decompressor"):
        _local.decompressor = zstandard.ZstdDecompressor()
    return _local.decompressor  # type: ignore[no-any-return]
