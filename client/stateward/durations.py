"""Lengths of time, as arguments and as fields of dataclasses."""

from __future__ import annotations

from datetime import timedelta
from typing import overload

Duration = timedelta | float
"""A length of time: a timedelta, or a number of seconds."""

SECONDS_MAX = 100 * 365 * 86400.0
"""A hundred years. The operating system's clocks cannot hold much longer times."""


def seconds(length: Duration, name: str, *, least: float = 0.0, most: float = SECONDS_MAX) -> float:
    """Returns a length of time in seconds. `name` is the name of the argument, for the errors.

    Raises TypeError if `length` is not a timedelta or a number, and ValueError if it is out of range, infinite or NaN.
    """
    if isinstance(length, bool) or not isinstance(length, (timedelta, int, float)):
        raise TypeError(f"{name} takes a timedelta or seconds, not {length!r}")
    number = length.total_seconds() if isinstance(length, timedelta) else length
    if not least <= number <= most:  # also for NaN
        raise ValueError(f"{name} is {length}; it must be {least:,.10g} to {most:,.10g} seconds")
    return float(number)


def span(length: Duration, name: str, *, least: float = 0.0, most: float = SECONDS_MAX) -> timedelta:
    """Returns a length of time as a timedelta. Raises the same errors as `seconds`."""
    return timedelta(seconds=seconds(length, name, least=least, most=most))


class DurationField:
    """A field of a dataclass that takes a Duration and returns a timedelta; None by default."""

    def __set_name__(self, owner: type[object], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type[object]) -> None: ...
    @overload
    def __get__(self, instance: object, owner: type[object]) -> timedelta | None: ...
    def __get__(self, instance: object | None, owner: type[object]) -> timedelta | None:
        kept: timedelta | None = None if instance is None else vars(instance)[self._name]
        return kept

    def __set__(self, instance: object, value: Duration | None) -> None:
        vars(instance)[self._name] = None if value is None else span(value, self._name)
