"""Who is at the other end of a unix socket, and whether that process runs."""

from __future__ import annotations

import select
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

from stateward_sidecar.service.calls.localcall import Peer

_PROC = Path("/proc")
# Stopped by a signal or a debugger, or ended and not yet waited for.
_STATES = frozenset("TtZX")


def peer_of(made: socket.socket) -> Peer:
    """Returns the process at the other end. A process of another container has no number here, and counts as 0."""
    if sys.platform != "linux":
        return Peer()
    with suppress(OSError):
        return Peer(*struct.unpack("iII", made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)))
    return Peer()


def has_gone(made: socket.socket) -> bool:
    """Whether the other end has closed its socket, or ended. Reads nothing."""
    poll = select.poll()
    poll.register(made, 0)  # POLLHUP comes unasked; of a peer that only sends no more, it does not
    return bool(poll.poll(0))


def is_stopped(peer: Peer) -> bool:
    """Whether a process does nothing until somebody lets it go on. False if nobody knows."""
    if not peer.pid:
        return False
    with suppress(OSError, IndexError):
        state = (_PROC / str(peer.pid) / "stat").read_text(errors="replace").rpartition(") ")[2][0]
        return state in _STATES
    return False
