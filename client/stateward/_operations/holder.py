"""Who a client is to leases and claims: a name that outlives its process, and the process.

The daemon takes another incarnation of a name for the same agent after its death, and frees at once what the dead one
held. So a name may never be seen with two incarnations that live: all clients of a process have the same one, a forked
child has its own, and there a name that was given before the fork is not the child's but its parent's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

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
    """Two holders of one name and different incarnations are one agent before and after its death."""

    name: str
    """Stays the same when the agent is started again, and is never used by two processes at a time."""
    incarnation: str
    """This process: random."""

    def to_proto(self) -> lease_pb2.Holder:
        """The contract's message."""
        return lease_pb2.Holder(name=self.name, incarnation=self.incarnation)

    @classmethod
    def named(cls, name: str | None) -> Holder:
        """This process under a name; without one its name is random too, so that nobody is taken for it."""
        return cls(name or f"unnamed-{_incarnation}", _incarnation)


class Identity:
    """The name that a client goes by; None = one that nobody else has: what it held is free when its term ends."""

    def __init__(self, name: str | None = None) -> None:
        if name is not None and not 1 <= len(name.encode()) <= NAME_BYTES_MAX:
            raise ValueError(f"holder must have 1 to {NAME_BYTES_MAX} bytes")
        self._name, self._made_in = name, _incarnation

    @property
    def name(self) -> str | None:
        """The name, where this process was given one."""
        return self._name if self._made_in == _incarnation else None

    @property
    def holder(self) -> Holder:
        """The name, in this process."""
        return Holder.named(self.name)

    def to_proto(self) -> lease_pb2.Holder:
        """The contract's message."""
        return self.holder.to_proto()
