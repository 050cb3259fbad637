"""The memory limit of this process, and the default size of the cache."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path

MIB = 1 << 20
CACHE_BYTES_MAX = 64 * MIB
GROUPS, OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_OLD_LIMIT = GROUPS / "memory/memory.limit_in_bytes"  # version 1 of control groups


def control_groups(root: Path = GROUPS, own: Path = OWN_GROUP) -> list[Path]:
    """Returns the folders of this process's control group and of those that it is in, innermost first (version 2).

    In most containers ``root`` is the group itself. A service of systemd has a folder below it.
    """
    try:
        names = [line.removeprefix("0::/") for line in own.read_text().splitlines() if line.startswith("0::/")]
    except OSError:
        names = []
    found = [root]
    for part in Path(names[0] if names else "").parts:
        if not (found[0] / part).is_dir():  # the path is that of the host, and ``root`` is that of the container
            break
        found.insert(0, found[0] / part)
    return found


def memory_limit_bytes(groups: Sequence[Path] | None = None) -> int:
    """Returns the least of: limits of the control groups, the limit of the process, half of the machine's memory."""
    limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    own = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if own != resource.RLIM_INFINITY:
        limit = min(limit, own)
    for path in (*(group / "memory.max" for group in groups or control_groups()), _OLD_LIMIT):
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
