"""The holder of leases and claims: a name that survives a restart, and an incarnation, which is one process.

If the daemon sees a name with another incarnation, it takes the earlier process for dead and frees its leases at once.
So a name must never have two incarnations that live. All clients of a process have the same incarnation. A forked child
has its own, and does not use a name that was given before the fork: that name belongs to its parent.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from stateward.arguments import text
from stateward.v1 import lease_pb2

NAME_BYTES_MAX = 256

_incarnation = os.urandom(16).hex()


def _begin_anew() -> None:
    global _incarnation  # noqa: PLW0603  one for each process
    _incarnation = os.urandom(16).hex()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


@dataclass(frozen=True)
class Holder:
    """The holder of a lease. The same name with another incarnation is the same agent after a restart."""

    name: str
    """Stays the same when the agent starts again. Two processes must not use it at the same time."""
    incarnation: str
    """A random id of this process."""

    def to_proto(self) -> lease_pb2.Holder:
        return lease_pb2.Holder(name=self.name, incarnation=self.incarnation)

    @classmethod
    def named(cls, name: str | None) -> Holder:
        """Returns the holder for this process. Without a name it gets a random one, which no other process has."""
        return cls(name or f"unnamed-{_incarnation}", _incarnation)


class Identity:
    """The name of a client; None = a random one, so that a restart has to wait for the end of the old term."""

    def __init__(self, name: str | None = None) -> None:
        if name is not None and not 1 <= len(text(name, "holder").encode()) <= NAME_BYTES_MAX:
            raise ValueError(f"holder must have 1 to {NAME_BYTES_MAX} bytes")
        self._name, self._made_in = name, _incarnation

    @property
    def name(self) -> str | None:
        """The name that was given in this process; None = none was."""
        return self._name if self._made_in == _incarnation else None

    @property
    def holder(self) -> Holder:
        return Holder.named(self.name)
