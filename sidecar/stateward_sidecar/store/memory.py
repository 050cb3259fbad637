"""The memory limit of this process, and the default size of the cache."""

from __future__ import annotations

import os
import resource
from pathlib import Path

MIB = 1 << 20
CACHE_BYTES_MAX = 64 * MIB
# Version 2 of control groups, then version 1.
_GROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_limit_bytes() -> int:
    """Returns the least of: the limit of the control group, the limit of the process, half of the machine's memory."""
    limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    own = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if own != resource.RLIM_INFINITY:
        limit = min(limit, own)
    for path in _GROUP_LIMITS:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            limit = min(limit, int(text))
    return limit


def default_cache_bytes(limit_bytes: int) -> int:
    """Returns 64 MiB, or an eighth of the memory limit if that is less, but at least 1 MiB."""
    return max(min(CACHE_BYTES_MAX, limit_bytes // 8), MIB)
