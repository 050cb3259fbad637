"""Security events: calls that were denied, keys and tokens that changed, threads that were deleted, taken or locked,
and what lies open. Each is a line of the log with the fact `security`, and one of the audit log if there is one.

An event names its principal, its method, the uid of its thread and its peer, as far as they are known. It never says
what a thread is called or holds.

Whoever may call nothing can still be denied as often as it likes. So of each caller's denied calls ten have a line of
their own, and then one a second; of all callers together a hundred, and then ten a second. A later line says how many
have none.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Any

from stateward_sidecar.measures import events
from stateward_sidecar.telemetry import log

DENIED, CHANGED, DELETED, TAKEN, EXPOSED, LOCKED = "denied", "changed", "deleted", "taken", "exposed", "locked"
_LEVELS = {DENIED: log.warning, TAKEN: log.warning, EXPOSED: log.warning}
"""Of the lines in the log; the others are info."""
CALLER_LINES, CALLER_LINES_PER_S = 10, 1.0
ALL_LINES, ALL_LINES_PER_S = 100, 10.0
CALLERS_MAX = 1024
"""How many callers are told apart. All others count as one."""
SETTLE_S = 10.0
"""After this long, a line says how many denied calls have none, if no later one of the caller says it."""

_sinks: list[Callable[[dict[str, Any]], None]] = []


def add_sink(sink: Callable[[dict[str, Any]], None]) -> None:
    """Hands each event from now on to somebody else, too. ``sink`` must not wait, and may be called on any thread."""
    _sinks.append(sink)


def note(kind: str, said: str, *, tell: Callable[..., None] | None = None, **facts: Any) -> None:
    """Tells an event. Facts that are empty are left out. ``tell``: writes the line in the log at another level."""
    facts = {name: value for name, value in facts.items() if value not in ("", None)}
    (tell or _LEVELS.get(kind, log.info))(said, security=kind, **facts)
    for sink in _sinks:
        sink({"event": kind, "said": said, **facts})


class _Flow:
    """Lines that may be written: some at once, then so many a second."""

    __slots__ = ("_at_once", "_left", "_per_s", "_since_s")

    def __init__(self, at_once: int, per_s: float) -> None:
        self._at_once, self._per_s = at_once, per_s
        self._left, self._since_s = float(at_once), monotonic()

    def take(self, now_s: float) -> bool:
        """Takes a line. Returns False if there is none."""
        self._left = min(self._at_once, self._left + (now_s - self._since_s) * self._per_s)
        self._since_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def is_full(self, now_s: float) -> bool:
        """Whether nothing was taken for so long that it makes no difference to forget the caller."""
        return self._left + (now_s - self._since_s) * self._per_s >= self._at_once


class Denials:
    """Counts denied calls, and tells some of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all = _Flow(ALL_LINES, ALL_LINES_PER_S)
        self._callers: dict[str, _Flow] = {}
        self._left_out: Counter[str] = Counter()
        self._settled_s = monotonic()

    def note(self, method: str, reason: str, principal: str, peer: str, known: str) -> None:
        """A call was denied. ``known``: what tells its caller from others, if it is no principal; empty = nothing."""
        events.denied[method] += 1
        caller = f"principal {principal}" if principal else known
        with self._lock:
            now_s = monotonic()
            caller = self._place(caller, now_s)
            if not (self._callers[caller].take(now_s) and self._all.take(now_s)):
                self._left_out[caller] += 1
                return
            left_out = self._left_out.pop(caller, 0)
        note(
            DENIED, "a call was denied", principal=principal, method=method, reason=reason, peer=peer,
            left_out=left_out or None,
        )  # fmt: skip

    def settle(self, *, now: bool = False) -> None:
        """Tells how many calls have no line, if nobody was told for a while. Called now and then."""
        with self._lock:
            if not self._left_out or (not now and monotonic() - self._settled_s < SETTLE_S):
                return
            self._settled_s = monotonic()
            left_out, self._left_out = self._left_out, Counter()
        for caller, count in left_out.items():
            note(DENIED, "calls were denied that have no line of their own", caller=caller, left_out=count)

    def _place(self, caller: str, now_s: float) -> str:
        """Returns as whom a caller counts."""
        if caller not in self._callers:
            if len(self._callers) >= CALLERS_MAX:
                self._callers = {name: flow for name, flow in self._callers.items() if not flow.is_full(now_s)}
            if len(self._callers) >= CALLERS_MAX:
                caller = ""
            self._callers.setdefault(caller, _Flow(CALLER_LINES, CALLER_LINES_PER_S))
        return caller


denials = Denials()
