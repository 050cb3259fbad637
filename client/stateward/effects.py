"""Effects: what tools did, recorded apart from states.

    NEW ──claim──► IN_PROGRESS ──► DONE | FAILED
     ▲                  │ who was at it died, or its term ended, or it was given up
     └── given back ────┴─► UNCERTAIN ──claim──► IN_PROGRESS, whose holder knows that it may have happened

`thread.effect` walks that for one call of a tool. What it promises: a tool is called **exactly once** where a `check`
can find out afterwards whether it did its work, or where it honours the idempotency key and `idempotent=True` says so;
of any other tool **at most once**, with EffectUncertain where nobody can know.

A claim lives for its term, and is renewed while the tool works and before it is called where time has passed since it
was made. A process that is paused for longer than the term between that and the call, or in it, cannot know that its
claim was taken meanwhile: there only the idempotency key keeps the tool from working twice, so make the term longer
than any pause, or the tool honour the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Any

from stateward import values
from stateward.models import read_optional, read_time
from stateward.v1 import effect_pb2, state_pb2


class EffectState(IntEnum):
    """How far an effect has come."""

    NEW = 1
    """Nobody has begun it, or who had says that nothing happened."""
    IN_PROGRESS = 2
    """Somebody has begun it."""
    UNCERTAIN = 3
    """Somebody had begun it and ended without a word: it may have happened or not."""
    DONE = 4
    """It has happened; the value is its result."""
    FAILED = 5
    """It has failed; the detail says how."""


_STATES = frozenset(map(int, EffectState))  # others are newer than this client


class NotHappened:
    """The type of NOT_HAPPENED."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NOT_HAPPENED"

    def __bool__(self) -> bool:
        return False


NOT_HAPPENED = NotHappened()
"""What a `check` returns where it knows that the tool did nothing: `lambda key: bank.find(key) or NOT_HAPPENED`."""


@dataclass(frozen=True)
class Happened:
    """What a `check` may wrap a result in; needed only for a tool that returns None."""

    result: Any = None


@dataclass(frozen=True)
class Effect:
    """A result to be recorded without a claim: what a tool returned, to be found again."""

    key: str
    """Unique under the anchor; at most 1,024 bytes."""
    value: Any
    anchor: str = ""
    """What it belongs to, such as a checkpoint id; at most 1,024 bytes."""
    name: str = ""
    """A name to select by, such as the tool's; at most 256 bytes."""
    sort_key: bytes = b""
    """Effects of one anchor come back in the order of these bytes; at most 256 bytes."""
    replace: bool = False
    """Whether it replaces what is recorded; otherwise the first result stays."""

    def to_proto(self) -> effect_pb2.Effect:
        """As the message that a save carries."""
        rules = effect_pb2.Effect.ConflictRule
        return effect_pb2.Effect(
            key=self.key,
            value=values.encode(self.value, f"effects.{self.key}"),
            anchor=self.anchor,
            name=self.name,
            sort_key=self.sort_key,
            on_conflict=rules.CONFLICT_RULE_REPLACE if self.replace else rules.CONFLICT_RULE_KEEP,
        )


@dataclass(frozen=True)
class RecordedEffect:
    """An effect as it is kept."""

    anchor: str
    key: str
    name: str
    sort_key: bytes
    state: EffectState | int
    holder: str
    """Name of who began it; empty = it was put without a claim."""
    begin_time: datetime
    """When the newest claim was made, or the value put."""
    end_time: datetime | None
    """None = it has not ended."""
    sequence: int
    """The newest place in the thread's journal that tells of it: `thread.wait_archived(effect.sequence)`."""
    detail: str
    """A word on a failure."""
    attempts: int
    """How often it was begun."""
    stored_value: state_pb2.Value | None = field(default=None, repr=False)

    @property
    def value(self) -> Any:
        """The result; None where there is none, or it was not asked for."""
        return None if self.stored_value is None else values.decode(self.stored_value, f"effects.{self.key}")

    @property
    def facts(self) -> Mapping[str, str]:
        """What an error about it tells."""
        return {"anchor": self.anchor, "key": self.key, "holder": self.holder, "detail": self.detail}

    @classmethod
    def from_proto(cls, message: effect_pb2.RecordedEffect) -> RecordedEffect:
        """From its message."""
        effect = message.effect
        return cls(
            **{name: getattr(effect, name) for name in ("anchor", "key", "name", "sort_key")},
            **{name: getattr(message, name) for name in ("sequence", "detail", "attempts")},
            state=EffectState(message.state) if message.state in _STATES else message.state,
            holder=message.holder.name,
            begin_time=read_time(message.begin_time),
            end_time=read_optional(message, "end_time", read_time),
            stored_value=effect.value if effect.HasField("value") else None,
        )
