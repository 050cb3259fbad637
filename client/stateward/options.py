"""The options of a thread: frozen dataclasses, read from their messages by `from_proto`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stateward._frames import at_the_caller, ends_at_the_caller, hide_frames
from stateward.arguments import instance, message
from stateward.durations import Duration, DurationField
from stateward.fromproto import FromProto, read_fields
from stateward.v1 import thread_pb2


@dataclass(frozen=True)
class Retention:
    """Which versions are kept.

    A version is removed if every rule that is set allows it; None = no such rule.
    """

    keep_last: int | None = None
    """How many of the newest versions of each branch are kept, >= 1."""
    keep_for: DurationField = DurationField()  # noqa: RUF009
    """The minimum age of the versions that are removed."""

    def __init__(self, keep_last: int | None = None, keep_for: Duration | None = None) -> None:
        try:  # in place of a decorator, which would take half as long as the rest
            object.__setattr__(self, "keep_last", keep_last)
            object.__setattr__(self, "keep_for", keep_for)
        except Exception as error:
            hide_frames(error)
            raise

    @classmethod
    def from_proto(cls, message: thread_pb2.Retention) -> Retention:
        """Reads the message, in which 0 means no limit."""
        return read_fields(cls, message, keep_last=message.keep_last or None)

    @at_the_caller
    def to_proto(self) -> thread_pb2.Retention:
        """Returns the message that `from_proto` reads."""
        return message(thread_pb2.Retention, {"keep_last": self.keep_last, "keep_for": self.keep_for})


@ends_at_the_caller
@dataclass(frozen=True)
class ThreadOptions(FromProto):
    """The options of a thread. They are given when the thread is created, and changed with `update_options`.

    `from_proto` reads a Thread message too, which has the same fields.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    ttl: DurationField = DurationField()  # noqa: RUF009
    """How long after its last save the thread is deleted; None = never."""
    retention: Retention | None = None
    """Which versions are kept; None = every version."""
    parent_thread: str = ""
    agent: str = ""

    def to_proto(self) -> thread_pb2.ThreadOptions:
        """Returns the message that `from_proto` reads."""
        labels: Any = self.labels  # another mapping than a dict is none for a message
        kept = None if self.retention is None else instance(self.retention, "retention", Retention, "a Retention")
        fields = {
            "labels": dict(labels) if isinstance(labels, Mapping) else labels,
            "ttl": self.ttl,
            "retention": None if kept is None else kept.to_proto(),
            "parent_thread": self.parent_thread,
            "agent": self.agent,
        }
        return message(thread_pb2.ThreadOptions, fields)


def options_to_proto(create: ThreadOptions | None) -> thread_pb2.ThreadOptions | None:
    """Returns the message of the argument `create`; None = it was not given. Raises TypeError for anything else."""
    return None if create is None else instance(create, "create", ThreadOptions, "ThreadOptions").to_proto()
