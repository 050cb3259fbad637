"""The daemon's process keeps its memory, which has keys, tokens and states, from other processes and from the disk.

`begin` is the first line of the daemon. `finish` follows when the settings are known, and before a key is read.

Linux refuses to let a process of the same user read the memory, the environment or the descriptors of a process that
is not dumpable, and to attach a debugger to it; its files in /proc belong to root. It also writes no core of such a
process, neither to a file nor into the pipe of a handler. Handlers read a pipe also under a soft limit of 0. So the
limit is for systems that only have it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from contextlib import suppress

UMASK = 0o077
_PR_SET_DUMPABLE = 4


def begin() -> None:
    """Hides the process, and makes its new files its user's own. Whoever should read one gets that file's own mode."""
    os.umask(UMASK)
    _set_dumpable(0)


def finish(*, is_debuggable: bool) -> None:
    """Forbids cores for good; shows the process again instead if its operator wants to debug it."""
    if is_debuggable:
        _set_dumpable(1)
        return
    with suppress(OSError, ValueError):  # the limit may be lowered always, so a sandbox forbids it
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _set_dumpable(value: int) -> None:
    """Cannot fail on Linux. Other systems have no such setting."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, value, 0, 0, 0)
