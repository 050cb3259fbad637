"""Syncs that reach the disk on every system. LMDB makes the same choice for its own file.

On macOS, fsync only hands the bytes to the drive, whose cache loses them with the power. F_FULLFSYNC also empties that
cache. File systems without it (of a network, for example) return an error, and then fsync is all there is.
"""

from __future__ import annotations

import errno
import fcntl
import os

# Missing on every system but macOS.
FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY, errno.EOPNOTSUPP)


def sync_file(fd: int) -> None:
    """Makes the bytes and the size of a file, or the names in a directory, durable."""
    if not _sync_fully(fd):
        os.fsync(fd)


def sync_data(fd: int) -> None:
    """Makes the bytes of a file durable whose size has not changed, or whose new size is needed to read them."""
    if not _sync_fully(fd):
        getattr(os, "fdatasync", os.fsync)(fd)  # macOS has no fdatasync


def grow_file(fd: int, more_bytes: int) -> None:
    """Adds zeros to the end of a file, with their place on the disk. Raises OSError if there is no room."""
    size = os.fstat(fd).st_size
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, size, more_bytes)
        return
    end = size + more_bytes
    while size < end:
        size += os.pwrite(fd, bytes(end - size), size)


def _sync_fully(fd: int) -> bool:
    if FULL_SYNC is None:
        return False
    try:
        fcntl.fcntl(fd, FULL_SYNC)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return False
    return True
