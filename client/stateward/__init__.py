"""Stateward: durable state for agents.

    from stateward import Client

    with Client() as client:
        thread = client.thread("booking-42")
        state = thread.hydrate()
        state.slots["goal"] = {"city": "Paris"}
        thread.save(state, step=1)

Names are imported when they are first used: the daemon imports `stateward.v1` and must not pay for the client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateward._async import AsyncClient as AsyncClient
    from stateward._async import AsyncThread as AsyncThread
    from stateward._log import Log as Log
    from stateward._saving import PreparedSave as PreparedSave
    from stateward._saving import SaveOptions as SaveOptions
    from stateward._sync import Client as Client
    from stateward._sync import Thread as Thread
    from stateward.admin import ServerInfo as ServerInfo
    from stateward.admin import Stats as Stats
    from stateward.errors import Fenced as Fenced
    from stateward.errors import NotArchivedYet as NotArchivedYet
    from stateward.errors import NotOwner as NotOwner
    from stateward.errors import ServerUnavailable as ServerUnavailable
    from stateward.errors import StatewardError as StatewardError
    from stateward.errors import ThreadNotFound as ThreadNotFound
    from stateward.errors import VersionMismatch as VersionMismatch
    from stateward.errors import VersionNotFound as VersionNotFound
    from stateward.events import Event as Event
    from stateward.events import HistoryEntry as HistoryEntry
    from stateward.insight import Failure as Failure
    from stateward.insight import ToolUse as ToolUse
    from stateward.migrations import MigrationFailed as MigrationFailed
    from stateward.migrations import Migrations as Migrations
    from stateward.migrations import NoMigrationPath as NoMigrationPath
    from stateward.models import Access as Access
    from stateward.models import Branch as Branch
    from stateward.models import Checkpoint as Checkpoint
    from stateward.models import Durability as Durability
    from stateward.models import Retention as Retention
    from stateward.models import Status as Status
    from stateward.models import Tag as Tag
    from stateward.models import ThreadInfo as ThreadInfo
    from stateward.models import ThreadOptions as ThreadOptions
    from stateward.state import State as State
    from stateward.values import Blob as Blob
    from stateward.values import MsgPack as MsgPack
    from stateward.values import Number as Number
    from stateward.values import RawValue as RawValue
    from stateward.values import Text as Text
    from stateward.values import register_codec as register_codec

_HOMES = {
    "stateward._async": ("AsyncClient", "AsyncThread"),
    "stateward._saving": ("PreparedSave", "SaveOptions"),
    "stateward._sync": ("Client", "Thread"),
    "stateward.admin": ("ServerInfo", "Stats"),
    "stateward.errors": (
        "Fenced",
        "NotArchivedYet",
        "NotOwner",
        "ServerUnavailable",
        "StatewardError",
        "ThreadNotFound",
        "VersionMismatch",
        "VersionNotFound",
    ),
    "stateward.events": ("Event", "HistoryEntry"),
    "stateward.migrations": ("MigrationFailed", "Migrations", "NoMigrationPath"),
    "stateward.insight": ("Failure", "ToolUse"),
    "stateward.models": (
        "Access",
        "Branch",
        "Checkpoint",
        "Durability",
        "Retention",
        "Status",
        "Tag",
        "ThreadInfo",
        "ThreadOptions",
    ),
    "stateward._log": ("Log",),
    "stateward.state": ("State",),
    "stateward.values": ("Blob", "MsgPack", "Number", "RawValue", "Text", "register_codec"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Access",
    "AsyncClient",
    "AsyncThread",
    "Blob",
    "Branch",
    "Checkpoint",
    "Client",
    "Durability",
    "Event",
    "Failure",
    "Fenced",
    "HistoryEntry",
    "Log",
    "MigrationFailed",
    "Migrations",
    "MsgPack",
    "NoMigrationPath",
    "NotArchivedYet",
    "NotOwner",
    "Number",
    "PreparedSave",
    "RawValue",
    "Retention",
    "SaveOptions",
    "ServerInfo",
    "ServerUnavailable",
    "State",
    "StatewardError",
    "Stats",
    "Status",
    "Tag",
    "Text",
    "Thread",
    "ThreadInfo",
    "ThreadNotFound",
    "ThreadOptions",
    "ToolUse",
    "VersionMismatch",
    "VersionNotFound",
    "register_codec",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
