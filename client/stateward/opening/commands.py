"""How the commands find the daemon: as `open` does, but they start it only where `open` has started it before.

On a server whose daemon is down, a new daemon on an empty directory, which says "no threads", would be worse than an
error.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Unpack

from stateward._io.target import find_kept_settings as find_kept_settings  # noqa: PLC0414  the doctor's
from stateward.errors import CannotStart
from stateward.opening.clients import IDLE_EXIT, START_S, ClientOptions, keep_for
from stateward.opening.keeper import Keeper
from stateward.opening.launch import first_listen
from stateward.opening.places import Place, find_place
from stateward.opening.record import find_live, read_record
from stateward.opening.settings import Asked, read_kept

if TYPE_CHECKING:
    from stateward._sync.client import Client


def find_default_place() -> Place | None:
    """Returns the place of the data directory that STATEWARD_DATA_DIR names, or of the default one, if a daemon works
    there, or clients have started one there; None = neither, so that a daemon may be at the default socket.

    The daemon at the default socket has other data than a directory that is named, so it is no answer for that one.
    """
    try:
        place = find_place(None)
    except CannotStart:  # a user without a home directory
        return None
    return place if _is_named() or read_kept(place) is not None or find_live(place) is not None else None


def _is_named() -> bool:
    return bool(os.environ.get("STATEWARD_DATA_DIR"))


def reach(*, namespace: str, start: bool, **options: Unpack[ClientOptions]) -> Client:
    """Returns a client of the daemon of the default data directory, else of the one at the default socket.

    Starts the daemon if clients have started it there before, and if `start` says so; else raises ServerUnavailable.
    """
    from stateward._sync.client import Client  # noqa: PLC0415

    place = find_default_place()
    if place is None:
        return Client(None, namespace=namespace, **options)
    keeper = Keeper(
        place, Asked(), idle_exit_s=IDLE_EXIT.total_seconds(), may_start=start and read_kept(place) is not None,
        patience_s=START_S, revive_s=START_S,
    )  # fmt: skip
    keeper.begin()
    return keep_for(keeper, lambda: Client(keeper.target, namespace=namespace, **options))


def find_target() -> str | None:
    """Returns where the daemon of the default data directory listens, or last listened; None = the default socket.
    Starts nothing."""
    place = find_default_place()
    if place is None:
        return None
    record = read_record(place)
    if record is not None:
        return record.target
    usual = f"unix://{place.data_dir}/run/stateward.sock" if _is_named() else None
    return first_listen((read_kept(place) or {}).get("listen")) or usual
