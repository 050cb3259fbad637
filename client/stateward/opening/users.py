"""Whether clients of `open()` use the daemon of a data directory."""

from __future__ import annotations

from stateward.errors import CannotStart
from stateward.opening.files import FileLock
from stateward.opening.places import Place


def users_lock(place: Place) -> FileLock:
    """Returns the lock that each client holds shared."""
    return FileLock(place.users_file)


def has_users(place: Place) -> bool:
    """Whether a client of `open()` lives. Takes the lock for a moment."""
    try:
        lock = users_lock(place)
        with lock:
            return not lock.take()
    except (CannotStart, OSError):
        return False
