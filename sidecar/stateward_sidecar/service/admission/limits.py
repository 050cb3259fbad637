"""What a principal may do at a time, and what a namespace may take: the limits in the file of principals.

    [[principal]]
    limits = { calls = 100, streams = 10, saves_per_second = 50 }

    [[namespace]]
    name = "team-*"       # "*" is any text; the first one that matches counts
    bytes = "10GiB"
    threads = 1000

A principal has so many places for calls that store something, as many for those that free, renew or answer something,
and as many for all others. So reads go on while its saves have used up theirs, and deletions and renewals while calls
that wait for something have. What is under way belongs to the name of a principal, and goes on when the file changes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

from stateward_sidecar.errors import QuotaExceeded
from stateward_sidecar.measures import events
from stateward_sidecar.service.methods import Facts
from stateward_sidecar.store.thread.usage import NamespaceLimit, Used

NAMESPACES_MAX, NUMBER_MAX, SAVES_MAX = 1000, 1_000_000, 1_000_000
BYTES_MAX = 1 << 60
BURST_S = 1.0
"""Saves that were not made in such a time may be made at once."""
PAUSE_MAX_S = 5.0
"""The longest time after which a refused save is told to come again."""
LIMITS = ("calls", "easing_calls", "other_calls", "streams", "saves_per_second", "bytes", "threads")
"""All, as errors name them."""
_UNITS = {"": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
_SIZE = re.compile(r"([0-9]{1,18})\s*(|KiB|MiB|GiB|TiB)")


@dataclass(frozen=True, slots=True)
class PrincipalLimits:
    """0 = there is no limit."""

    calls: int = 0
    streams: int = 0
    saves_per_second: int = 0


NO_LIMITS = PrincipalLimits()


class Places:
    """How many things of a kind a principal may have at a time."""

    def __init__(self, principal: str, what: str) -> None:
        self._principal, self.what = principal, what
        self.maximum = self.used = 0

    def enter(self) -> None:
        """Takes a place. Raises QuotaExceeded."""
        if 0 < self.maximum <= self.used:
            events.limits[self.what] += 1
            message = f"{self._principal} has {self.used} {self.what} under way, and may have {self.maximum}"
            raise QuotaExceeded(
                message, limit=self.what, principal=self._principal, maximum=self.maximum, used=self.used
            )
        self.used += 1

    def leave(self) -> None:
        """Gives a place back."""
        self.used -= 1

    @contextmanager
    def taken(self) -> Iterator[Taken]:
        """Takes a place for a block. Raises QuotaExceeded."""
        self.enter()
        taken = Taken(self)
        try:
            yield taken
        finally:
            taken.places.leave()


class Taken:
    """A place that a call has taken."""

    __slots__ = ("places",)

    def __init__(self, places: Places) -> None:
        self.places = places

    def move(self, places: Places) -> None:
        """Takes another place instead. Raises QuotaExceeded, and keeps the first one."""
        places.enter()
        self.places.leave()
        self.places = places


class Pace:
    """How many saves a principal may make a second.

    Each save moves a moment by its share of a second. A save passes unless that moment is more than ``BURST_S`` ahead.
    """

    def __init__(self, principal: str) -> None:
        self._principal = principal
        self.maximum = 0
        self._until_s = self._asked_s = 0.0

    @property
    def used(self) -> int:
        """How many saves count at the moment."""
        return round(max(self._until_s - monotonic(), 0.0) * self.maximum)

    def spend(self, saves: int) -> None:
        """Counts saves. Raises QuotaExceeded, which says when to come again.

        A batch of more than a second's saves passes if nothing was saved for a second. The next one waits for longer.
        """
        if not self.maximum or not saves:
            return
        now_s = monotonic()
        wait_s = self._wait_s(saves, now_s)
        if wait_s <= 0:
            self._count(saves, now_s)
            return
        events.limits["saves_per_second"] += 1
        # Those who are refused come again one after the other, and not all at once.
        self._asked_s = max(self._asked_s + saves / self.maximum, now_s + wait_s)
        pause_s = min(self._asked_s - now_s, PAUSE_MAX_S)
        self._asked_s = now_s + pause_s
        message = f"{self._principal} may make {self.maximum} saves a second; make this one again in {pause_s:.3f} s"
        raise QuotaExceeded(
            message, retry_after_ms=max(int(pause_s * 1e3), 1), limit="saves_per_second", principal=self._principal,
            maximum=self.maximum, used=self.used,
        )  # fmt: skip

    async def wait(self) -> None:
        """Counts a save of a stream, which is read no further until it may be made."""
        if not self.maximum:
            return
        now_s = monotonic()
        wait_s = self._wait_s(1, now_s)
        self._count(1, now_s)
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    def _wait_s(self, saves: int, now_s: float) -> float:
        """Returns in how long saves may be made."""
        share_s = min(saves / self.maximum, BURST_S)
        return self._until_s + share_s - BURST_S - now_s

    def _count(self, saves: int, now_s: float) -> None:
        self._until_s = max(self._until_s, now_s) + saves / self.maximum


class Allowance:
    """The limits of a principal, and what of them is used."""

    def __init__(self, principal: str) -> None:
        self.principal = principal
        self.calls = Places(principal, "calls")
        """That store something."""
        self.easing_calls = Places(principal, "easing_calls")
        """That free, renew or answer something."""
        self.other_calls = Places(principal, "other_calls")
        self.streams = Places(principal, "streams")
        self.pace = Pace(principal)

    def limit(self, limits: PrincipalLimits) -> None:
        """Sets the limits. What is under way stays."""
        for places in (self.calls, self.easing_calls, self.other_calls):
            places.maximum = limits.calls
        self.streams.maximum = limits.streams
        self.pace.maximum = limits.saves_per_second

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        every = (self.calls, self.easing_calls, self.other_calls, self.streams)
        return not any(places.used for places in every)

    def places_of(self, facts: Facts) -> Places:
        """Returns where a call of a method has its place."""
        if facts.eases:
            return self.easing_calls
        return self.calls if facts.stores else self.other_calls

    def used(self) -> list[Used]:
        """Returns the limits, and what is used of them."""
        every = (
            ("calls", self.calls), ("easing_calls", self.easing_calls), ("other_calls", self.other_calls),
            ("streams", self.streams), ("saves_per_second", self.pace),
        )  # fmt: skip
        return [Used(what, self.principal, each.maximum, each.used) for what, each in every if each.maximum]


def parse_limits(told: Any) -> PrincipalLimits:
    """Returns the limits of a principal. Raises ValueError."""
    if not isinstance(told, dict):
        raise ValueError("limits is no table; give limits = { calls = 100, streams = 10, saves_per_second = 50 }")
    most = {"calls": NUMBER_MAX, "streams": NUMBER_MAX, "saves_per_second": SAVES_MAX}
    if unknown := told.keys() - most.keys():
        raise ValueError(f"limits.{min(unknown)} is not known; give {', '.join(most)}")
    return PrincipalLimits(**{key: _number(told[key], f"limits.{key}", most[key]) for key in told})


def parse_namespaces(told: Any) -> tuple[NamespaceLimit, ...]:
    """Returns the limits of namespaces. Raises ValueError."""
    if not isinstance(told, list) or len(told) > NAMESPACES_MAX:
        raise ValueError(f"namespace is no list of at most {NAMESPACES_MAX} [[namespace]] tables")
    found = list[NamespaceLimit]()
    for number, each in enumerate(told, 1):
        try:
            found.append(_namespace(each))
        except ValueError as error:
            raise ValueError(f"namespace {number}: {error}") from None
        if any(before.pattern == found[-1].pattern for before in found[:-1]):
            raise ValueError(f"namespace {number}: {found[-1].pattern!r} has limits already")
    return tuple(found)


def _namespace(told: Any) -> NamespaceLimit:
    if not isinstance(told, dict):
        raise ValueError("is no table")
    if unknown := told.keys() - {"name", "bytes", "threads"}:
        raise ValueError(f"{min(unknown)!r} is not known; give name, bytes, threads")
    name = told.get("name")
    if not isinstance(name, str) or not name or len(name) > 1024 or "\0" in name:
        raise ValueError('name is required: a namespace, or a pattern such as "team-*"')
    found = NamespaceLimit(
        name, _size(told["bytes"]) if "bytes" in told else 0,
        _number(told["threads"], "threads", 1 << 32) if "threads" in told else 0,
    )  # fmt: skip
    if not (found.bytes or found.threads):
        raise ValueError(f"{name!r} has no limit; give bytes or threads")
    return found


def _number(given: Any, key: str, most: int) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= most:
        raise ValueError(f"{key} is no number from 1 to {most:,}; leave it out if there is no limit")
    return given


def _size(given: Any) -> int:
    found = _SIZE.fullmatch(given) if isinstance(given, str) else None
    size = int(found[1]) << _UNITS[found[2]] if found is not None else given
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= BYTES_MAX:
        raise ValueError(f'bytes = {given!r} is no size; give a number of bytes, or "10GiB" (KiB, MiB, GiB, TiB)')
    return size
