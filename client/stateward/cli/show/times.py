"""Times and lengths of time, as people type and read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import typer

UNITS_S = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
LENGTH_MAX_S = 3650 * 86400
FORMS = "30s, 15m, 12h, 7d or 2w"


def read_length(text: str, option: str, *, zero_allowed: bool = False) -> timedelta:
    """A length such as 90s, 15m, 12h, 7d, 2w."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip().lower())
    if not found or found[2] not in UNITS_S:
        raise typer.BadParameter(f"{text!r} is not a length of time such as {FORMS}", param_hint=option)
    seconds = float(found[1]) * UNITS_S[found[2]]
    if not seconds and not zero_allowed:
        raise typer.BadParameter(f"{text!r} is zero; give more than 0", param_hint=option)
    if seconds > LENGTH_MAX_S:
        raise typer.BadParameter(f"{text!r} is more than ten years", param_hint=option)
    return timedelta(seconds=seconds)


def read_time(text: str | None, option: str) -> datetime | None:
    """A time: how long ago (7d), or an ISO 8601 date or time, which is local if it names no zone."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        pass
    try:
        return datetime.now(UTC) - read_length(text, option)
    except typer.BadParameter:
        raise typer.BadParameter(
            f"{text!r} is neither a time such as 2026-01-31T12:00 nor so long ago as in {FORMS}", param_hint=option
        ) from None


def time_ago(time: datetime) -> str:
    """How long ago something was: 5 s, 12 min, 3 h, then the date."""
    seconds = max((datetime.now(UTC) - time).total_seconds(), 0)
    for unit, length in (("s", 60), ("min", 60), ("h", 24)):
        if seconds < length:
            return f"{seconds:.0f} {unit} ago"
        seconds /= length
    return time.astimezone().strftime("%Y-%m-%d %H:%M")


def length(delta: timedelta) -> str:
    """A length of time for people: 0.5 s, 90 s, 12 min, 3 h, 2 d."""
    seconds = delta.total_seconds()
    if seconds < 120:
        return f"{seconds:.3g} s"
    for unit, length_s, most in (("min", 60, 120), ("h", 3600, 48)):
        if seconds < most * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def clock_time(time: datetime) -> str:
    """A time in full, local, to the millisecond."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
