"""Cuts files into chunks, as docs/protocol.md says."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Protocol

from stateward._version import install_command

KIB = 1 << 10
WHOLE_BYTES_MAX = 256 * KIB
"""A file of at most this size is one chunk."""
CHUNK_BYTES_MIN, CHUNK_BYTES_AVERAGE, CHUNK_BYTES_MAX = 64 * KIB, 256 * KIB, 1024 * KIB


class Source(Protocol):
    """A file that is read."""

    def readinto(self, buffer: Any, /) -> int: ...


def cut(source: Source) -> Iterator[bytes]:
    """Yields the chunks of a file that has more than WHOLE_BYTES_MAX bytes."""
    for chunk in chunker()(
        CHUNK_BYTES_AVERAGE, min_size=CHUNK_BYTES_MIN, max_size=CHUNK_BYTES_MAX, normalized_chunking=1, seed=0
    ).cut_stream(source):
        yield bytes(chunk.data)


@cache
def chunker() -> Any:
    """Returns FastCDC of PyFastCDC. Raises ImportError, which says how to install it."""
    try:
        from pyfastcdc import FastCDC  # noqa: PLC0415  an extra
    except ImportError:
        raise ImportError(f"workspaces need more packages: {install_command('workspace')}") from None
    return FastCDC
