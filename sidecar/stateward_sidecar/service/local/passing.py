"""Whose small save is next, on the local wire.

Saves that have come together are committed together, but no more than PASS_MAX at a time, so that whoever comes next
waits for a short commit only. Further ones wait here, and connections take turns: a program with one call at a time is
next, however many calls of others wait. gRPC does not say which connection a call belongs to, and has lines by thread
(`admission/order.py`).

A save that waits for something else than its commit, such as a disk or the bucket, keeps nobody waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from stateward_sidecar.service.calls.calls import Gather
from stateward_sidecar.service.local.running import Running

PASS_MAX = 48
"""The most saves that wait for their commit."""


class Starter(Protocol):
    """A connection."""

    def start(self, running: Running) -> None:
        """Runs a call until it waits."""


class Passing:
    """Used on the event loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, gather: Gather) -> None:
        self._loop, self._gather = loop, gather
        self._waiting: dict[Starter, deque[Running]] = {}
        self._uncommitted = 0
        self._is_due = False

    def take(self, starter: Starter, running: Running) -> None:
        """Takes a call that has come: it begins now, or has to wait."""
        running.call.has_turn = True
        if self._uncommitted < PASS_MAX and not self._waiting:
            self._start(starter, running)
        else:
            self._waiting.setdefault(starter, deque()).append(running)

    def drop(self, starter: Starter, running: Running) -> None:
        """Forgets a call that waits, because nobody wants it any more."""
        calls = self._waiting[starter]
        calls.remove(running)
        if not calls:
            del self._waiting[starter]

    def _start(self, starter: Starter, running: Running) -> None:
        starter.start(running)
        if running.call.is_committing:
            self._uncommitted += 1
            running.call.on_committed = self._end

    def _end(self) -> None:
        self._uncommitted -= 1
        self._pass_soon()

    def _pass_soon(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._pass)

    def _pass(self) -> None:
        """Begins calls of all connections in turn."""
        self._is_due = False
        try:
            with self._gather:
                while self._waiting and self._uncommitted < PASS_MAX:
                    starter = next(iter(self._waiting))
                    calls = self._waiting.pop(starter)
                    running = calls.popleft()
                    if calls:
                        self._waiting[starter] = calls  # behind the others
                    self._start(starter, running)
        finally:
            if self._uncommitted < PASS_MAX:  # a call could not begin; the loop gets its error
                self._pass_soon()
