"""Effects: records of tool calls, stored apart from states.

    NEW ──claim──► IN_PROGRESS ──► DONE | FAILED
     ▲                  │ the holder died, the claim's term ended, or the holder gave the claim up as uncertain
     └── given back ────┴─► UNCERTAIN ──claim──► IN_PROGRESS, whose holder knows that it may have happened

`thread.effects.run` takes one tool call through these states. A tool takes effect **exactly once** if a `check` can
find out afterwards whether it did its work, or if the tool honours the idempotency key and the caller says
`idempotent=True`. Any other tool is called **at most once**; `thread.effects.run` raises EffectUncertain if the outcome
cannot be known.

A claim lasts for its term, which is short, so that a restarted agent need not wait for long; with a `holder` it does
not wait. The client renews the claim until the effect has ended. If the daemon restarts, or another sidecar takes the
thread over, the full term begins anew.

A renewal fails if the process stands still, if it cannot reach the daemon, or if the daemon has lost the thread. If
that lasts for longer than the term, another agent may get the claim while the tool still works, and nobody can end
the tool. The other agent is told that it may have happened. Its `check` must see a call that is on its way, or the
tool must honour the idempotency key, which is the same for both. The first agent gets ClaimLost with the result,
which is not recorded. Use a longer `term` if processes stand still for longer than 10 seconds, such as coroutines
that block their event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Any

from stateward import values
from stateward._frames import at_the_caller, hide_frames
from stateward.arguments import instance, several
from stateward.fromproto import read_fields, read_member
from stateward.v1 import effect_pb2, state_pb2


class EffectState(IntEnum):
    """State of an effect."""

    NEW = 1
    """No agent has begun the effect, or an agent reported that nothing happened."""
    IN_PROGRESS = 2
    """An agent has begun the effect."""
    UNCERTAIN = 3
    """An agent began the effect and did not report its end: it may have happened or not."""
    DONE = 4
    """The effect has happened; the value is its result."""
    FAILED = 5
    """The effect has failed; the detail holds the error."""


class NotHappened:
    """The type of NOT_HAPPENED."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NOT_HAPPENED"

    def __bool__(self) -> bool:
        return False


NOT_HAPPENED = NotHappened()
"""A `check` returns this if it knows that the tool did nothing: `lambda key: bank.find(key) or NOT_HAPPENED`."""


@dataclass(frozen=True)
class Happened:
    """A `check` may wrap a result in this; needed only for a tool that returns None."""

    result: Any = None


@dataclass(frozen=True)
class Effect:
    """The result of a tool, to be recorded without a claim and found again later."""

    key: str
    """Unique under the anchor; at most 1,024 bytes."""
    value: Any
    anchor: str = ""
    """Id of the object that the effect belongs to, such as a checkpoint id; at most 1,024 bytes. The effect is deleted
    when the last version with this checkpoint id is pruned."""
    name: str = ""
    """A name to select by, such as the tool's; at most 1,024 bytes."""
    sort_key: bytes = b""
    """Effects of one anchor come back in the order of these bytes; at most 1,024 bytes."""
    replace: bool = False
    """Whether this result replaces a recorded one; otherwise the first result stays."""
    keep_when_pruned: bool = False
    """Whether the effect is kept when the versions with its anchor as checkpoint id are pruned."""

    @at_the_caller
    def to_proto(self) -> effect_pb2.Effect:
        """Returns the message that a save carries."""
        rules = effect_pb2.Effect.ConflictRule
        return effect_pb2.Effect(
            key=self.key,
            value=values.encode(self.value, f"effects.{self.key}"),
            anchor=self.anchor,
            name=self.name,
            sort_key=self.sort_key,
            on_conflict=rules.CONFLICT_RULE_REPLACE if self.replace else rules.CONFLICT_RULE_KEEP,
            keep_when_pruned=self.keep_when_pruned,
        )


def effects_to_proto(effects: Iterable[Effect]) -> list[effect_pb2.Effect]:
    """Returns the messages of an argument `effects`. Raises TypeError for anything but a list of Effects."""
    what = "a list of Effects"
    return [instance(each, "effects", Effect, what).to_proto() for each in several(effects, "effects", "Effects")]


@dataclass(frozen=True)
class RecordedEffect:
    """An effect as the daemon stores it."""

    anchor: str
    key: str
    name: str
    sort_key: bytes
    state: EffectState | int
    holder: str
    """Name of the agent that began the effect; empty = recorded without a claim."""
    begin_time: datetime
    """Time of the newest claim, or of the record without a claim."""
    end_time: datetime | None
    """Time of the end; None = the effect has not ended."""
    sequence: int
    """Journal position of the newest entry about the effect: `thread.archive.wait(effect.sequence)`."""
    detail: str
    """The error, if the effect failed."""
    attempts: int
    """How often the effect was begun."""
    stored_value: state_pb2.Value | None = field(default=None, repr=False)
    keep_when_pruned: bool = False
    """Whether it is kept when the versions with its anchor as checkpoint id are pruned."""

    @property
    def value(self) -> Any:
        """The result; None = there is none, or it was not requested."""
        try:
            return None if self.stored_value is None else values.decode(self.stored_value, f"effects.{self.key}")
        except Exception as error:
            hide_frames(error)
            raise

    @property
    def facts(self) -> Mapping[str, str]:
        """The metadata of errors about the effect."""
        return {"anchor": self.anchor, "key": self.key, "holder": self.holder, "detail": self.detail}

    @classmethod
    def from_proto(cls, message: effect_pb2.RecordedEffect) -> RecordedEffect:
        """Reads the message."""
        effect = message.effect
        return read_fields(
            cls,
            message,
            **{name: getattr(effect, name) for name in ("anchor", "key", "name", "sort_key", "keep_when_pruned")},
            state=read_member(EffectState, message.state) or 0,
            holder=message.holder.name,
            stored_value=effect.value if effect.HasField("value") else None,
        )
