"""The parts of leases and locks that both clients share."""

from __future__ import annotations

import os
from typing import Any

from stateward._io.session import SessionBase
from stateward._operations.holder import Holder
from stateward._operations.leases import TERM_S, Claim
from stateward._operations.steps import ThreadRef
from stateward.durations import Duration
from stateward.errors import LeaseHeld
from stateward.models import Lease
from stateward.options import ThreadOptions


class LeaseShell:
    """A lease: not taken yet, held, lost or given back."""

    def __init__(
        self,
        session: SessionBase[Any],
        ref: ThreadRef,
        *,
        term: Duration = TERM_S,
        wait: Duration = 0.0,
        take_over: bool = False,
        holder: str | None = None,
        create: ThreadOptions | None = None,
        binds: bool = False,
    ) -> None:
        self._ref = ref
        who = Holder.named(holder) if holder else session.holder
        self._claim = Claim.of(who, term, wait, take_over, create)
        self._binds = binds  # whether saves through the handle carry its token
        self._pid = os.getpid()
        self._is_held = False
        self.token = 0
        """The fencing token, larger than that of every earlier holder; 0 = not taken yet."""
        self.lost: LeaseHeld | None = None
        """Why the lease is lost, as far as this process knows; None = it is not known to be lost."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._ref.thread!r}, token={self.token})"

    @property
    def is_ours(self) -> bool:
        """Whether this process took the lease. A forked child gives back nothing that its parent holds."""
        return self._pid == os.getpid()

    def _take(self, lease: Lease) -> None:
        self.token, self._is_held, self.lost = lease.token, True, None
        if self._binds:
            self._ref.held.take(lease.token)

    def _give_back(self) -> int:
        """Returns the token to be given back; 0 = none."""
        if not self.is_ours or not self._is_held:
            return 0
        self._is_held = False
        if self._binds:
            self._ref.held.give_back(self.token)
        return 0 if self.lost else self.token

    def _held_token(self) -> int:
        if self.lost is not None:
            raise self.lost
        if not self._is_held:
            raise RuntimeError("this lease is not held; use it with `with`")
        return self.token
