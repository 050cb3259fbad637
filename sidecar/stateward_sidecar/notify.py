"""Tells the process that started the daemon that it is ready, or why it is not.

The starter passes the writing end of a pipe (`--ready-fd`), and reads one line from it: `ready TARGET`, or
`failed CODE WHY`. The pipe is closed after the line. If the daemon dies before, the kernel closes it.
"""

from __future__ import annotations

import contextlib
import os


def tell(descriptor: int | None, line: str) -> None:
    """Writes the line and closes the descriptor. Does nothing if nobody waits, or not any more."""
    if descriptor is None:
        return
    with contextlib.suppress(OSError):
        os.write(descriptor, f"{' '.join(line.split())}\n".encode())
    with contextlib.suppress(OSError):
        os.close(descriptor)
