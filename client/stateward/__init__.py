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
    from stateward._async.autosave import AsyncAutosave as AsyncAutosave
    from stateward._async.boards import AsyncBoard as AsyncBoard
    from stateward._async.client import AsyncClient as AsyncClient
    from stateward._async.leases import AsyncHeldLease as AsyncHeldLease
    from stateward._async.thread import AsyncThread as AsyncThread
    from stateward._async.writer import AsyncSaveHandle as AsyncSaveHandle
    from stateward._async.writer import AsyncWriter as AsyncWriter
    from stateward._operations.before import RiskyStep as RiskyStep
    from stateward._operations.logs import LogEntry as LogEntry
    from stateward._operations.merging import ABSENT as ABSENT
    from stateward._operations.saving import PreparedSave as PreparedSave
    from stateward._operations.saving import SaveOptions as SaveOptions
    from stateward._state.log import Log as Log
    from stateward._sync.autosave import Autosave as Autosave
    from stateward._sync.boards import Board as Board
    from stateward._sync.client import Client as Client
    from stateward._sync.leases import HeldLease as HeldLease
    from stateward._sync.thread import Thread as Thread
    from stateward._sync.writer import SaveHandle as SaveHandle
    from stateward._sync.writer import Writer as Writer
    from stateward.admin import DrainResult as DrainResult
    from stateward.admin import ServerInfo as ServerInfo
    from stateward.admin import Stats as Stats
    from stateward.effects import NOT_HAPPENED as NOT_HAPPENED
    from stateward.effects import Effect as Effect
    from stateward.effects import EffectState as EffectState
    from stateward.effects import Happened as Happened
    from stateward.effects import RecordedEffect as RecordedEffect
    from stateward.errors import ClaimLost as ClaimLost
    from stateward.errors import EditConflict as EditConflict
    from stateward.errors import EffectFailed as EffectFailed
    from stateward.errors import EffectInProgress as EffectInProgress
    from stateward.errors import EffectUncertain as EffectUncertain
    from stateward.errors import Fenced as Fenced
    from stateward.errors import HandoffTaken as HandoffTaken
    from stateward.errors import LeaseHeld as LeaseHeld
    from stateward.errors import NoHandoff as NoHandoff
    from stateward.errors import NotArchivedYet as NotArchivedYet
    from stateward.errors import NotOwner as NotOwner
    from stateward.errors import SchemaMismatch as SchemaMismatch
    from stateward.errors import ServerUnavailable as ServerUnavailable
    from stateward.errors import StaleAnswer as StaleAnswer
    from stateward.errors import StatewardError as StatewardError
    from stateward.errors import ThreadNotFound as ThreadNotFound
    from stateward.errors import VersionMismatch as VersionMismatch
    from stateward.errors import VersionNotFound as VersionNotFound
    from stateward.errors import WriterAborted as WriterAborted
    from stateward.errors import WrongTarget as WrongTarget
    from stateward.events import Event as Event
    from stateward.events import HistoryEntry as HistoryEntry
    from stateward.handoff import Handoff as Handoff
    from stateward.migrations import MigrationFailed as MigrationFailed
    from stateward.migrations import Migrations as Migrations
    from stateward.migrations import NoMigrationPath as NoMigrationPath
    from stateward.models import Access as Access
    from stateward.models import Branch as Branch
    from stateward.models import Checkpoint as Checkpoint
    from stateward.models import Durability as Durability
    from stateward.models import Lease as Lease
    from stateward.models import Retention as Retention
    from stateward.models import Status as Status
    from stateward.models import Tag as Tag
    from stateward.models import ThreadInfo as ThreadInfo
    from stateward.models import ThreadOptions as ThreadOptions
    from stateward.signals import AnswerRefused as AnswerRefused
    from stateward.signals import Question as Question
    from stateward.signals import SchemaNotChecked as SchemaNotChecked
    from stateward.signals import Signal as Signal
    from stateward.signals import Wake as Wake
    from stateward.state import State as State
    from stateward.values import Blob as Blob
    from stateward.values import MsgPack as MsgPack
    from stateward.values import Number as Number
    from stateward.values import RawValue as RawValue
    from stateward.values import Text as Text
    from stateward.values import register_codec as register_codec
    from stateward.window import Window as Window

_HOMES = {
    "stateward._async.leases": ("AsyncHeldLease",),
    "stateward._async.writer": ("AsyncSaveHandle", "AsyncWriter"),
    "stateward._sync.leases": ("HeldLease",),
    "stateward._sync.writer": ("SaveHandle", "Writer"),
    "stateward._async.boards": ("AsyncBoard",),
    "stateward._operations.logs": ("LogEntry",),
    "stateward._operations.merging": ("ABSENT",),
    "stateward._sync.boards": ("Board",),
    "stateward._async.client": ("AsyncClient",),
    "stateward._async.thread": ("AsyncThread",),
    "stateward._operations.saving": ("PreparedSave", "SaveOptions"),
    "stateward._sync.client": ("Client",),
    "stateward._sync.thread": ("Thread",),
    "stateward.admin": ("DrainResult", "ServerInfo", "Stats"),
    "stateward.errors": (
        "WriterAborted",
        "WrongTarget",
        "LeaseHeld",
        "ClaimLost",
        "EditConflict",
        "EffectFailed",
        "EffectInProgress",
        "EffectUncertain",
        "Fenced",
        "HandoffTaken",
        "NoHandoff",
        "NotArchivedYet",
        "NotOwner",
        "SchemaMismatch",
        "ServerUnavailable",
        "StaleAnswer",
        "StatewardError",
        "ThreadNotFound",
        "VersionMismatch",
        "VersionNotFound",
    ),
    "stateward.events": ("Event", "HistoryEntry"),
    "stateward.migrations": ("MigrationFailed", "Migrations", "NoMigrationPath"),
    "stateward.models": (
        "Lease",
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
    "stateward._state.log": ("Log",),
    "stateward.signals": ("AnswerRefused", "Question", "SchemaNotChecked", "Signal", "Wake"),
    "stateward.state": ("State",),
    "stateward.values": ("Blob", "MsgPack", "Number", "RawValue", "Text", "register_codec"),
    "stateward.effects": ("NOT_HAPPENED", "Effect", "EffectState", "Happened", "RecordedEffect"),
    "stateward.window": ("Window",),
    "stateward._sync.autosave": ("Autosave",),
    "stateward._async.autosave": ("AsyncAutosave",),
    "stateward._operations.before": ("RiskyStep",),
    "stateward.handoff": ("Handoff",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ABSENT",
    "NOT_HAPPENED",
    "Access",
    "AnswerRefused",
    "AsyncAutosave",
    "AsyncBoard",
    "AsyncClient",
    "AsyncHeldLease",
    "AsyncSaveHandle",
    "AsyncThread",
    "AsyncWriter",
    "Autosave",
    "Blob",
    "Board",
    "Branch",
    "Checkpoint",
    "ClaimLost",
    "Client",
    "DrainResult",
    "Durability",
    "EditConflict",
    "Effect",
    "EffectFailed",
    "EffectInProgress",
    "EffectState",
    "EffectUncertain",
    "Event",
    "Fenced",
    "Handoff",
    "HandoffTaken",
    "Happened",
    "HeldLease",
    "HistoryEntry",
    "Lease",
    "LeaseHeld",
    "Log",
    "LogEntry",
    "MigrationFailed",
    "Migrations",
    "MsgPack",
    "NoHandoff",
    "NoMigrationPath",
    "NotArchivedYet",
    "NotOwner",
    "Number",
    "PreparedSave",
    "Question",
    "RawValue",
    "RecordedEffect",
    "Retention",
    "RiskyStep",
    "SaveHandle",
    "SaveOptions",
    "SchemaMismatch",
    "SchemaNotChecked",
    "ServerInfo",
    "ServerUnavailable",
    "Signal",
    "StaleAnswer",
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
    "VersionMismatch",
    "VersionNotFound",
    "Wake",
    "Window",
    "Writer",
    "WriterAborted",
    "WrongTarget",
    "register_codec",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
